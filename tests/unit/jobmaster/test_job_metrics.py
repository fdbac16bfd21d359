"""JobMetrics objects on virtual time: beside each TrainingJob, at a bounded rate, and only when something is new."""

from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import pytest
import pytest_asyncio

from recmesh.runtime.errors import NotFound, Unavailable
from recmesh.runtime.lifecycle import Loop
from services.jobmaster.app.jobmetrics import MOST_AT_ONCE, JobMetrics
from services.jobmaster.domain import jobmetrics as rules
from services.jobmaster.domain.job import JobStatus, ObjectRef, RoleState
from services.jobmaster.domain.phase import Phase
from services.jobmaster.domain.vitals import Beat, StepTimes
from tests.support.job_fakes import LoopClock
from tests.support.job_world import spec
from tests.support.object_world import NAMESPACE, ObjectWorld

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]
EVERY_S = 15.0


class FakeBoard:
    """Objects by name, and when each was told of."""

    def __init__(self) -> None:
        self.things: dict[str, dict[str, Any]] = {}
        self.told: list[tuple[str, float, dict[str, Any]]] = []
        self.away = False

    async def make(self, thing: dict[str, Any]) -> None:
        if self.away:
            raise Unavailable("no API server")
        self.things[thing["metadata"]["name"]] = thing

    async def tell(self, ref: ObjectRef, status: dict[str, Any]) -> None:
        if self.away:
            raise Unavailable("no API server")
        if ref.name not in self.things:
            raise NotFound(ref.name)
        self.told.append((ref.name, LoopClock().monotonic(), status))


class MetricsWorld(ObjectWorld):
    """With JobMetrics objects."""

    def __init__(self) -> None:
        super().__init__()
        self.board = FakeBoard()
        self.loop: Loop | None = None

    async def begin(self) -> None:
        await super().begin()
        metrics = JobMetrics(
            self.board, self.jobs.runs, clock=LoopClock(), every_s=EVERY_S, may_write=self.jobs.context.may_write
        )
        self.loop = Loop("job metrics", metrics.look, clock=LoopClock())
        await self.loop.start()

    async def close(self) -> None:
        if self.loop is not None:
            await self.loop.stop()
        await super().close()


@pytest_asyncio.fixture
async def world() -> AsyncIterator[MetricsWorld]:
    made = MetricsWorld()
    yield made
    await made.close()


def body(**changes: Any) -> dict[str, Any]:
    return {name: value for name, value in spec(**changes).items() if name != "name"}


