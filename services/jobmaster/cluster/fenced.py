"""A controller by which a jobmaster changes nothing of jobs whose lease it has lost."""

from collections.abc import Callable

from recmesh.runtime.errors import Violation
from recmesh.spec.job import TrainingJob
from services.jobmaster.cluster import Capacity, Controller, RoleProcess, StartOrder


class FencedController:
    """`check` raises for jobs that are not this jobmaster's now; it is asked before each change, not before looks."""

    def __init__(self, inner: Controller, check: Callable[[str], None]) -> None:
        self._inner, self._check = inner, check

    def refusals(self, spec: TrainingJob) -> list[Violation]:
        """See `Controller`."""
        return self._inner.refusals(spec)

    async def find_again(self) -> None:
        """See `Controller`."""
        await self._inner.find_again()

    async def start(self, order: StartOrder) -> RoleProcess:
        """See `Controller`."""
        self._check(order.job_id)
        return await self._inner.start(order)

    async def stop(self, job_id: str, name: str, *, grace_s: float) -> None:
        """See `Controller`."""
        self._check(job_id)
        await self._inner.stop(job_id, name, grace_s=grace_s)

    async def drain(self, job_id: str, name: str) -> None:
        """See `Controller`."""
        self._check(job_id)
        await self._inner.drain(job_id, name)

    async def processes(self, job_id: str) -> list[RoleProcess]:
        """See `Controller`."""
        return await self._inner.processes(job_id)

    async def resize(self, job_id: str, name: str, *, cpu: float | None, memory_bytes: int) -> bool:
        """See `Controller`."""
        self._check(job_id)
        return await self._inner.resize(job_id, name, cpu=cpu, memory_bytes=memory_bytes)

    def watch(self, on_change: Callable[[str], None]) -> None:
        """See `Controller`."""
        self._inner.watch(on_change)

    async def stop_watching(self) -> None:
        """See `Controller`."""
        await self._inner.stop_watching()

    async def tail(self, job_id: str, name: str, *, lines: int) -> list[str]:
        """See `Controller`."""
        return await self._inner.tail(job_id, name, lines=lines)

    async def forget(self, job_id: str) -> None:
        """See `Controller`."""
        self._check(job_id)
        await self._inner.forget(job_id)

    async def jobs(self) -> list[str]:
        """See `Controller`."""
        return await self._inner.jobs()

    async def capacity(self, job_id: str = "", spec: TrainingJob | None = None) -> Capacity:
        """See `Controller`."""
        return await self._inner.capacity(job_id, spec)
