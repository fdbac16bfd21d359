"""Rates as bars of text: what was measured, then what is expected and how much more it may be."""

from collections.abc import Sequence

BLOCKS = " ▁▂▃▄▅▆▇█"
HEIGHT = 8


def bars(
    measured: Sequence[float], expected: Sequence[tuple[float, float]], *, width: int = 72, height: int = HEIGHT
) -> list[str]:
    """Lines, the highest first: bars of what was measured, `|`, then expected means as bars of `▒` under dots up to the
    high end of the interval. More values than columns: each column is the mean of its own (for high ends: the largest).
    """
    if not measured and not expected:
        return []
    columns = max(1, width - 12)
    ahead = min(len(expected), max(1, columns // 2)) if expected else 0
    past = _means(measured, columns - ahead)
    means = _means([mean for mean, _ in expected], ahead)
    highs = _largest([high for _, high in expected], ahead)
    top = max([*past, *means, *highs, 1e-12])
    lines = []
    for row in range(height, 0, -1):
        label = f"{_short(top) if row == height else '0' if row == 1 else '':>8}  "
        solid = "".join(_block(value / top * height - (row - 1)) for value in past)
        soft = "".join(
            "▒" if mean / top * height > row - 0.5 else "·" if high / top * height > row - 0.5 else " "
            for mean, high in zip(means, highs, strict=True)
        )
        lines.append((label + solid + ("|" + soft if expected else "")).rstrip())
    return lines


def _block(filled: float) -> str:
    return BLOCKS[max(0, min(8, round(filled * 8)))]


def _chunks(values: Sequence[float], count: int) -> list[Sequence[float]]:
    if len(values) <= count:
        return [[value] for value in values]
    return [values[len(values) * n // count : len(values) * (n + 1) // count] for n in range(count)]


def _means(values: Sequence[float], count: int) -> list[float]:
    return [sum(chunk) / len(chunk) for chunk in _chunks(values, count)]


def _largest(values: Sequence[float], count: int) -> list[float]:
    return [max(chunk) for chunk in _chunks(values, count)]


def _short(value: float) -> str:
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= limit:
            return f"{value / (1e3 if unit == 'k' else limit):.3g}{unit}"
    return f"{value:.3g}"
