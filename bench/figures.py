"""What a benchmark returns, and how it is shown."""

import importlib.metadata
import json
import os
import platform
from dataclasses import dataclass, field
from typing import Any

_PACKAGES = ("numpy", "numba", "torch", "tensorflow-cpu", "grpcio", "nats-py", "redis")


@dataclass(frozen=True, slots=True)
class Result:
    """Figures (flat names with units; shares and ratios are fractions) and what they depend on."""

    bench: str
    figures: dict[str, float]
    context: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> str:
        """One object with bench, figures and context."""
        context = {**machine(), **self.context}
        return json.dumps({"bench": self.bench, "figures": self.figures, "context": context})

    def as_table(self) -> str:
        """Figures to read, then the context."""
        width = max(map(len, self.figures), default=0)
        lines = [self.bench]
        lines += [f"  {name:<{width}}  {value:.6g}" for name, value in self.figures.items()]
        context = {"cores": os.cpu_count(), "load_1min": round(os.getloadavg()[0], 1), **self.context}
        lines += [f"  · {name}: {value}" for name, value in context.items()]
        return "\n".join(lines)


def machine() -> dict[str, Any]:
    """What the figures were measured on; the load, at their end, tells whether others used it too."""
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "cores": os.cpu_count(), "load_1min": round(os.getloadavg()[0], 1), "python": platform.python_version(),
        "cpu": _cpu(), "versions": versions,
    }


def _cpu() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()
