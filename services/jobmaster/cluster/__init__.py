"""Resource controllers: where the processes of roles run, behind one interface.

`local` runs them on this machine; they outlive jobmaster, and are found again with the truth of their end.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from recmesh.runtime.errors import Violation
from recmesh.spec.job import TrainingJob
from services.jobmaster.domain.exits import Exit
from services.jobmaster.domain.job import Capacity


@dataclass(frozen=True, slots=True)
class StartOrder:
    """One process of a role."""

    job_id: str
    name: str
    """Unique in the job's life: `worker-0-1`."""
    role: str
    index: int
    env: Mapping[str, str]
    cpu: float = 0.0
    """Cores; 0: no limit."""
    memory_bytes: int = 0
    """0: no limit."""


@dataclass(frozen=True, slots=True)
class RoleProcess:
    """A process that was started, living or ended."""

    job_id: str
    name: str
    handle: str
    """pid or pod."""
    exit: Exit | None = None
    memory_bytes: int = 0
    cpu_s: float = 0.0
    limits_note: str = ""
    """Why its limits are not enforced; empty when they are, or when there are none."""


class Controller(Protocol):
    """Starts and ends processes, and tells when they end."""

    def refusals(self, spec: TrainingJob) -> list[Violation]:
        """What the job asks for that no process here can have; it is then refused at submit."""
        ...

    async def find_again(self) -> None:
        """Takes in the processes that others have started: another jobmaster may have led meanwhile."""
        ...

    async def start(self, order: StartOrder) -> RoleProcess:
        """Idempotent by name: a process of that name that lives is returned as it is."""
        ...

    async def stop(self, job_id: str, name: str, *, grace_s: float) -> None:
        """SIGTERM; SIGKILL after the grace (0: at once). Returns at once; `watch` tells of the end."""
        ...

    async def drain(self, job_id: str, name: str) -> None:
        """SIGTERM only: the process ends when it has put its work in order."""
        ...

    async def processes(self, job_id: str) -> list[RoleProcess]:
        """All of the job's processes that are not forgotten."""
        ...

    async def resize(self, job_id: str, name: str, *, cpu: float | None, memory_bytes: int) -> bool:
        """Other limits while it runs; False when only a replacement can have them. cpu None: as it is."""
        ...

    def watch(self, on_change: Callable[[str], None]) -> None:
        """Calls back with the job's id whenever one of its processes has ended."""
        ...

    async def tail(self, job_id: str, name: str, *, lines: int) -> list[str]:
        """The last lines that the place's processes wrote."""
        ...

    async def forget(self, job_id: str) -> None:
        """Removes records and logs of a job whose processes have all ended."""
        ...

    async def jobs(self) -> list[str]:
        """Jobs that have processes, living or ended."""
        ...

    async def capacity(self) -> Capacity:
        """What is free."""
        ...


__all__ = ["Capacity", "Controller", "RoleProcess", "StartOrder"]
