"""A job that trains and brain, step by step: ask, change, measure, tell; on a truth that brain does not know."""

import asyncio
import itertools
import math
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from recmesh.plugins.planning import Allocation, ClusterView, JobView, Overheads, Proposal, Resources, Shapes
from recmesh.runtime.errors import FailedPrecondition, InvalidArgument, ResourceExhausted
from services.brain.app.book import Book
from services.brain.app.deciding import Deciding, Policy
from services.brain.app.jobs import Jobs
from services.brain.domain.model import (
    Ask,
    Change,
    Fit,
    Free,
    History,
    Job,
    Look,
    Plan,
    Profile,
    RoleLimits,
    RolePlan,
    RoleUse,
)
from services.brain.domain.planning.built_in import PLANNERS
from services.brain.domain.planning.pareto_greedy import ParetoGreedy
from services.brain.domain.views import Sizes, learned, view
from services.brain.domain.warmstart import WarmStart
from services.brain.store import SqlStore

pytestmark = pytest.mark.asyncio

GIB = 1 << 30
BATCH = 512


def truth(workers: int, ps: int, worker_cpu: float, ps_cpu: float, contention: float = 0.0) -> float:
    """Samples per second: compute shared by cores, updates and traffic by servers, and a cost of many workers."""
    step_s = 0.2 / worker_cpu + (0.03 / ps_cpu + 0.01) * workers / ps + 0.02 * ps + 0.03 + contention * workers
    return workers * BATCH / step_s


class HandClock:
    """Time goes on when it is told to."""

    def __init__(self, at: float) -> None:
        self._at = at

    def advance(self, step_s: float) -> None:
        self._at += step_s

    def now(self) -> float:
        return self._at

    def monotonic(self) -> float:
        return self._at

    async def sleep(self, delay_s: float) -> None:
        self._at += delay_s


class Mesh:
    """One brain, and a job that does as it is told."""

    def __init__(self, store: SqlStore, planner: str = "pareto-greedy", policy: Policy | None = None,
                 quotas: dict[str, Resources] | None = None) -> None:  # fmt: skip
        self.clock = HandClock(1000.0)
        self.told: list[Plan] = []
        self.book = Book(quotas, clock=self.clock)
        self.deciding = Deciding(
            store, PLANNERS[planner](), policy or Policy(), self.book, rule=WarmStart(), seed=7, clock=self.clock,
            told=self._tell,
        )
        self.jobs = Jobs(store, self.book, rule=WarmStart(), clock=self.clock, told=self._tell)
        self.free_cpu = 40.0
        self.contention = 0.0
        self.rates: list[float] = []
        """Of the last job, look by look."""

    def rate(self, now: dict[str, RolePlan]) -> float:
        worker, ps = now["worker"], now["ps"]
        return truth(worker.replicas, ps.replicas, worker.cpu, ps.cpu, self.contention)

    async def _tell(self, plan: Plan) -> None:
        self.told.append(plan)

    async def steps(
        self, job: Job, limits: list[RoleLimits], now: dict[str, RolePlan], *, rounds: int = 30, judged: bool = True
    ) -> tuple[dict[str, RolePlan], list[str]]:
        """What the job ends with, and the reasons on the way."""
        reasons: list[str] = []
        self.rates = []
        start = sum(plan.replicas * plan.cpu for plan in now.values())
        for _ in range(rounds):
            rate = self.rate(now)
            self.rates.append(rate)
            await self._measure(job.job_id, now, rate)
            held = sum(plan.replicas * plan.cpu for plan in now.values())
            free = Free(self.free_cpu + start - held, 500 * GIB)
            look, plan = await self.deciding.decide(Ask(job, limits, now, rate, 10**9, free))
            reasons.append(look.reason)
            if plan is None:
                if look.reason != "EXPLORE" and len(reasons) > 6 and len(set(reasons[-3:])) == 1:
                    break
                continue
            after = {role.role: role for role in plan.roles}
            slower = judged and self.rate(after) < 0.95 * min(rate, look.expected_samples_per_s or rate)
            verdict = "taken back" if slower else "kept"
            await self._measure(job.job_id, after, self.rate(after))
            await self.deciding.conclude(
                Change(
                    plan.plan_id, job.job_id, self.clock.now(), verdict, "as measured", tuple(now.values()),
                    plan.roles, rate, look.expected_samples_per_s, self.rate(after), 2.0,
                )
            )  # fmt: skip
            now = now if slower else after
        return now, reasons

    async def _measure(self, job_id: str, now: dict[str, RolePlan], rate: float, owner: str = "") -> None:
        for _ in range(3):
            self.clock.advance(20.0)
            worker, ps = now["worker"], now["ps"]
            await self.jobs.observe(
                Profile(
                    job_id, self.clock.now(), worker.replicas, ps.replicas, batch_size=BATCH, samples_per_s=rate,
                    worker_cpu_limit=worker.cpu, ps_cpu_limit=ps.cpu, hardware="cpu", is_steady=True, owner=owner,
                    roles=(RoleUse(worker), RoleUse(ps)),
                )
            )  # fmt: skip


