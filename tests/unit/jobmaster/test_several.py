"""Several clusters behind one controller: which a job goes to, and what happens while one is away."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from recmesh.runtime.errors import FailedPrecondition, InvalidArgument, Unavailable, Violation
from recmesh.spec.job import TrainingJob
from services.jobmaster.__main__ import check, several
from services.jobmaster.cluster import Amounts, Capacity, StartOrder
from services.jobmaster.cluster.local import LocalController
from services.jobmaster.cluster.several import Member, SeveralClusters, declared, joined, needs_of
from services.jobmaster.config import JobmasterSettings
from services.jobmaster.domain.clusters import SETTLE_S, UNUSED_S, Bookings, Needs, best, is_allowed, together

GIB = 1 << 30


class Machine(LocalController):
    """One whose room the test says, and whether it answers."""

    def __init__(self, folder: Path, free: Capacity) -> None:
        super().__init__(folder, command=("sleep", "600"))
        self.free, self.is_away, self.asked = free, False, 0

    async def find_again(self) -> None:
        self._answer()
        await super().find_again()

    async def capacity(self, job_id: str = "", spec: TrainingJob | None = None) -> Capacity:
        self.asked += 1
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
async def test_jobs_that_are_planned_together_do_not_all_choose_the_idle_cluster(world: World) -> None:
    await world.several.find_again()
    asked = spec(roles={"worker": {"replicas": 1, "cpu": 2}, "ps": {"replicas": 1, "cpu": 1}})
    rooms = await asyncio.gather(*(world.several.capacity(job, asked) for job in ("one", "two", "three")))
    assert [room.cluster for room in rooms] == ["east", "west", "east"]
    assert (await world.several.capacity("one", asked)).cluster == "east", "it is as it was chosen"
    sizes = {"worker": Amounts(2), "ps": Amounts(1)}
    for job, room in zip(("one", "two", "three"), rooms, strict=True):
        assert room.cpu == {"east": 4, "west": 2}[room.cluster], "plans are bounded by what is free there"
        started = await world.several.start(order(job, cpu=2, spec=asked, sizes=sizes))
        assert started.handle.startswith(room.cluster)
        assert (await world.several.capacity(job)).cluster == room.cluster


@pytest.mark.asyncio
async def test_a_job_that_begins_anew_is_kept_room_where_it_is(world: World) -> None:
    await world.several.find_again()
    asked = spec(roles={"worker": {"replicas": 1, "cpu": 3}})
    first = await world.several.start(order("one", cpu=3, spec=asked))
    await world.several.stop("one", first.name, grace_s=0)
    async with asyncio.timeout(10):
        while (await world.several.processes("one"))[0].exit is None:  # noqa: ASYNC110  # a real process
            await asyncio.sleep(0.02)
    assert (await world.several.capacity("two", asked)).cluster == "east", "nothing of the first one is there now"
    await world.several.forget("two")
    await world.several.start(order("one", "worker-0-2", cpu=3, spec=asked))
    assert (await world.several.capacity("two", asked)).cluster == "west"


@pytest.mark.asyncio
async def test_a_cluster_that_tells_nothing_is_passed_over_and_not_waited_for_each_time(world: World) -> None:
    await world.several.find_again()
    world.east.is_away = True
    for job in ("one", "two", "three"):
        assert (await world.several.start(order(job))).handle.startswith("west/")
    assert world.east.asked == 1
    world.west.is_away = True
    with pytest.raises(Unavailable, match="no cluster that may have job four answers: east, west"):
        await world.several.start(order("four"))
    with pytest.raises(Unavailable, match="no cluster that may have job five answers: east"):
        await world.several.start(order("five", spec=spec(labels={"cluster.name": "east"})))
    world.east.is_away = False
    assert (await world.several.start(order("five"))).handle.startswith("east/"), "nobody else answers"


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
    assert together([(2, 1.5, GIB, 1, ""), (0, 9, 9, 9, "a100")]) == Needs(3.0, 2 * GIB, {"gpu": 2.0}, 1.5, GIB)


def test_a_job_needs_the_least_count_of_each_role() -> None:
    sizes = {"worker": Amounts(2, GIB, 1, "a100"), "ps": Amounts(1, GIB), "evaluator": Amounts(8, GIB)}
    roles = {"worker": {"min": 3}, "ps": {"replicas": 2}, "evaluator": {"min": 0}}
    assert needs_of(order(spec=spec(roles=roles), sizes=sizes)) == Needs(8.0, 5 * GIB, {"a100": 3.0}, 2, GIB)
    assert needs_of(order(cpu=2, memory_bytes=GIB)) == Needs(2.0, GIB, {}, 2, GIB)
    sized = {role: {**roles[role], "cpu": 2, "memory": "1Gi"} for role in ("worker", "ps")}
    assert declared(spec(roles=sized)) == Needs(10.0, 5 * GIB, {}, 2, GIB)


def test_a_process_needs_one_node_and_not_the_sum_of_many() -> None:
    free = {"many": Capacity(64, 64 * GIB, node_cpu=8, node_memory_bytes=8 * GIB), "large": Capacity(16, 16 * GIB)}
    assert best(Needs(8, GIB, most_cpu=8), free) == "many"
    assert best(Needs(12, GIB, most_cpu=12), free) == "large"
    assert best(Needs(1, 12 * GIB, most_memory_bytes=12 * GIB), free) == "large"
    assert best(Needs(32, GIB, most_cpu=32), {"many": free["many"]}) == "many", "it waits there"


def test_what_was_chosen_is_not_free_until_it_has_begun_for_a_while() -> None:
    booked, idle = Bookings(), Capacity(8, 8 * GIB, {"gpu": 2, "a100": 2})
    booked.book("ads", "east", Needs(5, 2 * GIB, {"a100": 1}), 0.0)
    assert booked.left("east", idle, but="x", now=0.0) == Capacity(3, 6 * GIB, {"gpu": 1, "a100": 1})
    assert booked.left("east", idle, but="ads", now=0.0) == booked.left("west", idle, but="x", now=0.0) == idle
    booked.ask("ads", "ps-0-1", Needs(1, GIB))
    booked.ask("ads", "worker-0-1", Needs(4, GIB, {"a100": 1}))
    booked.see("ads", living={"ps-0-1", "worker-0-1"}, begun={"ps-0-1"}, now=1000.0)      # it waits for room
    assert booked.left("east", idle, but="x", now=1000.0).cpu == 3, "what is free was measured before"
    assert booked.left("east", idle, but="x", now=1000.0 + SETTLE_S).cpu == 4
    booked.see("ads", living={"ps-0-1", "worker-0-1"}, begun={"ps-0-1", "worker-0-1"}, now=2000.0)
    assert booked.jobs() == [("ads", "east")]
    booked.see("ads", living={"ps-0-1", "worker-0-1"}, begun=set(), now=2000.0 + SETTLE_S)
    assert booked.jobs() == []


def test_a_job_that_ended_or_never_starts_is_kept_no_room() -> None:
    booked = Bookings()
    booked.book("ended", "east", Needs(5), 0.0)
    booked.ask("ended", "ps-0-1", Needs(1))
    booked.see("ended", living=set(), begun=set(), now=1.0)
    booked.book("dropped", "east", Needs(5), 0.0)
    booked.see("dropped", living=set(), begun=set(), now=UNUSED_S)
    assert booked.jobs() == [("dropped", "east")]
    booked.see("dropped", living=set(), begun=set(), now=UNUSED_S + 1.0)
    booked.see("unknown", living=set(), begun=set(), now=0.0)
    assert booked.jobs() == [] and booked.cluster_of("dropped") == ""


def test_a_job_that_begins_with_less_than_was_thought_is_kept_no_room_for_the_rest() -> None:
    booked, idle = Bookings(), Capacity(8, 8 * GIB)
    booked.book("ads", "east", Needs(4), 0.0)
    booked.ask("ads", "worker-0-1", Needs(1))
    booked.see("ads", living={"worker-0-1"}, begun={"worker-0-1"}, now=1.0)
    booked.see("ads", living={"worker-0-1"}, begun={"worker-0-1"}, now=UNUSED_S)
    assert booked.left("east", idle, but="x", now=UNUSED_S).cpu == 5
    booked.ask("ads", "worker-1-1", Needs(1))
    booked.see("ads", living={"worker-0-1", "worker-1-1"}, begun={"worker-0-1"}, now=UNUSED_S + 2.0)
    assert booked.jobs() == [("ads", "east")], "one waits"
    both = {"worker-0-1", "worker-1-1"}
    booked.see("ads", living=both, begun=both, now=UNUSED_S + 3.0)
    booked.see("ads", living=both, begun=both, now=2 * UNUSED_S + 4.0)
    assert booked.jobs() == []
    booked.book("tenths", "east", Needs(0.3), 0.0)
    three = {f"worker-{index}-1" for index in range(3)}
    for name in three:
        booked.ask("tenths", name, Needs(0.1))
    booked.see("tenths", living=three, begun=three, now=0.0)
    booked.see("tenths", living=three, begun=three, now=SETTLE_S)
    assert booked.jobs() == []


@pytest.mark.asyncio
async def test_looking_at_a_job_tells_that_it_has_begun(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.jobmaster.domain.clusters.SETTLE_S", 0.0)
    await world.several.find_again()
    asked = spec(roles={"worker": {"replicas": 1, "cpu": 3}})
    await world.several.start(order("one", cpu=3, spec=asked, sizes={"worker": Amounts(3)}))
    await world.several.processes("one")                # its cluster's own count has it from here on
    assert (await world.several.capacity("two", asked)).cluster == "east"


@pytest.mark.asyncio
async def test_a_job_that_ended_elsewhere_is_kept_no_room(world: World) -> None:
    await world.several.find_again()
    asked = spec(roles={"worker": {"replicas": 1, "cpu": 3}})
    await world.several.start(order("one", cpu=3, spec=asked))
    await world.east.stop("one", "worker-0-1", grace_s=0)
    async with asyncio.timeout(10):
        while (await world.east.processes("one"))[0].exit is None:  # noqa: ASYNC110  # a real process
            await asyncio.sleep(0.02)
    await world.east.forget("one")
    await world.several.find_again()                    # its bucket was another's meanwhile
    assert (await world.several.capacity("two", asked)).cluster == "east"


def test_refusals_of_several_are_told_by_field_and_by_whom() -> None:
    a, b, c = Violation("gpu", "none"), Violation("gpu", "whole ones"), Violation("image", "none")
    assert joined({"east": [a], "west": [a]}) == [a]
    assert joined({"east": [a]}) == [a]
    assert joined({"east": [a], "west": [b, c]}) == [
        Violation("gpu", "east: none; west: whole ones"), Violation("image", "west: none")
    ]


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
