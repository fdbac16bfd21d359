"""A controller made of controllers: each job is in one cluster, chosen when it is planned, and stays there.

Where a job is, its processes tell: nothing is stored besides. What was chosen is booked until its processes have begun,
so that jobs which come together do not all choose the same idle cluster. While a cluster does not answer, a job that no
other has is not known to run or not, so that nothing is decided of it; jobs of the others go on.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from recmesh.runtime.errors import FailedPrecondition, MeshError, Unavailable, Violation
from recmesh.runtime.telemetry import get_logger
from recmesh.spec.job import TrainingJob
from services.jobmaster.cluster import Capacity, Controller, RoleProcess, StartOrder
from services.jobmaster.domain import plan as plans
from services.jobmaster.domain.clusters import Bookings, Needs, best, is_allowed, together
from services.jobmaster.domain.job import Intent

logger = get_logger(__name__)
T = TypeVar("T")

AGAIN_S = 5.0
"""A cluster that did not answer is asked for its processes so much later, and chosen for no job as long."""
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
        self._booked = Bookings()
        self._silent: dict[str, float] = {}
        """Until when clusters that did not tell what they have free are not asked for it again."""
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
        if home is None:
            return []
        found = await home.controller.processes(job_id)
        if self._booked.cluster_of(job_id) == home.name:
            self._see(job_id, found)
        return [_named(home, each) for each in found]

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
        """See `Controller`. Refused is what no cluster takes: with what each of them says of a field."""
        allowed = self._allowed(spec)
        if not allowed:
            known = "; ".join(f"{member.name} ({_words(member.labels)})" for member in self._members.values())
            return [Violation("labels", f"no cluster has what labels with `cluster.` ask for; there are: {known}")]
        refused = {member.name: member.controller.refusals(spec) for member in allowed}
        return joined(refused) if all(refused.values()) else []

    def _allowed(self, spec: TrainingJob) -> list[Member]:
        return [member for member in self._members.values() if is_allowed(spec.labels, member.told)]

    async def start(self, order: StartOrder) -> RoleProcess:
        """See `Controller`. Of a job that has no cluster the first process brings it to the one that was chosen."""
        own = together([(1, order.cpu, order.memory_bytes, order.gpu, order.gpu_kind)])
        async with self._locks.setdefault(order.job_id, asyncio.Lock()):
            home = self._home(order.job_id)
            if home is None:
                home = await self._choose(order.job_id, order.spec, needs_of(order))
            elif not await self._lives(home, order.job_id):     # it was suspended, or all of it has failed
                self._book(order.job_id, home, needs_of(order))
            self._homes[order.job_id] = home.name
            self._booked.ask(order.job_id, order.name, own)
            self._starting.append(order.job_id)
        try:
            return _named(home, await home.controller.start(replace(order, env={**home.env, **order.env})))
        finally:
            self._starting.remove(order.job_id)

    async def _lives(self, home: Member, job_id: str) -> bool:
        if job_id in self._starting:
            return True
        return any(process.exit is None for process in await home.controller.processes(job_id))

    def _book(self, job_id: str, home: Member, needs: Needs) -> None:
        self._booked.book(job_id, home.name, needs, asyncio.get_running_loop().time())

    async def _choose(self, job_id: str, spec: TrainingJob | None, needs: Needs) -> Member:
        """The one that is booked for it, while that answers; else the best of those that do."""
        able = list(self._members.values())
        if spec is not None:
            able = [member for member in self._allowed(spec) if not member.controller.refusals(spec)]
        if not able:
            raise FailedPrecondition(f"no cluster takes job {job_id}", reason="NO_CLUSTER")
        free = await self._free_of(able)
        if not free:
            names = ", ".join(member.name for member in able)
            raise Unavailable(f"no cluster that may have job {job_id} answers: {names}", reason="CLUSTER_AWAY")
        await self._see_booked()
        # No other job is chosen for between here and the booking.
        now, before = asyncio.get_running_loop().time(), self._booked.cluster_of(job_id)
        left = {name: self._booked.left(name, found, but=job_id, now=now) for name, found in free.items()}
        chosen = self._members[before if before in free else best(needs, left)]
        if chosen.name != before:
            logger.info("job %s goes to cluster %s, of %s", job_id, chosen.name, ", ".join(free))
        self._book(job_id, chosen, needs)
        return chosen

    async def _see_booked(self) -> None:
        """Which of those that were chosen for have begun."""
        for job_id, name in self._booked.jobs():
            try:
                found = await self._members[name].controller.processes(job_id)
            except MeshError as error:
                logger.info("cluster %s does not tell how far job %s is: %s", name, job_id, error)
                continue
            self._see(job_id, found)

    def _see(self, job_id: str, found: Sequence[RoleProcess]) -> None:
        living = {each.name for each in found if each.exit is None}
        placed = {each.name for each in found if each.name in living and (each.begun or each.node)}
        if job_id in self._starting:
            living.add("")          # it may not be seen yet
        self._booked.see(job_id, living=living, begun=placed, now=asyncio.get_running_loop().time())

    async def _free_of(self, members: Sequence[Member]) -> dict[str, Capacity]:
        """Of those that answer, by name. One that did not a moment ago is not waited for again, where others do."""
        now = asyncio.get_running_loop().time()
        asked = [member for member in members if self._silent.get(member.name, now) <= now] or members
        found = await asyncio.gather(*map(_free, asked))
        for member, each in zip(asked, found, strict=True):
            self._silent.pop(member.name, None)
            if each is None:
                self._silent[member.name] = asyncio.get_running_loop().time() + AGAIN_S
        return {
            member.name: replace(each, cluster=member.name)
            for member, each in zip(asked, found, strict=True) if each is not None
        }

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
        self._booked.forget(job_id)

    async def _at(self, job_id: str, act: Callable[[Controller], Awaitable[T]], otherwise: T) -> T:
        home = self._home(job_id)
        return otherwise if home is None else await act(home.controller)

    async def capacity(self, job_id: str = "", spec: TrainingJob | None = None) -> Capacity:
        """See `Controller`. Of the job's cluster, which is chosen now where it has none and `spec` tells what it needs;
        without that, the most that one cluster has."""
        home = self._members[self._homes[job_id]] if job_id in self._homes else None
        if home is None and spec is not None:
            async with self._locks.setdefault(job_id, asyncio.Lock()):
                home = self._home(job_id) or await self._choose(job_id, spec, declared(spec))
        if home is not None:
            return replace(await home.controller.capacity(job_id), cluster=home.name)
        found = list((await self._free_of(list(self._members.values()))).values())
        if not found:
            raise Unavailable("no cluster tells what it has free", reason="CLUSTER_AWAY")
        return max(found, key=lambda each: (sum(each.gpus.values()), each.cpu))


def declared(spec: TrainingJob) -> Needs:
    """What a job begins with by its own words, where nothing is planned yet."""
    intent, small = Intent(), plans.default_plan(spec)
    return together(
        (_least(spec, role), size.cpu, size.memory_bytes, size.gpu, size.gpu_kind)
        for role, size in ((role, plans.size(spec, intent, small, role)) for role in plans.planned_roles(spec))
    )


def joined(refused: Mapping[str, Sequence[Violation]]) -> list[Violation]:
    """One violation for each field: by whom, where they say different things."""
    said: dict[str, dict[str, list[str]]] = {}
    for name, violations in refused.items():
        for each in violations:
            said.setdefault(each.path, {}).setdefault(each.reason, []).append(name)
    return [
        Violation(path, next(iter(reasons)) if len(reasons) == 1 and len(*reasons.values()) == len(refused) else
                  "; ".join(f"{', '.join(names)}: {reason}" for reason, names in reasons.items()))
        for path, reasons in said.items()
    ]


def needs_of(order: StartOrder) -> Needs:
    """What the job begins with: the least number of each role, and at least the order itself."""
    own = (1, order.cpu, order.memory_bytes, order.gpu, order.gpu_kind)
    if order.spec is None or not order.sizes:
        return together([own])
    return together(
        (max(_least(order.spec, role), int(role == order.role)), size.cpu, size.memory_bytes, size.gpu, size.gpu_kind)
        for role, size in order.sizes.items()
    )


def _least(spec: TrainingJob, role: str) -> int:
    own = getattr(spec.roles, role, None)
    if own is None:
        return 0
    if role == "evaluator":
        return plans.wanted(spec, Intent(), {}, role)
    count: int = own.min if own.replicas is None else own.replicas
    return count


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
