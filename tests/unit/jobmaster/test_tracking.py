"""Which jobs are told of, when, and with what; real libraries: tests/integration/jobmaster/test_tracking.py."""

import asyncio
from collections.abc import Callable
from itertools import pairwise

import pytest

from recmesh.runtime.errors import InvalidArgument
from recmesh.spec.job import TrainingJob
from recmesh.tracking import Report
from services.jobmaster.app.tracking import Tracking
from services.jobmaster.peers.tracking import Tracker, wanted
from tests.support.job_world import JobWorld, spec

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]


class Notebook:
    """A sink that may refuse."""

    def __init__(self) -> None:
        self.reports: list[Report] = []
        self.errors: dict[str, str] = {}

    async def __call__(self, report: Report) -> dict[str, str]:
        self.reports.append(report)
        return self.errors


def tracking(world: JobWorld, tell: Notebook) -> Tracking:
    return Tracking(lambda: world.jobs.runs().values(), tell, clock=world.clock)


async def look_until(made: Tracking, condition: Callable[[], bool]) -> None:
    while not condition():
        await made.look()
        await asyncio.sleep(1.0)


async def test_a_job_is_told_of_while_it_trains_and_once_at_its_end(world: JobWorld) -> None:
    world.shards.total = 5000
    book = Notebook()
    made = tracking(world, book)
    job_id = await world.submit(spec(tracking={"mlflow": True, "every_s": 2, "experiment": "ads"}))
    await look_until(made, lambda: any(report.ended for report in book.reports))
    for _ in range(3):
        await made.look()
    *live, last = book.reports
    assert len(live) >= 2 and last.ended == "Succeeded" and not any(report.ended for report in live)
    assert [report.step for report in book.reports] == sorted(report.step for report in book.reports)
    assert min(b.at - a.at for a, b in pairwise(live)) >= 2
    run = world.jobs.run_of(job_id)
    assert last.step == run.status.samples and last.at == run.status.ended
    assert last.sinks == ("mlflow",) and last.experiment == "ads" and last.job_id == job_id
    assert {"samples_per_second", "workers", "progress"} <= last.metrics.keys()
    assert last.params["owner"] == run.spec.owner and any(name.startswith("model.") for name in last.params)


async def test_an_end_that_was_not_taken_is_told_again_and_the_job_says_why(world: JobWorld) -> None:
    book = Notebook()
    made = tracking(world, book)
    job_id = await world.submit(spec(tracking={"tensorboard": True}))
    await world.until_phase(job_id, "Succeeded")
    book.errors = {"tensorboard": "disk full"}
    await made.look()
    await made.look()
    book.errors = {}
    await made.look()
    await made.look()
    assert [report.ended for report in book.reports] == ["Succeeded"] * 3
    assert "tensorboard takes no metrics: disk full" in world.jobs.run_of(job_id).status.notes


async def test_jobs_that_do_not_ask_are_not_told_of(world: JobWorld) -> None:
    book = Notebook()
    made = tracking(world, book)
    job_id = await world.submit(spec())
    await world.until_phase(job_id, "Succeeded")
    await made.look()
    assert book.reports == []


def of(**asked: object) -> TrainingJob:
    return TrainingJob.parse(spec(tracking=asked))


async def test_what_cannot_be_is_refused_with_what_is_missing() -> None:
    nowhere = Tracker(tensorboard="/data/tensorboard", mlflow="")
    assert [item.path for item in nowhere.refusals(of(tensorboard=True, mlflow=True))][-1:] == ["tracking.mlflow"]
    assert "RECMESH_MLFLOW_URI" in nowhere.refusals(of(mlflow=True))[0].reason
    assert wanted(of(tensorboard=True, mlflow=True)) == ("tensorboard", "mlflow")
    with pytest.raises(InvalidArgument, match="tracking"):
        of()


async def test_a_library_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.jobmaster.peers.tracking.find_spec", lambda name: None)
    found = Tracker(tensorboard="/data/tensorboard", mlflow="").refusals(of(tensorboard=True))
    assert [(item.path, "recmesh[tensorboard]" in item.reason) for item in found] == [("tracking.tensorboard", True)]
