"""One process of the mesh as the supervisor sees it."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

PUBLIC_KEY = "RECMESH_PUBLIC_API_KEY"
"""Of gateway: whoever shows it may do everything."""

ProbeKind = Literal["http", "https", "nats", "valkey"]


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
    cwd: str = ""
    """Empty: the supervisor's own."""
    files: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Configuration files, written (owner only) before the start."""
    grace_s: float = 15.0
    """Between SIGTERM and SIGKILL."""

    @property
    def tag(self) -> str:
        """Changes with all that the process was started with; a living one of another tag is restarted."""
        seen = [list(self.command), dict(self.env), self.cwd, dict(self.files)]
        return hashlib.sha256(json.dumps(seen, sort_keys=True).encode()).hexdigest()[:16]

    @classmethod
    def load(cls, values: dict[str, Any]) -> Self:
        """The component from `dataclasses.asdict` of it, also by way of JSON."""
        probe, command = Probe(**values["probe"]), tuple(values["command"])
        return cls(**(values | {"probe": probe, "command": command}))
