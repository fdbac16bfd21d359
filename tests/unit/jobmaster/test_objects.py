"""Jobs as objects, on virtual time: what is written first, what follows what, and what is left when something dies."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
import pytest_asyncio

from recmesh.crd.kinds import FINALIZER
from recmesh.crd.objects import REQUEST
from recmesh.crd.telling import Ref, duration
from recmesh.runtime.errors import InvalidArgument, Unavailable
from recmesh.spec.job import TrainingJob
from services.jobmaster.domain import objects as rules
from services.jobmaster.domain.job import Intent, Size
from services.jobmaster.domain.objects import Resize, Scale
from tests.support.job_world import spec
from tests.support.object_world import NAMESPACE, ObjectWorld

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]


@pytest_asyncio.fixture
async def world() -> AsyncIterator[ObjectWorld]:
    made = ObjectWorld()    # each test begins it: virtual time begins with the test
    yield made
    await made.close()


def body(**changes: Any) -> dict[str, Any]:
    """The `spec` of an object."""
    return {name: value for name, value in spec(**changes).items() if name != "name"}


async def test_an_object_becomes_a_job_with_a_finalizer_and_says_how_it_ends(world: ObjectWorld) -> None:
    await world.begin()
    world.objects.put("ads", body())
    await world.until_told("ads", phase="Succeeded")
    told = world.status("ads")
    assert (told["job_id"], told["progress"], told["samples"]) == ("ads", "100%", world.shards.total)
    assert world.objects.things[NAMESPACE, "ads"]["metadata"]["finalizers"] == [FINALIZER]
    assert world.condition("ads", "Complete")["status"] == "True"
    reasons = [event.reason for event in world.objects.events]
    assert reasons[0] == "Planned" and reasons[-1] == "Completed"


async def test_an_object_is_one_job_however_often_jobmaster_dies(world: ObjectWorld) -> None:
    await world.begin()
    world.objects.put("ads", body())
    await world.until(lambda: bool(world.jobs.runners))
    for _ in range(3):
        await world.restart_jobmaster()
    await world.until_told("ads", phase="Succeeded")
    assert list(world.jobs.runners) == ["ads"] and len(world.models.registered) == 1
    names = [event.name_suffix for event in world.objects.events]
    assert len(names) == len(set(names))


async def test_a_job_by_rest_is_written_as_an_object_before_it_is_one(world: ObjectWorld) -> None:
    await world.begin()
    world.objects.away = True
    with pytest.raises(Unavailable):
        await world.submit(spec(), request_id="once")
    assert not world.jobs.runners
    world.objects.away = False
    world.objects.lost_answers = 1
    assert await world.submit(spec(), request_id="once") == "ads"
    assert await world.submit(spec(), request_id="once") == "ads"
    (thing,) = world.objects.things.values()
    assert thing["metadata"]["annotations"][REQUEST] == "once"
    assert await world.submit(spec(), request_id="twice") != "ads"
    assert len(world.objects.things) == len(world.jobs.runners) == 2


async def test_an_object_of_a_jobmaster_that_died_then_becomes_the_same_job(world: ObjectWorld) -> None:
    await world.begin()
    await world.jobs._write(orjson.dumps(spec()).decode(), request_id="once", submitter="rest", digest="")
    await world.until(lambda: "ads" in world.jobs.runners)
    assert await world.submit(spec(), request_id="once") == "ads"
    assert len(world.objects.things) == len(world.jobs.runners) == 1
    assert world.jobs.run_of("ads").job.submitter == "rest"


async def test_an_object_that_names_the_request_of_another_ones_job_is_refused(world: ObjectWorld) -> None:
    await world.begin()
    await world.submit(spec(), request_id="once")
    world.objects.put("thief", body(), annotations={REQUEST: "once"})
    await world.until_told("thief", phase="Refused")
    assert world.status("thief")["reason"] == "RequestReused" and len(world.jobs.runners) == 1


async def test_counts_follow_the_object_and_the_object_follows_calls(world: ObjectWorld) -> None:
    await world.begin()
    world.step_s = 5.0
    thing = world.objects.put("ads", body())
    await world.until_told("ads", phase="Running", ready_workers="2/2")
    world.objects.put("ads", thing["spec"] | {"roles": {"ps": {"replicas": 2}, "worker": {"replicas": 3}}})
    await world.until_told("ads", workers=3, ready_workers="3/3")
    await world.jobs.scale("ads", role="worker", replicas=1, clear=False)
    assert world.objects.things[NAMESPACE, "ads"]["spec"]["roles"]["worker"]["replicas"] == 1
    await world.until_told("ads", ready_workers="1/1")
    await world.jobs.scale("ads", role="worker", replicas=0, clear=True)
    assert "replicas" not in world.objects.things[NAMESPACE, "ads"]["spec"]["roles"]["worker"]
    await world.until(lambda: not world.status("ads")["roles"][1]["pinned"])
    with pytest.raises(InvalidArgument):
        await world.jobs.scale("ads", role="worker", replicas=99, clear=False)


async def test_a_call_that_the_api_server_does_not_hear_changes_nothing(world: ObjectWorld) -> None:
    await world.begin()
    world.step_s = 5.0
    world.objects.put("ads", body())
    await world.until_told("ads", phase="Running")
    world.objects.away = True
    with pytest.raises(Unavailable):
        await world.jobs.scale("ads", role="worker", replicas=1, clear=False)
    assert world.jobs.run_of("ads").job.intent.replicas == {}


async def test_what_cannot_be_changed_is_told_and_the_job_goes_on(world: ObjectWorld) -> None:
    await world.begin()
    world.step_s = 5.0
    thing = world.objects.put("ads", body())
    await world.until_told("ads", phase="Running")
    world.objects.put("ads", thing["spec"] | {"backoff_limit": 3})
    await world.until(lambda: world.condition("ads", "Synced").get("status") == "False")
    told = world.condition("ads", "Synced")
    assert told["reason"] == "NotChangeable" and told["message"].startswith("backoff_limit: cannot be changed")
    world.objects.put("ads", thing["spec"])
    await world.until(lambda: world.condition("ads", "Synced")["status"] == "True")
    assert world.phase("ads") == "Running" and world.status("ads")["observedGeneration"] == 3


@pytest.mark.parametrize(
    "moment", ["Pending", "Starting", "Running", "Scaling", "Recovering", "Suspended", "Succeeded"]
)
async def test_a_deleted_object_leaves_nothing_whenever_it_is_deleted(world: ObjectWorld, moment: str) -> None:
    await world.begin()
    thing = world.objects.put("ads", body())
    if moment in ("Scaling", "Recovering", "Suspended"):
        world.shards.total = 2000
        await world.until_told("ads", phase="Running", ready_workers="2/2")
    if moment == "Scaling":
        world.objects.put("ads", thing["spec"] | {"roles": {"ps": {"replicas": 3}, "worker": {"replicas": 2}}})
    elif moment == "Recovering":
        world.cluster.kill("ads", "ps-0-1")
    elif moment == "Suspended":
        world.objects.put("ads", thing["spec"] | {"suspend": True})
    if moment != "Pending":
        await world.until(lambda: "ads" in world.jobs.runners and world.phase("ads") == moment)
    world.objects.ask_to_delete("ads")
    await world.until(lambda: not world.objects.things and not world.jobs.runners)
    assert world.cluster.alive("ads") == []
    assert await world.jobs.context.store.job_ids() == []


async def test_the_finalizer_stays_until_snapshots_are_gone(world: ObjectWorld) -> None:
    await world.begin()
    world.objects.put("ads", body())
    await world.until_told("ads", phase="Succeeded")
    world.checkpoints.away = True
    world.objects.ask_to_delete("ads")
    await asyncio.sleep(60)
    assert (NAMESPACE, "ads") in world.objects.things
    world.checkpoints.away = False
    await world.until(lambda: not world.objects.things)


async def test_a_job_whose_object_was_torn_away_goes_too(world: ObjectWorld) -> None:
    await world.begin()
    world.step_s = 5.0
    thing = world.objects.put("ads", body())
    await world.until_told("ads", phase="Running")
    now = world.objects.things[NAMESPACE, "ads"]
    now["metadata"]["finalizers"] = []
    world.objects.ask_to_delete("ads")
    await world.until(lambda: not world.jobs.runners)
    assert thing["metadata"]["uid"] == now["metadata"]["uid"]


async def test_a_job_that_has_lived_its_time_takes_its_object_along(world: ObjectWorld) -> None:
    await world.begin()
    world.objects.put("ads", body(ttl_after_end_s=30))
    await world.until_told("ads", phase="Succeeded")
    await world.until(lambda: not world.objects.things and not world.jobs.runners)


async def test_a_wrong_object_is_refused_once_and_taken_when_it_is_mended(world: ObjectWorld) -> None:
    await world.begin()
    world.objects.put("ads", body(init_from={"job": "nobody"}))
    await world.until_told("ads", phase="Refused")
    assert "init_from" in world.status("ads")["message"] and not world.jobs.runners
    calls = world.objects.statuses
    await asyncio.sleep(300)
    assert world.objects.statuses == calls
    world.objects.ask_to_delete("ads")
    await world.until(lambda: not world.objects.things)
    world.objects.put("ads", body(init_from={"job": "nobody"}))        # another one, of the same generation
    await world.until_told("ads", phase="Refused")
    world.objects.put("ads", body())
    await world.until_told("ads", phase="Succeeded")


async def test_a_mesh_that_is_away_is_waited_for_and_the_object_says_so(world: ObjectWorld) -> None:
    await world.begin()
    world.shards.away = True
    world.objects.put("ads", body())
    await world.until(lambda: world.condition("ads", "Accepted").get("status") == "Unknown")
    world.shards.away = False
    await world.until_told("ads", phase="Succeeded")


async def test_progress_is_told_at_a_bounded_rate(world: ObjectWorld) -> None:
    await world.begin()
    world.step_s = 10.0
    world.objects.put("ads", body())
    await world.until_told("ads", phase="Running", ready_workers="2/2")
    await asyncio.sleep(30)
    before, samples = world.objects.statuses, world.status("ads")["samples"]
    await asyncio.sleep(100)
    assert world.status("ads")["samples"] > samples
    assert world.objects.statuses - before <= 11


# -- rules -----------------------------------------------------------------------------------------------


def job(**changes: Any) -> TrainingJob:
    return TrainingJob.parse(spec(**changes))


@pytest.mark.parametrize(("roles", "intent", "wanted"), [
    ({}, Intent(), ()),
    ({"worker": {"replicas": 4}}, Intent(), (Scale("worker", 4),)),
    ({"worker": {"replicas": 4}}, Intent(replicas={"worker": 4}), ()),
    ({"worker": {}}, Intent(), (Scale("worker", None),)),
    ({"worker": {}}, Intent(cleared=("worker",)), ()),
    ({"worker": {"replicas": 2, "cpu": 2}}, Intent(), (Resize("worker", cpu=2.0),)),
    ({"worker": {"replicas": 2, "cpu": 2}}, Intent(sizes={"worker": Size(cpu=2.0)}), ()),
    ({"worker": {"replicas": 2, "memory": "1Gi"}}, Intent(), (Resize("worker", memory_bytes=1 << 30),)),
])
async def test_what_an_object_wants_of_its_roles(roles: dict[str, Any], intent: Intent, wanted: Any) -> None:
    asked = job(roles={"ps": {"replicas": 2}, "worker": {"replicas": 2}} | roles)
    assert rules.wishes(asked, job(), intent) == rules.Wishes(wanted)


@pytest.mark.parametrize(("changes", "fixed"), [
    ({"priority": 5}, ("priority",)),
    ({"data": {"source": {"files": ["/data/y.parquet"]}, "features": [{"name": "user"}]}}, ("data",)),
    ({"roles": {"ps": {"replicas": 2}, "worker": {"replicas": 2, "max": 9}}}, ("roles.worker.max",)),
    ({"name": "other"}, ("name",)),
])
async def test_what_cannot_follow_an_object_any_more(changes: dict[str, Any], fixed: tuple[str, ...]) -> None:
    assert rules.wishes(job(**changes), job(), Intent()).fixed == fixed


async def test_a_size_cannot_be_taken_away() -> None:
    sized = job(roles={"ps": {"replicas": 2}, "worker": {"replicas": 2, "cpu": 1}})
    assert rules.wishes(job(), sized, Intent()).fixed == ("roles.worker.cpu",)


@pytest.mark.parametrize(("seconds", "text"), [
    (0, "0s"), (45, "45s"), (200, "3m20s"), (3600, "1h"), (7380, "2h3m"), (90_000, "1d1h"), (86_460, "1d1m"),
])
async def test_durations_have_two_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text


# -- suspend and other controllers -----------------------------------------------------------------------


async def test_an_object_is_suspended_and_goes_on(world: ObjectWorld) -> None:
    await world.begin()
    world.shards.total = 2000
    thing = world.objects.put("ads", body())
    await world.until_told("ads", phase="Running", ready_workers="2/2")
    world.objects.put("ads", thing["spec"] | {"suspend": True})
    await world.until_told("ads", phase="Suspended", ready_workers="0/0", ready_ps="0/0", workers=0)
    assert world.condition("ads", "Suspended")["status"] == "True"
    assert world.condition("ads", "Synced")["status"] == "True"
    assert world.cluster.alive("ads") == []
    world.objects.put("ads", thing["spec"] | {"suspend": False})
    await world.until_told("ads", phase="Running")
    assert world.condition("ads", "Suspended")["status"] == "False"
    await world.until_told("ads", phase="Succeeded", samples=2000)
    assert world.condition("ads", "Complete")["status"] == "True"


async def test_calls_that_suspend_are_written_in_the_object(world: ObjectWorld) -> None:
    await world.begin()
    world.step_s = 5.0
    world.objects.put("ads", body())
    await world.until_told("ads", phase="Running")
    world.objects.away = True
    with pytest.raises(Unavailable):
        await world.jobs.suspend("ads", reason="")
    assert not world.jobs.run_of("ads").job.intent.suspend
    world.objects.away = False
    await world.jobs.suspend("ads", reason="tonight")
    assert world.objects.things[NAMESPACE, "ads"]["spec"]["suspend"] is True
    await world.until_told("ads", phase="Suspended", message="tonight")
    await world.jobs.resume("ads")
    assert world.objects.things[NAMESPACE, "ads"]["spec"]["suspend"] is False
    await world.until_told("ads", phase="Running")


async def test_an_object_of_another_controller_is_left_alone(world: ObjectWorld) -> None:
    await world.begin()
    world.objects.put("theirs", body(managed_by="kueue.x-k8s.io/multikueue"))
    world.objects.put("ours", body(managed_by="recmesh.dev/jobmaster"))
    await world.until_told("ours", phase="Succeeded")
    theirs = world.objects.things[NAMESPACE, "theirs"]
    assert "status" not in theirs and "finalizers" not in theirs["metadata"] and list(world.jobs.runners) == ["ours"]
    theirs["status"] = {"job_id": "far", "phase": "Succeeded"}        # as its own controller tells
    theirs["spec"]["ttl_after_end_s"] = 0
    await asyncio.sleep(60)
    assert (NAMESPACE, "theirs") in world.objects.things
    with pytest.raises(InvalidArgument) as refused:
        await world.submit(spec(name="rest", managed_by="kueue.x-k8s.io/multikueue"))
    assert [item.path for item in refused.value.violations] == ["managed_by"]


async def test_objects_are_let_go_with_the_namespace_that_takes_jobmaster_along(world: ObjectWorld) -> None:
    await world.begin()
    for name in ("ads", "feed"):
        world.objects.put(name, body())
        await world.until_told(name, phase="Succeeded")
    assert world.reconciler is not None
    await world.reconciler.stop()       # a restart: jobmaster comes again
    assert all(thing["metadata"]["finalizers"] for thing in world.objects.things.values())
    world.objects.ending.add(NAMESPACE)
    await world.reconciler.stop()
    assert not any(thing["metadata"]["finalizers"] for thing in world.objects.things.values())


async def test_a_turn_that_outlasts_its_bucket_ends_in_peace_and_the_next_holder_tells(
    world: ObjectWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await world.begin()
    await asyncio.sleep(3.0)            # it was seen which buckets are held
    told, passes = asyncio.Event(), asyncio.Event()
    tell = world.objects.tell_status

    async def slowly(ref: Ref, status: dict[str, Any]) -> dict[str, Any]:
        told.set()
        await passes.wait()
        return await tell(ref, status)

    monkeypatch.setattr(world.objects, "tell_status", slowly)
    world.objects.put("ads", body())
    await told.wait()
    await world.jobs.follow()           # all buckets are given away
    await asyncio.sleep(3.0)            # and that was seen
    passes.set()
    await asyncio.sleep(3.0)
    assert not [record for record in caplog.records if record.exc_info], "the turn failed by a mistake"
    await world.jobs.lead()
    await world.until_told("ads", phase="Succeeded")
