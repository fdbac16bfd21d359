"""One process of the mesh as the supervisor sees it."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

ProbeKind = Literal["http", "nats", "valkey"]


@dataclass(frozen=True, slots=True)
class Probe:
    """How to ask a component whether it is ready."""

    kind: ProbeKind
    address: str
    """host:port"""
    path: str = "/readyz"
    password: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Component:
    """What to run, where it listens, and when it counts as ready."""

    name: str
    stage: int
    """0: stores; 1: services, started once all of stage 0 are ready."""
    command: tuple[str, ...]
    probe: Probe
    addresses: Mapping[str, str]
    """For people and clients: `rpc`, `http`, or `url`; printed, so without secrets."""
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Beyond the supervisor's own environment; may hold secrets."""
    cwd: Path | None = None
    files: Mapping[Path, str] = field(default_factory=dict, repr=False)
    """Configuration files, written (owner only) before the start."""
    grace_s: float = 15.0
    """Between SIGTERM and SIGKILL."""

    @property
    def tag(self) -> str:
        """Changes with all that the process was started with; a living one of another tag is restarted."""
        seen = [
            list(self.command), dict(self.env), str(self.cwd),
            {str(path): text for path, text in self.files.items()},
        ]  # fmt: skip
        return hashlib.sha256(json.dumps(seen, sort_keys=True).encode()).hexdigest()[:16]
