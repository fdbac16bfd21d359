"""Numbers as people read them."""

import math


def count(value: float) -> str:
    """1234567 as 1.23 M; small whole numbers as they are."""
    if value != value or math.isinf(value):
        return str(value)
    for limit, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            return f"{value / (1e3 if unit == 'k' else limit):.3g} {unit}"
    return f"{int(value)}" if float(value).is_integer() else f"{value:.3g}"


def size(size_bytes: float) -> str:
    """Bytes in binary units."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size_bytes) < 1024 or unit == "TiB":
            return f"{size_bytes:.0f} B" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    raise AssertionError("unreachable")


def duration(seconds: float) -> str:
    """0.012 s, 3.4 s, 5 min 20 s, 3 h 12 min, 2 d 4 h."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{int(seconds // 60)} min {int(seconds % 60)} s"
    if seconds < 86_400:
        return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60)} min"
    return f"{int(seconds // 86_400)} d {int(seconds % 86_400 // 3600)} h"


def age(at: float, *, now: float) -> str:
    """How long ago; '-' for never (0)."""
    return "-" if at <= 0 else f"{duration(max(0.0, now - at))} ago"


def share(part: float) -> str:
    """0.256 as 25.6 %."""
    return f"{part * 100:.1f} %"
