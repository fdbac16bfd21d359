"""mesh.json: where everything listens and how it is; the file that all other programs may read."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

FORMAT = 1


@dataclass(slots=True)
class ComponentState:
    """One component as it was when last looked at."""

    state: str = "waiting"
    pid: int | None = None
    addresses: Mapping[str, str] = field(default_factory=dict)
    restarts: int = 0
    since: float = 0.0
    """Unix seconds of the last change of state."""
    hopeless: bool = False
    """It does not start; see the last exit, and its log."""
    last_exit: str = ""
    last_exit_at: float = 0.0
    reason: str = ""
    """What it says itself of why it is not ready."""


@dataclass(slots=True)
class MeshState:
    """The whole file."""

    ports: dict[str, int] = field(default_factory=dict)
    components: dict[str, ComponentState] = field(default_factory=dict)
    round: str = ""
    """Of the `up` whose settings are in force; an `up` waits until it reads its own."""
    supervisor_pid: int | None = None
    error: str = ""
    """Why the supervisor could not do what the round asked."""
    format: int = FORMAT

    @property
    def ready(self) -> bool:
        """True when every component is."""
        return bool(self.components) and all(item.state == "ready" for item in self.components.values())

    @property
    def gateway(self) -> str:
        """Base address of the REST API; empty when there is none."""
        item = self.components.get("gateway")
        return item.addresses.get("http", "") if item else ""

    def save(self, path: Path) -> None:
        """Written whole or not at all."""
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        part.write_text(json.dumps(asdict(self), indent=1) + "\n")
        part.replace(path)


def load(path: Path) -> MeshState:
    """The state; empty when there is no file, or not one of this format."""
    try:
        values: Any = json.loads(path.read_bytes())
        if values.pop("format") != FORMAT:
            return MeshState()
        values["components"] = {name: ComponentState(**item) for name, item in values["components"].items()}
        return MeshState(**values)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return MeshState()