def roles(workers: int, ps: int, cpu: float = 1.0) -> dict[str, RolePlan]:
    return {"worker": RolePlan("worker", workers, cpu, 2 * GIB), "ps": RolePlan("ps", ps, cpu, 2 * GIB)}


LIMITS = [RoleLimits("worker", 1, 8, cpu=1.0), RoleLimits("ps", 1, 4, cpu=1.0)]
BEST = max(truth(w, p, 1.0, 1.0) for w, p in itertools.product(range(1, 9), range(1, 5)))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStore]:
    made = SqlStore(f"sqlite:///{tmp_path}/brain.sqlite")
    made.open()
    yield made
    made.close()


async def test_a_job_that_began_too_small_grows_to_near_its_best(store: SqlStore) -> None:
    mesh = Mesh(store)
    now, reasons = await mesh.steps(Job("small", owner="ads"), LIMITS, roles(1, 1))
    assert mesh.rate(now) >= 0.9 * BEST, (now, reasons)
    assert {"EXPLORE", "GROW"} & set(reasons) and mesh.told
    explained = await mesh.jobs.explain("small")
    assert explained.look is not None and explained.changes and explained.look.fit.points
    assert "Last decision (pareto-greedy" in explained.text and "Its last change was" in explained.text


async def test_a_job_that_began_too_large_shrinks_and_stays_fast(store: SqlStore) -> None:
    mesh = Mesh(store)
    mesh.contention = 2.0                 # workers beyond the first few bring next to nothing
    now, reasons = await mesh.steps(Job("large", owner="ads"), LIMITS, roles(8, 4))
    held, best = sum(plan.replicas for plan in now.values()), mesh.rate(roles(8, 4))
    assert held <= 8 and mesh.rate(now) >= 0.85 * best, (now, reasons)
    assert {"SHRINK", "EXPLORE"} & set(reasons), reasons


async def test_what_is_free_and_what_the_user_pinned_bound_it(store: SqlStore) -> None:
    mesh = Mesh(store)
    mesh.free_cpu = 2.0
    now, reasons = await mesh.steps(Job("poor"), LIMITS, roles(1, 1))
    assert sum(plan.replicas for plan in now.values()) <= 4 and "NO_ROOM" in reasons
    pinned = [RoleLimits("worker", 1, 8, pinned=2, cpu=1.0), RoleLimits("ps", 1, 4, pinned=1, cpu=1.0)]
    now, reasons = await mesh.steps(Job("pinned"), pinned, roles(2, 1), rounds=8)
    assert now == roles(2, 1) and set(reasons) <= {"PINNED", "KEEP"}


