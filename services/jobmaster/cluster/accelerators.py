"""Which accelerators this machine has, by what the kernel's driver says of itself: no framework is loaded for it.

NVIDIA's driver keeps a folder for each card of the machine, with lines like `Model: NVIDIA A100-SXM4-80GB` and `Device
Minor: 3`; those that a container was given have a device file, too (the driver's README, "The /proc Interface").
"""

from pathlib import Path

DRIVER = Path("/proc/driver/nvidia")
DEVICES = Path("/dev")
ANY = "gpu"
"""brain's name for accelerators of a job that names no kind."""


def accelerators(driver: Path = DRIVER, devices: Path = DEVICES) -> dict[str, float]:
    """How many of each kind there are, and as `gpu` how many of any; a kind is the model's name in small letters,
    without its vendor (`a100-sxm4-80gb`). A machine without the driver has none."""
    found = {ANY: 0.0}
    for path in sorted(driver.glob("gpus/*/information")):
        told = _fields(path)
        minor, kind = told.get("device minor", ""), _kind(told.get("model", ""))
        if minor and not (devices / f"nvidia{minor}").exists():
            continue
        found[ANY] += 1.0
        if kind:
            found[kind] = found.get(kind, 0.0) + 1.0
    return found


def _fields(path: Path) -> dict[str, str]:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:         # a card that was taken out a moment ago
        return {}
    pairs = (line.partition(":") for line in lines)
    return {name.strip().lower(): value.strip() for name, _, value in pairs if value}


def _kind(model: str) -> str:
    words = model.lower().split()
    return "-".join(words[1:] if words[:1] == ["nvidia"] else words)