async def test_a_job_has_its_metrics_beside_it_until_its_end(world: MetricsWorld) -> None:
    await world.begin()
    thing = world.objects.put("ads", body())
    await world.until_told("ads", phase="Succeeded")
    await LoopClock().sleep(2 * EVERY_S)
    made = world.board.things["ads"]
    assert made["spec"] == {"job": "ads"} and made["metadata"]["namespace"] == NAMESPACE
    (owner,) = made["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("TrainingJob", thing["metadata"]["uid"])
    last = world.board.told[-1][2]
    assert (last["phase"], last["samples"], last["roles"]) == ("Succeeded", world.shards.total, [])
    seen = {role["role"] for _, _, told in world.board.told for role in told["roles"]}
    assert {"ps", "worker"} <= seen
    count = len(world.board.told)
    await LoopClock().sleep(10 * EVERY_S)
    assert len(world.board.told) == count       # nothing is new


async def test_it_is_written_at_a_bounded_rate(world: MetricsWorld) -> None:
    world.step_s = 5.0
    await world.begin()
    world.objects.put("ads", body())
    await world.until_told("ads", phase="Running")
    await LoopClock().sleep(5 * EVERY_S)
    moments = [at for _, at, _ in world.board.told]
    assert len(moments) >= 3
    assert all(later - earlier >= EVERY_S for earlier, later in pairwise(moments))


async def test_an_api_server_that_is_away_costs_nothing_and_is_told_later(world: MetricsWorld) -> None:
    await world.begin()
    world.board.away = True
    world.objects.put("ads", body())
    await world.until_told("ads", phase="Succeeded")
    assert world.board.told == []
    world.board.away = False
    await world.until(lambda: bool(world.board.told))
    assert world.board.told[-1][2]["phase"] == "Succeeded"


async def test_of_many_jobs_those_that_waited_longest_come_first() -> None:
    board, clock = FakeBoard(), LoopClock()
    world = ObjectWorld()
    await world.begin()
    for number in range(MOST_AT_ONCE + 3):
        world.objects.put(f"job-{number}", body())
    await world.until(lambda: len(world.jobs.runs()) == MOST_AT_ONCE + 3)
    metrics = JobMetrics(board, world.jobs.runs, clock=clock, every_s=EVERY_S, may_write=lambda job_id: None)
    await metrics.look()
    assert len(board.told) == MOST_AT_ONCE
    await metrics.look()
    assert {name for name, _, _ in board.told} == {f"job-{number}" for number in range(MOST_AT_ONCE + 3)}
    await world.close()


async def test_what_is_measured_is_of_processes_that_live() -> None:
    roles = (
        RoleState(role="ps", index=0, stage="running"), RoleState(role="worker", index=0, stage="running"),
        RoleState(role="worker", index=1, stage="exited"),
    )
    status = JobStatus(
        job_id="j", phase=Phase.RUNNING, samples=1000, samples_per_s=123.456, roles=roles, partitions=2, lag_s=3.21,
        lag_messages=40, metrics={"eval_auc": 0.71239},
    )
    step = StepTimes(data_s=0.01, pull_s=0.02, compute_s=0.03, push_s=0.04, total_s=0.11111, steps=9)
    beats = {
        ("ps", 0): Beat(at=1, incarnation="a", memory_bytes=2 << 20, cpu_cores=0.5, rows=77),
        ("worker", 0): Beat(at=1, incarnation="b", memory_bytes=1 << 20, cpu_cores=1.0, samples_per_s=123.456,
                            step=step, loss=0.5, auc=0.7, window_samples=10),
        ("worker", 1): Beat(at=1, incarnation="c", memory_bytes=9 << 20, cpu_cores=9.0, loss=9.0, window_samples=10),
    }
    told = rules.measured(status, beats, now=0.0)
    assert told == {
        "observed": "1970-01-01T00:00:00Z", "phase": "Running", "samples": 1000, "samples_per_s": 123.0, "lag_s": 3.21,
        "lag_messages": 40, "loss": 0.5, "auc": 0.7, "metrics": {"eval_auc": 0.712}, "cpu": 1.5,
        "memory_bytes": 3 << 20, "memory": "3 MiB",
        "roles": [
            {"role": "ps", "index": 0, "cpu": 0.5, "memory_bytes": 2 << 20, "rows": 77},
            {"role": "worker", "index": 0, "cpu": 1.0, "memory_bytes": 1 << 20, "samples_per_s": 123.0,
             "step_s": 0.111, "pull_s": 0.02, "push_s": 0.04, "compute_s": 0.03, "data_s": 0.01},
        ],
    }
    assert rules.is_same(told, told | {"observed": "later"}) and not rules.is_same(told, told | {"samples": 1001})


async def test_what_no_json_has_is_left_out() -> None:
    status = JobStatus(
        job_id="j", phase=Phase.RUNNING, roles=(RoleState(role="worker", index=0, stage="running"),),
        metrics={"eval_auc": float("nan"), "eval_loss": 0.5},
    )
    beats = {("worker", 0): Beat(at=1, incarnation="b", loss=float("nan"), auc=float("inf"), window_samples=10)}
    told = rules.measured(status, beats, now=0.0)
    assert "loss" not in told and "auc" not in told and told["metrics"] == {"eval_loss": 0.5}


async def test_only_what_can_be_written_now_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    board, clock, count = FakeBoard(), LoopClock(), 3 * MOST_AT_ONCE
    world = ObjectWorld()
    await world.begin()
    for number in range(count):
        world.objects.put(f"job-{number}", body())
    await world.until(lambda: len(world.jobs.runs()) == count)
    measured, calls = rules.measured, []

    def counted(status: JobStatus, *args: Any, **names: Any) -> dict[str, Any]:
        calls.append(status.job_id)
        return measured(status, *args, **names)

    monkeypatch.setattr(rules, "measured", counted)
    metrics = JobMetrics(board, world.jobs.runs, clock=clock, every_s=EVERY_S, may_write=lambda job_id: None)
    await metrics.look()
    assert len(calls) == len(board.told) == MOST_AT_ONCE
    await metrics.look()
    await metrics.look()
    assert len(board.told) == count == len(set(calls))
    await world.close()