async def test_a_quota_bounds_all_jobs_of_an_owner(store: SqlStore) -> None:
    mesh = Mesh(store, quotas={"ads": Resources(5.0, 500 * GIB)})
    now, reasons = await mesh.steps(Job("a", owner="ads"), LIMITS, roles(1, 1))
    assert sum(plan.replicas for plan in now.values()) <= 5 and "OVER_QUOTA" in reasons, reasons


async def test_first_plans_count_against_the_quota_too(store: SqlStore) -> None:
    mesh = Mesh(store, quotas={"ads": Resources(7.0, 500 * GIB)})
    for name in ("a", "b"):         # one server and two workers each
        plan = await mesh.jobs.plan(Job(name, owner="ads"), LIMITS, Free())
        assert sum(role.replicas for role in plan.roles) == 3
    with pytest.raises(ResourceExhausted, match="the quota of owner 'ads'") as refused:
        await mesh.jobs.plan(Job("c", owner="ads"), LIMITS, Free())
    assert refused.value.reason == "OVER_QUOTA"
    assert await mesh.jobs.plan(Job("d", owner="search"), LIMITS, Free())
    await mesh._measure("a", roles(2, 1), 1000.0, "ads")
    asked = Ask(Job("a", owner="ads"), LIMITS, roles(2, 1), 1000.0, 10**9, Free())
    look, plan_a = await mesh.deciding.decide(asked)
    assert plan_a is None and look.reason == "OVER_QUOTA", "c waits for what is left"
    mesh.clock.advance(1.0)         # it asks no more
    look, plan_a = await mesh.deciding.decide(asked)
    assert plan_a is not None and sum(role.replicas for role in plan_a.roles) == 4, look
    await mesh.jobs.record(History(Job("b", owner="ads"), "Succeeded"))
    assert sum(role.replicas for role in (await mesh.jobs.plan(Job("c", owner="ads"), LIMITS, Free())).roles) == 3


async def test_after_a_restart_what_runs_still_counts(store: SqlStore) -> None:
    quotas = {"ads": Resources(4.0, 500 * GIB)}
    mesh = Mesh(store, quotas=quotas)
    await mesh.jobs.plan(Job("a", owner="ads"), LIMITS, Free())
    await mesh._measure("a", roles(2, 1), 1000.0, "ads")
    again = Mesh(store, quotas=quotas)
    again.clock.advance(mesh.clock.now() - again.clock.now())
    await again.jobs.restore()
    assert again.book.left("ads") == Resources(1.0, 500 * GIB - 6 * GIB)
    with pytest.raises(ResourceExhausted):
        await again.jobs.plan(Job("c", owner="ads"), LIMITS, Free())
    await again.jobs.record(History(Job("a", owner="ads"), "Succeeded"))
    third = Mesh(store, quotas=quotas)
    third.clock.advance(mesh.clock.now() - third.clock.now())
    await third.jobs.restore()
    assert third.book.left("ads") == quotas["ads"]
    third.clock.advance(5.0)
    await third._measure("a", roles(2, 1), 1000.0, "ads")           # another of its name
    again = Mesh(store, quotas=quotas)
    again.clock.advance(third.clock.now() - again.clock.now())
    await again.jobs.restore()
    assert again.book.left("ads") == Resources(1.0, 500 * GIB - 6 * GIB)


async def test_what_was_taken_back_is_not_proposed_again_soon(store: SqlStore) -> None:
    mesh = Mesh(store)
    job, now = Job("again"), roles(1, 1)
    await mesh._measure("again", now, mesh.rate(now))
    seen = []
    for _ in range(6):
        _, plan = await mesh.deciding.decide(Ask(job, LIMITS, now, mesh.rate(now), 10**9, Free(40.0, 500 * GIB)))
        if plan is None:
            continue
        seen.append(tuple(role.replicas for role in plan.roles))
        await mesh.deciding.conclude(
            Change(plan.plan_id, "again", mesh.clock.now(), "taken back", "slower", tuple(now.values()), plan.roles)
        )
        mesh.clock.advance(180.0)
    assert seen and len(set(seen)) == len(seen)


