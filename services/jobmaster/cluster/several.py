"""A controller made of controllers: each job is in one cluster, chosen when its first process starts, and stays there.

Where a job is, its processes tell: nothing is kept besides. While a cluster does not answer, a job that no other has is
not known to run or not, so that nothing is decided of it; jobs of the others go on.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from recmesh.runtime.errors import FailedPrecondition, MeshError, Unavailable, Violation
from recmesh.runtime.telemetry import get_logger
from recmesh.spec.job import TrainingJob
from services.jobmaster.cluster import Capacity, Controller, RoleProcess, StartOrder
from services.jobmaster.domain.clusters import Needs, best, is_allowed, together

logger = get_logger(__name__)
T = TypeVar("T")

AGAIN_S = 5.0
"""A cluster that did not answer is asked for its processes so much later."""
ANSWER_S = 20.0
"""Of one that is asked what it has free, or for its processes."""


@dataclass(frozen=True, slots=True)
class Member:
    """One of the clusters."""

    name: str
    controller: Controller
    labels: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    """Of processes there, where the order says nothing else."""

    @property
    def told(self) -> dict[str, str]:
        """Its labels, its name among them."""
        return {**self.labels, "name": self.name}


class SeveralClusters:
    """Members in the order in which equals are taken; names must differ."""

    def __init__(self, members: Sequence[Member]) -> None:
        if not members or len({member.name for member in members}) < len(members):
            raise ValueError("clusters need different names")
        self._members = {member.name: member for member in members}
        self._homes: dict[str, str] = {}
        self._unknown: set[str] = set(self._members)
        """Of these it is not known what runs there."""
        self._locks: dict[str, asyncio.Lock] = {}
        self._starting: list[str] = []
        """Jobs of which a process is being started."""
        self._asker: asyncio.Task[None] | None = None
        self._on_change: Callable[[str], None] = lambda job_id: None

    # -- what there is -----------------------------------------------------------------------------------

    def watch(self, on_change: Callable[[str], None]) -> None:
        """See `Controller`."""
        self._on_change = on_change
        for member in self._members.values():
            member.controller.watch(on_change)

    async def find_again(self) -> None:
        """See `Controller`. Unavailable when no cluster answers."""
        failures = await asyncio.gather(*(self._find(member) for member in self._members.values()))
        if all(failures):
            raise Unavailable(f"no cluster answers: {'; '.join(filter(None, failures))}")
        if self._unknown and (self._asker is None or self._asker.done()):
            self._asker = asyncio.create_task(self._ask_again())

    async def _find(self, member: Member) -> str:
        """Why it could not be asked; empty when it was."""
        begun = set(self._starting)
        try:
            async with asyncio.timeout(ANSWER_S):
                await member.controller.find_again()
                jobs = await member.controller.jobs()
        except (MeshError, TimeoutError) as error:
            self._unknown.add(member.name)
            logger.warning("cluster %s does not answer: %s", member.name, error)
            return f"{member.name}: {error}"
        self._unknown.discard(member.name)
        begun |= set(self._starting)            # their first process may not be seen yet
        for job_id in [job for job, home in self._homes.items() if home == member.name and job not in jobs]:
            if job_id not in begun:
                del self._homes[job_id]
        for job_id in jobs:
            home = self._homes.setdefault(job_id, member.name)
            if home != member.name:
                logger.error("job %s has processes in %s and in %s: those of %s count", job_id, home, member.name, home)
        return ""

    async def _ask_again(self) -> None:
        while self._unknown:
            await asyncio.sleep(AGAIN_S)
            for name in sorted(self._unknown):
                if not await self._find(self._members[name]):
                    for job_id in [job for job, home in self._homes.items() if home == name]:
                        self._on_change(job_id)

    async def stop_watching(self) -> None:
        """See `Controller`."""
        if self._asker is not None:
            self._asker.cancel()
            await asyncio.gather(self._asker, return_exceptions=True)
        await asyncio.gather(*(member.controller.stop_watching() for member in self._members.values()))

    async def processes(self, job_id: str) -> list[RoleProcess]:
        """See `Controller`. Handles begin with the cluster's name. Unavailable while it is not known where it is."""
        home = self._home(job_id)
        return [] if home is None else [_named(home, each) for each in await home.controller.processes(job_id)]

    async def jobs(self) -> list[str]:
        """See `Controller`."""
        found = await asyncio.gather(*(member.controller.jobs() for member in self._members.values()))
        return sorted({job_id for jobs in found for job_id in jobs})

    def _home(self, job_id: str) -> Member | None:
        home = self._homes.get(job_id)
        if home is not None:
            return self._members[home]
        if self._unknown:
            raise Unavailable(
                f"it is not known where job {job_id} is: {', '.join(sorted(self._unknown))} does not answer",
                reason="CLUSTER_AWAY",
            )
        return None

    # -- starts ------------------------------------------------------------------------------------------

    def refusals(self, spec: TrainingJob) -> list[Violation]:
        """See `Controller`. Refused is what no cluster takes: with what is least wrong."""
        allowed = self._allowed(spec)
        if not allowed:
            known = "; ".join(f"{member.name} ({_words(member.labels)})" for member in self._members.values())
            return [Violation("labels", f"no cluster has what labels with `cluster.` ask for; there are: {known}")]
        return min((member.controller.refusals(spec) for member in allowed), key=len)

    def _allowed(self, spec: TrainingJob) -> list[Member]:
        return [member for member in self._members.values() if is_allowed(spec.labels, member.told)]

    async def start(self, order: StartOrder) -> RoleProcess:
        """See `Controller`. A job's first process chooses its cluster."""
        async with self._locks.setdefault(order.job_id, asyncio.Lock()):
            home = self._home(order.job_id) or await self._choose(order)
            self._homes[order.job_id] = home.name
        self._starting.append(order.job_id)
        try:
            return _named(home, await home.controller.start(replace(order, env={**home.env, **order.env})))
        finally:
            self._starting.remove(order.job_id)

    async def _choose(self, order: StartOrder) -> Member:
        able = list(self._members.values())
        if order.spec is not None:
            able = [member for member in self._allowed(order.spec) if not member.controller.refusals(order.spec)]
        if not able:
            raise FailedPrecondition(f"no cluster takes job {order.job_id}", reason="NO_CLUSTER")
        free = {
            member.name: found
            for member, found in zip(able, await asyncio.gather(*map(_free, able)), strict=True) if found is not None
        }
        if not free:
            raise Unavailable("no cluster tells what it has free", reason="CLUSTER_AWAY")
        chosen = self._members[best(needs_of(order), free)]
        logger.info("job %s goes to cluster %s, of %s", order.job_id, chosen.name, ", ".join(free))
        return chosen

    # -- the rest is its cluster's -----------------------------------------------------------------------

    async def stop(self, job_id: str, name: str, *, grace_s: float) -> None:
        """See `Controller`."""
        await self._at(job_id, lambda home: home.stop(job_id, name, grace_s=grace_s), None)

    async def drain(self, job_id: str, name: str) -> None:
        """See `Controller`."""
        await self._at(job_id, lambda home: home.drain(job_id, name), None)

    async def resize(self, job_id: str, name: str, *, cpu: float | None, memory_bytes: int) -> bool:
        """See `Controller`."""
        return await self._at(job_id, lambda home: home.resize(job_id, name, cpu=cpu, memory_bytes=memory_bytes), False)

    async def tail(self, job_id: str, name: str, *, lines: int) -> list[str]:
        """See `Controller`."""
        return await self._at(job_id, lambda home: home.tail(job_id, name, lines=lines), [])

    async def forget(self, job_id: str) -> None:
        """See `Controller`."""
        await self._at(job_id, lambda home: home.forget(job_id), None)
        self._homes.pop(job_id, None)
        self._locks.pop(job_id, None)

    async def _at(self, job_id: str, act: Callable[[Controller], Awaitable[T]], otherwise: T) -> T:
        home = self._home(job_id)
        return otherwise if home is None else await act(home.controller)

    async def capacity(self, job_id: str = "") -> Capacity:
        """See `Controller`. Where the job is; of one that has no cluster yet, the most that one cluster has."""
        home = self._homes.get(job_id)
        if home is not None:
            return await self._members[home].controller.capacity(job_id)
        found = [each for each in await asyncio.gather(*map(_free, self._members.values())) if each is not None]
        if not found:
            raise Unavailable("no cluster tells what it has free", reason="CLUSTER_AWAY")
        return max(found, key=lambda each: (sum(each.gpus.values()), each.cpu))


def needs_of(order: StartOrder) -> Needs:
    """What the job begins with: the least number of each role, and at least the order itself."""
    own = (1, order.cpu, order.memory_bytes, order.gpu, order.gpu_kind)
    if order.spec is None or not order.sizes:
        return together([own])
    return together(
        (_count(order, role), size.cpu, size.memory_bytes, size.gpu, size.gpu_kind)
        for role, size in order.sizes.items()
    )


def _count(order: StartOrder, role: str) -> int:
    declared = getattr(order.spec.roles, role, None) if order.spec is not None else None
    if declared is None:
        return 0
    least: int = declared.min if declared.replicas is None else declared.replicas
    return max(least, 1 if role == order.role else 0)


async def _free(member: Member) -> Capacity | None:
    try:
        async with asyncio.timeout(ANSWER_S):
            return await member.controller.capacity()
    except (MeshError, TimeoutError) as error:
        logger.warning("cluster %s does not tell what it has free: %s", member.name, error)
        return None


def _named(member: Member, process: RoleProcess) -> RoleProcess:
    return replace(process, handle=f"{member.name}/{process.handle}")


def _words(labels: Mapping[str, str]) -> str:
    return ", ".join(f"{name}: {value}" for name, value in labels.items()) or "no labels"
