"""Several clusters behind one controller: which a job goes to, and what happens while one is away."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from recmesh.runtime.errors import FailedPrecondition, InvalidArgument, Unavailable
from recmesh.spec.job import TrainingJob
from services.jobmaster.__main__ import check, several
from services.jobmaster.cluster import Amounts, Capacity, StartOrder
from services.jobmaster.cluster.local import LocalController
from services.jobmaster.cluster.several import Member, SeveralClusters, needs_of
from services.jobmaster.config import JobmasterSettings
from services.jobmaster.domain.clusters import Needs, best, is_allowed, together

GIB = 1 << 30


class Machine(LocalController):
    """One whose room the test says, and whether it answers."""

    def __init__(self, folder: Path, free: Capacity) -> None:
        super().__init__(folder, command=("sleep", "600"))
        self.free, self.is_away = free, False

    async def find_again(self) -> None:
        self._answer()
        await super().find_again()

    async def capacity(self, job_id: str = "") -> Capacity:
        self._answer()
        return self.free

    def _answer(self) -> None:
        if self.is_away:
            raise Unavailable("no answer")


class World:
    def __init__(self, folder: Path) -> None:
        self.east = Machine(folder / "east", Capacity(4, 8 * GIB))
        self.west = Machine(folder / "west", Capacity(2, 16 * GIB))
        self.several = self.another()

    def another(self) -> SeveralClusters:
        return SeveralClusters([
            Member("east", self.east, {"region": "eu"}, {"PATH": "/bin:/usr/bin"}),
            Member("west", self.west, {"region": "us"}, {"PATH": "/bin:/usr/bin"}),
        ])


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = World(tmp_path)
    yield made
    for each in (made.east, made.west):
        for job_id in await each.jobs():
            for process in await each.processes(job_id):
                await each.stop(job_id, process.name, grace_s=0)
        await each.stop_watching()
    await made.several.stop_watching()


def spec(**more: Any) -> TrainingJob:
    return TrainingJob.parse({
        "name": "ads", "model": {"zoo": "wide_deep"},
        "data": {"source": {"files": ["a.parquet"]}, "features": [{"name": "user"}]}, **more,
    })  # fmt: skip


def order(job_id: str = "ads", name: str = "worker-0-1", **more: Any) -> StartOrder:
    given: dict[str, Any] = {"spec": spec(), **more}
    return StartOrder(job_id, name, name.split("-")[0], 0, {}, **given)


@pytest.mark.asyncio
async def test_a_job_goes_where_most_is_idle_and_stays_there(world: World) -> None:
    await world.several.find_again()
    first = await world.several.start(order(cpu=1))
    assert first.handle.startswith("east/")
    world.east.free = Capacity(0.1, GIB)
    second = await world.several.start(order(name="ps-0-1", cpu=1))
    assert second.handle.startswith("east/")            # it stays
    assert (await world.several.capacity("ads")).cpu == 0.1
    other = await world.several.start(order("video", cpu=1))
    assert other.handle.startswith("west/")             # a new one goes elsewhere
    assert await world.several.jobs() == ["ads", "video"]

    heir = world.another()
    await heir.find_again()
    assert [each.handle.partition("/")[0] for each in await heir.processes("ads")] == ["east", "east"]
    third = await heir.start(order(name="worker-1-1", cpu=1))
    assert third.handle.startswith("east/")


@pytest.mark.asyncio
async def test_labels_of_a_job_choose_its_cluster(world: World) -> None:
    await world.several.find_again()
    wanted = spec(labels={"cluster.region": "us", "team": "ads"})
    assert world.several.refusals(wanted) == []
    assert (await world.several.start(order(spec=wanted))).handle.startswith("west/")
    nowhere = spec(labels={"cluster.name": "north"})
    violation, = world.several.refusals(nowhere)
    assert violation.path == "labels"
    assert violation.reason.endswith("there are: east (region: eu); west (region: us)")
    with pytest.raises(FailedPrecondition):
        await world.several.start(order("other", spec=nowhere))
    gpus, = world.several.refusals(spec(roles={"worker": {"gpu": 1}}))
    assert gpus.path == "roles.worker.gpu"               # in the words of those that refuse it


@pytest.mark.asyncio
async def test_of_a_cluster_that_is_away_nothing_is_decided_and_others_go_on(world: World) -> None:
    await world.several.find_again()
    await world.several.start(order(cpu=1))
    await world.several.start(order("video", spec=spec(labels={"cluster.name": "west"})))

    heir = world.another()
    world.west.is_away = True
    await heir.find_again()
    assert [each.handle.partition("/")[0] for each in await heir.processes("ads")] == ["east"]
    with pytest.raises(Unavailable, match="it is not known where job video is: west does not answer"):
        await heir.processes("video")
    with pytest.raises(Unavailable):
        await heir.start(order("video", "worker-0-2"))    # it may run there
    world.east.is_away = True
    with pytest.raises(Unavailable, match="no cluster answers"):
        await world.another().find_again()
    await heir.stop_watching()


@pytest.mark.asyncio
async def test_a_cluster_that_comes_back_is_asked_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.jobmaster.cluster.several.AGAIN_S", 0.01)
    await world.several.find_again()
    await world.several.start(order("video", spec=spec(labels={"cluster.name": "west"})))
    heir, told = world.another(), asyncio.Queue[str]()
    heir.watch(told.put_nowait)
    world.west.is_away = True
    await heir.find_again()
    world.west.is_away = False
    async with asyncio.timeout(10):
        assert await told.get() == "video"
    assert len(await heir.processes("video")) == 1
    await heir.stop_watching()


def test_the_scarcest_need_decides() -> None:
    free = {"a": Capacity(100, GIB), "b": Capacity(10, 10 * GIB), "c": Capacity(50, 50 * GIB, {"gpu": 1, "a100": 1})}
    assert best(Needs(1, GIB), {name: free[name] for name in "ab"}) == "b"
    assert best(Needs(1, 8 * GIB), free) == "c"
    assert best(Needs(1, GIB, {"gpu": 2}), free) == "c"          # it waits where there are any
    assert best(Needs(1, GIB, {"a100": 1}), free) == "c"
    assert best(Needs(), {"x": Capacity(1, GIB), "y": Capacity(1, GIB)}) == "x"
    assert is_allowed({"team": "ads"}, {}) and not is_allowed({"cluster.region": "eu"}, {"region": "us"})
    assert together([(2, 1.5, GIB, 1, ""), (0, 9, 9, 9, "a100")]) == Needs(3.0, 2 * GIB, {"gpu": 2.0})


def test_a_job_needs_the_least_count_of_each_role() -> None:
    sizes = {"worker": Amounts(2, GIB, 1, "a100"), "ps": Amounts(1, GIB), "evaluator": Amounts(8, GIB)}
    roles = {"worker": {"min": 3}, "ps": {"replicas": 2}, "evaluator": {"min": 0}}
    assert needs_of(order(spec=spec(roles=roles), sizes=sizes)) == Needs(8.0, 5 * GIB, {"a100": 3.0})
    assert needs_of(order(cpu=2, memory_bytes=GIB)) == Needs(2.0, GIB)


@pytest.mark.asyncio
async def test_clusters_are_a_list_of_settings(tmp_path: Path) -> None:
    entries = json.dumps([
        {"name": "east", "kind": "local", "labels": {"region": "eu"}, "settings": {"DATA_DIR": f"{tmp_path}/e"}},
        {"name": "west", "kind": "local", "settings": {"CORES": "2"}},
    ])
    env = {"RECMESH_JOBMASTER_CLUSTER": "several", "RECMESH_CLUSTERS": entries, "RECMESH_DATA_DIR": str(tmp_path)}
    settings = JobmasterSettings.from_env(env | {"PATH": "/bin"}, "RECMESH_")
    check(settings)
    made, components = await several(settings, env | {"PATH": "/bin"})
    assert isinstance(made, SeveralClusters) and components == []
    await made.find_again()
    process = await made.start(order(spec=spec(labels={"cluster.region": "eu"})))
    await made.stop("ads", process.name, grace_s=0)
    assert process.handle.startswith("east/") and (tmp_path / "e" / "run" / "jobs" / "ads").is_dir()
    await made.stop_watching()


@pytest.mark.parametrize(("entries", "path", "words"), [
    ("[]", "RECMESH_CLUSTERS", "must name clusters"),
    ('[{"name": "a", "kind": "local"}, {"name": "a", "kind": "yarn"}]', "RECMESH_CLUSTERS", "each once"),
    ('[{"name": "a", "kind": "local", "settings": {"CORS": "2"}}]', "RECMESH_CLUSTERS.a.settings.CORS",
     "did you mean RECMESH_CORES?"),
])  # fmt: skip
def test_a_wrong_list_is_refused(entries: str, path: str, words: str) -> None:
    env = {"RECMESH_JOBMASTER_CLUSTER": "several", "RECMESH_CLUSTERS": entries}
    with pytest.raises(InvalidArgument) as raised:
        check(JobmasterSettings.from_env(env, "RECMESH_"))
    assert raised.value.violations[0].path == path and words in raised.value.violations[0].reason


@pytest.mark.asyncio
async def test_a_cluster_that_lacks_a_setting_is_named() -> None:
    entries = '[{"name": "hadoop", "kind": "yarn"}]'
    env = {"RECMESH_JOBMASTER_CLUSTER": "several", "RECMESH_CLUSTERS": entries}
    with pytest.raises(InvalidArgument, match="cluster hadoop: roles cannot run in YARN's containers"):
        await several(JobmasterSettings.from_env(env, "RECMESH_"), env)