async def test_processes_without_a_limit_keep_having_none(store: SqlStore) -> None:
    mesh = Mesh(store)
    free = [RoleLimits("worker", 1, 8), RoleLimits("ps", 1, 4)]
    bare = {name: replace(plan, cpu=0.0, memory_bytes=0) for name, plan in roles(1, 1).items()}
    await mesh._measure("bare", bare, 1000.0)
    _, plan = await mesh.deciding.decide(Ask(Job("bare"), free, bare, 1000.0, 10**9, Free(40.0, 500 * GIB)))
    assert plan is not None and {(role.cpu, role.memory_bytes) for role in plan.roles} == {(0.0, 0)}


async def test_bad_input_is_refused_by_its_field(store: SqlStore) -> None:
    mesh = Mesh(store)
    with pytest.raises(InvalidArgument) as refused:
        await mesh.deciding.decide(Ask(Job(""), LIMITS, {"worker": RolePlan("worker", 0, 1.0, 0)}, 1.0, 1, Free()))
    assert [each.path for each in refused.value.violations] == ["job.job_id"]
    with pytest.raises(InvalidArgument) as refused:
        await mesh.deciding.decide(Ask(Job("x"), LIMITS, {"worker": RolePlan("worker", 0, 1.0, 0)}, -1.0, 1, Free()))
    assert {each.path for each in refused.value.violations} == {"now.ps", "now.worker.replicas", "samples_per_s"}
    with pytest.raises(InvalidArgument) as refused:
        odd = RolePlan("worker", 1, math.nan, 0)
        await mesh.deciding.conclude(Change("", "x", 0.0, "fine", "", (odd,), (), rate_after=-1.0))
    assert {each.path for each in refused.value.violations} == {"plan_id", "verdict", "rate_after", "before[0]"}
    with pytest.raises(InvalidArgument) as refused:
        await mesh.jobs.observe(Profile("x", 1.0, 1, 1, worker_cpu_limit=math.inf, ps_memory_bytes=-1))
    assert [each.path for each in refused.value.violations] == ["ps_memory_bytes", "worker_cpu_limit"]


async def test_cores_that_are_not_used_are_given_back_where_the_planner_has_nothing_better(store: SqlStore) -> None:
    mesh = Mesh(store, planner="static")
    now, limits = roles(2, 1, cpu=4.0), [RoleLimits("worker", 2, 2), RoleLimits("ps", 1, 1)]
    for _ in range(140):
        mesh.clock.advance(5.0)
        await mesh.jobs.observe(
            Profile(
                "idle", mesh.clock.now(), 2, 1, batch_size=BATCH, samples_per_s=500.0, worker_cpu_limit=4.0,
                ps_cpu_limit=4.0, ps_memory_bytes=int(1.6 * GIB), hardware="cpu", is_steady=True, roles=(
                    RoleUse(now["worker"], 1.0, int(1.6 * GIB)), RoleUse(now["ps"], 3.4, int(1.6 * GIB)),
                ),
            )
        )  # fmt: skip
    look, plan = await mesh.deciding.decide(Ask(Job("idle"), limits, now, 500.0, 10**9, Free(0.0, 0)))
    assert plan is not None and look.planner == "vertical" and look.reason == "SHRINK"
    assert {role.role: (role.replicas, role.cpu) for role in plan.roles} == {"worker": (2, 1.2), "ps": (1, 4.0)}
    assert "worker 4 → 1.2 cores" in look.why


