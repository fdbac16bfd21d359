"""Resource controllers: where the processes of roles run, behind one interface.

`local` runs them on this machine, `kubernetes` as pods, `yarn` in its containers, and others may add their own
(`plugged.py`); processes outlive jobmaster, and are found again with the truth of their end.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from recmesh.runtime.errors import Violation
from recmesh.spec.job import TrainingJob
from recmesh.spec.policies import PodGroupPolicy
from services.jobmaster.domain.exits import Exit
from services.jobmaster.domain.job import Capacity


@dataclass(frozen=True, slots=True)
class Owner:
    """The TrainingJob object of a job."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Amounts:
    """What one process of a role may use; 0: no limit, and no GPUs."""

    cpu: float = 0.0
    memory_bytes: int = 0
    gpu: float = 0.0
    gpu_kind: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    """Pods of a job that are placed together."""

    policy: PodGroupPolicy
    least: int
    """So many of them, or none."""


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
    gpu: float = 0.0
    gpu_kind: str = ""
    secrets: frozenset[str] = frozenset()
    """Variables of `env` whose values are secret."""
    image: str = ""
    """Of the user's model; empty: the mesh's own. Of controllers that run images."""
    template: Mapping[str, Any] = field(default_factory=dict)
    """`roles.X.pod_template`. Of controllers that make pods."""
    owner: Owner | None = None
    """None: the object with the job's name, where there is one."""
    sizes: Mapping[str, Amounts] = field(default_factory=dict)
    """What processes of each role of the job get as of now. Of controllers that must know it beforehand."""
    spec: TrainingJob | None = None
    """The job's. Of controllers that choose by it."""
    instances: int = 0
    """Processes that the job is to have, of all roles; 0: not known. Of controllers that place them together."""
    group: Group | None = None
    """Of controllers whose scheduler places pods together."""


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
    waiting: str = ""
    """Why it does not run yet, in the cluster's own words; empty when it runs, or is about to."""
    begun: bool = True
    """False while a cluster looks for its place, or fetches what it needs."""
    node: str = ""
    """Where it runs; empty: not known."""


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
        """SIGTERM only: the process ends when it has put its work in order. A controller may bound how long
        that takes."""
        ...

    async def processes(self, job_id: str) -> list[RoleProcess]:
        """All of the job's processes that are not forgotten."""
        ...

    async def resize(self, job_id: str, name: str, *, cpu: float | None, memory_bytes: int) -> bool:
        """Other limits while it runs; False when only a replacement can have them. cpu None: as it is. May take tens of
        seconds where a cluster has to agree."""
        ...

    def watch(self, on_change: Callable[[str], None]) -> None:
        """Calls back with the job's id whenever one of its processes has ended, or waits for another reason."""
        ...

    async def stop_watching(self) -> None:
        """Stops looking; the processes go on."""
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

    async def capacity(self, job_id: str = "", spec: TrainingJob | None = None) -> Capacity:
        """What is free for this job, or for any. `spec`: of one that is about to be planned; where there are
        several clusters, its own is chosen by it."""
        ...


__all__ = ["Amounts", "Capacity", "Controller", "Group", "Owner", "RoleProcess", "StartOrder"]
