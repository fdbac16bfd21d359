"""What is written down about a process: how it started and how it ended (JSON, in its run folder)."""

import json
import os
import signal
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

START_SUFFIX = ".process.json"
EXIT_SUFFIX = ".exit.json"
LIMIT_SUFFIX = ".memory"
"""A memory limit, in bytes, that was raised while the process runs and its shim watches it."""


class _Record:
    @classmethod
    def load(cls, path: Path) -> Self | None:
        """The record; None when there is none, or it is not one."""
        try:
            values: Any = json.loads(path.read_bytes())
            known = {item.name for item in fields(cls)}  # type: ignore[arg-type]  # every subclass is a dataclass
            return cls(**{key: value for key, value in values.items() if key in known})
        except (OSError, ValueError, TypeError, AttributeError):
            return None

    def save(self, path: Path) -> None:
        """Written whole or not at all; readable by the owner alone."""
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump(asdict(self), file)  # type: ignore[call-overload]  # every subclass is a dataclass
        part.replace(path)


@dataclass(frozen=True, slots=True)
class StartRecord(_Record):
    """A process that was started; written by its shim before the command runs."""

    name: str
    pid: int
    start_ticks: int
    boot_id: str
    shim_pid: int
    shim_start_ticks: int
    started_at: float
    command: list[str]
    log_path: str
    tag: str = ""
    """The starter's own mark, such as a hash of the configuration it started it with."""
    cgroups: list[str] = field(default_factory=list)
    limits_enforced: bool = False
    limits_reason: str = ""
    cpu_cores: float | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class ExitRecord(_Record):
    """How a process ended; `exit_code` and `signal` are None when its shim was killed and nobody knows."""

    name: str
    pid: int
    start_ticks: int
    started_at: float
    ended_at: float
    exit_code: int | None
    signal: int | None
    oom: bool
    reason: str
    """For people: `exit code 70`, `killed by SIGKILL`, `OOMKilled: out of memory, limit 512 MiB`, ..."""
    peak_memory_bytes: int = 0
    cpu_s: float = 0.0

    @property
    def ok(self) -> bool:
        """True when it ended by itself with exit code 0."""
        return self.exit_code == 0


def signal_name(number: int) -> str:
    """`SIGKILL` for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