async def test_what_a_similar_job_has_shown_spares_the_next_one_its_steps(store: SqlStore) -> None:
    mesh = Mesh(store)
    alike = {"model": "dcn_v2", "tables": 26, "dim": 16, "batch_size": BATCH, "data_rows": 10**8}
    now, _ = await mesh.steps(Job("first", owner="ads", **alike), LIMITS, roles(1, 1))  # type: ignore[arg-type]  # by name
    first = mesh.rates
    await mesh.jobs.record(History(Job("first", owner="ads", **alike), "Succeeded", final_plan=tuple(now.values())))  # type: ignore[arg-type]  # by name
    again, reasons = await mesh.steps(Job("second", owner="ads", **alike), LIMITS, roles(1, 1))  # type: ignore[arg-type]  # by name
    assert mesh.rate(again) >= 0.9 * BEST
    assert [sum(rate < 0.9 * BEST for rate in rates) for rates in (first, mesh.rates)] == [3, 1], "steps on the way"
    assert reasons[0] == "GROW", "to what the first one has had, at once"
    explained = await mesh.jobs.explain("second")
    assert explained.look is not None and any("begun from first" in note for note in explained.look.fit.notes)


async def test_another_kind_of_hardware_has_a_model_of_its_own(store: SqlStore) -> None:
    mesh = Mesh(store)
    for kind, factor in (("cpu", 1.0), ("A10", 5.0)):
        for workers, ps in ((1, 1), (2, 1), (2, 2), (4, 2), (4, 1)):
            for _ in range(3):
                mesh.clock.advance(20.0)
                rate = factor * truth(workers, ps, 1.0, 1.0)
                await mesh.jobs.observe(
                    Profile(
                        "kinds", mesh.clock.now(), workers, ps, batch_size=BATCH, samples_per_s=rate, is_steady=True,
                        worker_cpu_limit=1.0, ps_cpu_limit=1.0, hardware=kind,
                    )
                )  # fmt: skip
    profiles = await asyncio.to_thread(store.profiles, "kinds")
    for kind, factor in (("A10", 5.0), ("cpu", 1.0)):
        upto = [each for each in profiles if each.hardware in ("cpu", kind)]
        model, fit = learned(upto, now=mesh.clock.now())
        assert model is not None and {round(point.measured) for point in fit.points}
        guess = model.predict(Shapes.of([Allocation(3, 1, 1.0, 1.0)])).rate[0]
        assert guess == pytest.approx(factor * truth(3, 1, 1.0, 1.0), rel=0.15)


async def test_what_one_job_was_promised_another_does_not_get(store: SqlStore) -> None:
    mesh = Mesh(store)
    got = []
    for name in ("b", "a"):
        await mesh._measure(name, roles(1, 1), 1000.0)
        _, plan = await mesh.deciding.decide(Ask(Job(name), LIMITS, roles(1, 1), 1000.0, 10**9, Free(1.0, 500 * GIB)))
        got.append(plan is not None)
    assert got == [True, False]
    mesh.book.forget("b")
    _, plan = await mesh.deciding.decide(Ask(Job("a"), LIMITS, roles(1, 1), 1000.0, 10**9, Free(1.0, 500 * GIB)))
    assert plan is not None


async def test_what_was_promised_in_one_cluster_takes_nothing_from_another(store: SqlStore) -> None:
    mesh = Mesh(store)
    got = []
    for name, cluster in (("b", "east"), ("a", "west"), ("c", "west")):
        await mesh._measure(name, roles(1, 1), 1000.0)
        free = Free(1.0, 500 * GIB, cluster=cluster)
        _, plan = await mesh.deciding.decide(Ask(Job(name), LIMITS, roles(1, 1), 1000.0, 10**9, free))
        got.append(plan is not None)
    assert got == [True, True, False]


async def test_servers_whose_memory_the_user_named_are_not_fewer_than_can_hold_their_rows(store: SqlStore) -> None:
    named = [RoleLimits("worker", 1, 8, pinned=1, cpu=1.0), RoleLimits("ps", 1, 4, cpu=1.0, memory_bytes=2 * GIB)]
    for used, least in ((int(1.9 * GIB), 4), (GIB // 4, 1), (0, 4)):
        seen = view(
            Job("full"), named, roles(1, 4), throughput=None, rate=1.0, remaining=1.0, overheads=Overheads(),
            sizes=Sizes(), fit=Fit(), ps_bytes=used,
        )  # fmt: skip
        assert seen.bounds.ps == (least, 4), used


async def test_a_job_begins_from_what_running_jobs_of_its_model_have_shown_together(store: SqlStore) -> None:
    """Twice as fast as the others, of which each has shown one size alone."""
    mesh, free = Mesh(store), Free(40.0, 500 * GIB)

    async def looked(name: str, workers: int, ps: int, factor: float) -> Look:
        now = roles(workers, ps)
        rate = factor * mesh.rate(now)
        await mesh._measure(name, now, rate)
        job = Job(name, owner="ads", model="dcn", batch_size=BATCH)
        return (await mesh.deciding.decide(Ask(job, LIMITS, now, rate, 10**9, free)))[0]

    for name, workers, ps in (("a", 1, 1), ("b", 2, 1), ("c", 4, 2)):
        await looked(name, workers, ps, 1.0)
    look = await looked("d", 1, 1, 2.0)
    assert "of the same model" in " ".join(look.fit.notes) and not look.fit.unknown, look.fit
    (point,) = look.fit.points
    assert point.predicted == pytest.approx(2.0 * truth(1, 1, 1.0, 1.0), rel=0.1)
    other = Job("e", owner="ads", model="another", batch_size=BATCH)
    look, _ = await mesh.deciding.decide(Ask(other, LIMITS, roles(1, 1), 1000.0, 10**9, free))
    assert look.fit.unknown


class Held(ParetoGreedy):
    """Its proposal is made when `gate` opens."""

    def __init__(self) -> None:
        super().__init__()
        self.proposing, self.gate = threading.Event(), threading.Event()

    def propose(self, job: JobView, cluster: ClusterView, rng: np.random.Generator) -> Proposal:
        self.proposing.set()
        assert self.gate.wait(30.0)
        return super().propose(job, cluster, rng)


@pytest.mark.parametrize("early", [True, False], ids=["before the choice", "within the choice"])
async def test_a_job_that_ends_while_it_is_decided_on_holds_nothing(store: SqlStore, early: bool) -> None:
    mesh, held = Mesh(store, quotas={"ads": Resources(12.0, 500 * GIB)}), Held()
    mesh.deciding = Deciding(
        store, held, Policy(), mesh.book, rule=WarmStart(), seed=7, clock=mesh.clock, told=mesh._tell
    )
    job = Job("a", owner="ads")
    await mesh._measure("a", roles(1, 1), 1000.0, "ads")
    if early:
        await mesh.book.choosing.acquire()
    decided = asyncio.create_task(mesh.deciding.decide(Ask(job, LIMITS, roles(1, 1), 1000.0, 10**9, Free())))
    if not early:
        assert await asyncio.to_thread(held.proposing.wait, 30.0)
    await mesh.jobs.record(History(job, "Succeeded"))
    mesh.deciding.forget("a")
    await mesh._measure("a", roles(1, 1), 1000.0, "ads")         # told before, heard later
    if early:
        await asyncio.sleep(0.05)
        mesh.book.choosing.release()
    held.gate.set()
    with pytest.raises(FailedPrecondition, match="'a' has ended"):
        await decided
    assert mesh.book.left("ads") == Resources(12.0, 500 * GIB) and mesh.book.room(Free(9.0, None)).cpu == 9.0
    assert not mesh.deciding._live and not mesh.deciding._asks and not mesh.told
    assert await mesh.jobs.plan(job, LIMITS, Free())                # the name may be used again
    left = mesh.book.left("ads")
    assert left is not None and left.cpu == 9.0
