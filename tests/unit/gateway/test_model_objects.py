"""ModelService objects over fakes: what becomes of them, what is told, and who does it of several gateways."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from recmesh.crd.kinds import MODEL_FINALIZER
from recmesh.crd.telling import EVENTS_BURST, Ref, Told
from recmesh.runtime.errors import FailedPrecondition, InvalidArgument, MeshError, PermissionDenied, Unavailable
from services.gateway.app.glances import GOOD_FOR_S
from services.gateway.app.objects import FIRST_RELOAD_S, ModelObjects
from services.gateway.domain import objects as rules
from services.gateway.domain.models import ModelVersion, Registration, State
from services.gateway.domain.objects import Act
from services.gateway.domain.traffic import Traffic
from services.gateway.store.presence import Presence
from services.gateway.store.webhooks import OBJECTS, Lease
from tests.support.gateway import FakeBucket, FakeEntry, Gateway, gateway
from tests.support.gateways import following
from tests.support.things import FakeThings

pytestmark = pytest.mark.asyncio


class Follower:
    """A gateway that follows objects; looks are the test's."""

    def __init__(self, made: Gateway, things: FakeThings, leases: FakeBucket, identity: str = "a") -> None:
        self.made, self.things = made, things
        self.lease = Lease(leases, identity=identity, clock=made.clock, key=OBJECTS)
        self.objects = ModelObjects(
            things, made.models, self.lease, Presence(leases, identity=identity), namespace="ads", clock=made.clock
        )
        self.seen: set[tuple[str, str]] = set()

    async def start(self) -> "Follower":
        await self.made.models.start()
        await self.made.settled()
        await self.objects.beat()
        return self

    async def look(self) -> None:
        """At all objects, and at those that are gone; until nothing changes any more."""
        for _ in range(6):
            for key in [*self.things.things, *(self.seen - self.things.things.keys())]:
                self.seen.add(key)
                self.objects._reconciling.objects = dict(self.things.things)     # as its watch would
                try:
                    await self.objects.look(key, self.things.things.get(key))
                except Unavailable:
                    pass
            await self.made.settled()
            self.made.clock.time += GOOD_FOR_S
            await self.objects.beat()

    def serves(self, name: str, version: str) -> bool:
        return self.made.models.serving.is_ready(name, version)


async def follower(tmp_path: Path) -> Follower:
    return await Follower(gateway(tmp_path), FakeThings(MODEL_FINALIZER), FakeBucket()).start()


def reasons(follower: Follower) -> list[str]:
    return [event.reason for event in follower.things.events]


async def test_an_object_becomes_a_served_version_and_says_so(tmp_path: Path) -> None:
    one = await follower(tmp_path)
    one.things.put("tiny", {"uri": one.made.folder()})
    await one.look()
    assert one.serves("tiny", "1")
    thing = one.things.things["ads", "tiny"]
    assert thing["metadata"]["finalizers"] == [MODEL_FINALIZER]
    told = thing["status"]
    assert (told["phase"], told["model"], told["version"], told["ready"]) == ("Ready", "tiny", "1", "1/1")
    assert (told["observedGeneration"], told["ready_versions"], told["framework"]) == (1, ["1"], "torch")
    assert one.things.condition("tiny", "Ready")["status"] == one.things.condition("tiny", "Synced")["status"] == "True"
    assert reasons(one)[-1] == "Ready"
    statuses = one.things.statuses
    await one.look()
    assert one.things.statuses == statuses      # nothing new, nothing told


async def test_another_folder_is_another_version_and_the_first_text_the_first_one_again(tmp_path: Path) -> None:
    one = await follower(tmp_path)
    first, second = one.made.folder(version="1"), one.made.folder(version="2")
    for uri, version in ((first, "1"), (second, "2"), (first, "1")):
        one.things.put("tiny", {"uri": uri})
        await one.look()
        assert one.things.status("tiny")["version"] == version and one.things.status("tiny")["phase"] == "Ready"
        assert one.serves("tiny", version) and one.made.models.serving.current("tiny") is not None
        assert one.things.status("tiny")["ready_versions"] == [version]
    assert len(await one.made.models.versions("tiny")) == 2


async def test_load_false_takes_it_out_of_memory_and_true_brings_it_back(tmp_path: Path) -> None:
    one = await follower(tmp_path)
    uri = one.made.folder()
    one.things.put("tiny", {"uri": uri, "load": False})
    await one.look()
    assert one.things.status("tiny")["phase"] == "Unloaded" and not one.serves("tiny", "1")
    assert one.things.condition("tiny", "Ready")["reason"] == "NotLoaded"
    for load, phase in ((True, "Ready"), (False, "Unloaded"), (True, "Ready")):
        one.things.put("tiny", {"uri": uri, "load": load})
        await one.look()
        assert one.things.status("tiny")["phase"] == phase and one.serves("tiny", "1") is load


async def test_rules_of_traffic_are_held_to_and_taken_back(tmp_path: Path) -> None:
    one = await follower(tmp_path)
    uri = one.made.folder()
    one.things.put("tiny", {"uri": uri, "traffic": {"versions": "all"}})
    await one.look()
    assert one.made.models.serving.traffic("tiny").keeps_all
    assert one.things.status("tiny")["traffic"]["versions"] == "all"
    await one.made.models.set_traffic("tiny", Traffic(latest=3))
    await one.look()
    assert one.made.models.serving.traffic("tiny").keeps_all
    one.things.put("tiny", {"uri": uri})
    await one.look()
    assert one.made.models.serving.traffic("tiny") == Traffic() and "traffic" not in one.things.status("tiny")
    await one.made.models.set_traffic("tiny", Traffic(latest=3))
    await one.look()
    assert one.made.models.serving.traffic("tiny") == Traffic(latest=3)     # of which it says nothing


async def test_rules_that_name_a_version_that_is_not_there_are_told(tmp_path: Path) -> None:
    one = await follower(tmp_path)
    one.things.put("tiny", {"uri": one.made.folder(), "traffic": {"weights": {"1": 1, "7": 1}}})
    await one.look()
    synced = one.things.condition("tiny", "Synced")
    assert synced["status"] == "False" and "7" in synced["message"]
    assert one.things.status("tiny")["phase"] == "Ready"


def conflict(follower: Follower, name: str) -> str:
    """What an object is told of rules that are not the model's; empty: they are."""
    synced = follower.things.condition(name, "Synced")
    assert (synced["reason"], synced["status"]) in (("TrafficConflict", "False"), ("Synced", "True"))
    return str(synced["message"])


async def two_with_rules(tmp_path: Path, older: object, newer: object) -> Follower:
    """Objects `z` and `a` of one model; `z` is the older one."""
    one = await follower(tmp_path)
    for name, version, traffic, created in (("a", "1", newer, "12"), ("z", "2", older, "11")):
        spec = {"model": "tiny", "uri": one.made.folder(version=version), "traffic": traffic}
        one.things.put(name, spec, creationTimestamp=f"2026-11-23T{created}:00:00Z")
    await one.look()
    return one


SECOND = "models/tiny/2"
ALL, THREE = {"versions": "all"}, {"versions": {"latest": 3}}


async def test_of_two_objects_with_rules_of_one_model_the_older_s_count_and_the_other_says_so(tmp_path: Path) -> None:
    one = await two_with_rules(tmp_path, ALL, THREE)
    assert one.made.models.serving.traffic("tiny").keeps_all and conflict(one, "z") == ""
    assert "are those of ModelService ads/z," in conflict(one, "a")
    assert "traffic" not in one.things.status("a") and one.things.status("z")["traffic"]["versions"] == "all"
    assert one.things.status("a")["phase"] == one.things.status("z")["phase"] == "Ready"
    statuses, revision = one.things.statuses, one.made.bucket.beside.values["tiny"].revision
    await one.look()
    assert (one.things.statuses, one.made.bucket.beside.values["tiny"].revision) == (statuses, revision)


async def test_of_objects_of_one_second_the_first_name_s_rules_count(tmp_path: Path) -> None:
    one = await follower(tmp_path)
    uri = one.made.folder()
    for name, traffic in (("b", ALL), ("a", THREE)):
        one.things.put(name, {"model": "tiny", "uri": uri, "traffic": traffic})
    await one.look()
    assert one.made.models.serving.traffic("tiny") == Traffic(latest=3) and "ads/a" in conflict(one, "b")


@pytest.mark.parametrize("end", ["deleted", "without rules", "gone"])
async def test_the_other_object_s_rules_count_once_the_older_sets_none(tmp_path: Path, end: str) -> None:
    one = await two_with_rules(tmp_path, ALL, THREE)
    if end == "deleted":
        one.things.ask_to_delete("z")
        await one.objects.look(("ads", "z"), one.things.things["ads", "z"])
        assert one.made.models.serving.traffic("tiny") == Traffic(latest=3), "at once, not by the other one's look"
    elif end == "without rules":
        one.things.put("z", {"model": "tiny", "uri": SECOND})
        await one.objects.look(("ads", "z"), one.things.things["ads", "z"])
        assert one.made.models.serving.traffic("tiny") == Traffic(latest=3), "at once, not by the other one's look"
    else:
        del one.things.things["ads", "z"]          # its finalizer was taken away by hand
    await one.look()
    assert one.made.models.serving.traffic("tiny") == Traffic(latest=3) and conflict(one, "a") == ""
    assert one.things.status("a")["traffic"]["versions"] == {"latest": 3}
    assert "traffic" not in one.things.status("z")


async def test_rules_that_do_not_fit_when_their_turn_comes_leave_none(tmp_path: Path) -> None:
    one = await two_with_rules(tmp_path, ALL, {"weights": {"1": 1, "7": 1}})
    one.things.put("z", {"model": "tiny", "uri": SECOND})
    await one.look()
    assert one.made.models.serving.traffic("tiny") == Traffic() and "traffic" not in one.things.status("a")
    synced = one.things.condition("a", "Synced")
    assert synced["status"] == "False" and "7" in synced["message"] and synced["reason"] != "TrafficConflict"


async def test_an_older_object_that_is_given_rules_later_has_its_way(tmp_path: Path) -> None:
    one = await two_with_rules(tmp_path, None, THREE)
    assert one.made.models.serving.traffic("tiny") == Traffic(latest=3) and conflict(one, "a") == ""
    one.things.put("z", {"model": "tiny", "uri": SECOND, "traffic": ALL})
    await one.look()
    assert one.made.models.serving.traffic("tiny").keeps_all and "ads/z" in conflict(one, "a")
    one.things.ask_to_delete("a")
    await one.look()
    assert one.made.models.serving.traffic("tiny").keeps_all, "another one's rules do not go with it"


async def test_a_refused_object_keeps_the_rules_that_it_had_set_and_claims_no_others(tmp_path: Path) -> None:
    one = await two_with_rules(tmp_path, {"shadows": 1}, THREE)
    assert one.things.status("z")["phase"] == "Refused"
    assert one.made.models.serving.traffic("tiny") == Traffic(latest=3) and conflict(one, "a") == ""
    for traffic, phase in ((ALL, "Ready"), ({"shadows": 1}, "Refused")):
        one.things.put("z", {"model": "tiny", "uri": SECOND, "traffic": traffic})
        await one.look()
        assert one.things.status("z")["phase"] == phase
        assert one.made.models.serving.traffic("tiny").keeps_all and "ads/z" in conflict(one, "a")


async def test_objects_of_two_namespaces_have_rules_of_their_own(tmp_path: Path) -> None:
    one = await follower(tmp_path)
    one.things.put("tiny", {"uri": one.made.folder(), "traffic": THREE})
    one.things.put("tiny", {"uri": one.made.folder("play--tiny"), "traffic": ALL}, namespace="play")
    await one.look()
    assert one.made.models.serving.traffic("tiny") == Traffic(latest=3)
    assert one.made.models.serving.traffic("play--tiny").keeps_all


@pytest.mark.parametrize(("spec", "word"), [
    ({"uri": "models/none/1"}, "models/none/1 is not there"),
    ({"uri": "models/tiny/1", "serving": {"batch": 0}}, "serving"),
    ({"uri": "models/tiny/1", "traffic": {"latest": 3}}, "traffic.latest: is not known"),
    ({"uri": "models/tiny/1", "framework": "tensorflow"}, "model.json says torch"),
])  # fmt: skip
async def test_what_is_wrong_is_told_in_the_status(tmp_path: Path, spec: dict[str, Any], word: str) -> None:
    one = await follower(tmp_path)
    one.made.folder()
    one.things.put("tiny", spec)
    await one.look()
    told = one.things.status("tiny")
    assert told["phase"] == "Refused" and word in told["message"]
    assert one.things.condition("tiny", "Accepted")["status"] == "False"
    assert [event.is_warning for event in one.things.events] == [True]
    one.things.put("tiny", {"uri": "models/tiny/1"})
    await one.look()
    assert one.things.status("tiny")["phase"] == "Ready"


async def test_a_version_that_cannot_be_loaded_says_why_and_is_tried_again(tmp_path: Path) -> None:
    one = await follower(tmp_path)
    one.made.runtimes.broken["tiny/1"] = InvalidArgument("no such operator", reason="BAD_PROGRAM")
    one.things.put("tiny", {"uri": one.made.folder()})
    await one.look()
    told = one.things.status("tiny")
    assert (told["phase"], told["reason"]) == ("Failed", "BadProgram") and "no such operator" in told["message"]
    one.made.runtimes.broken.clear()
    await one.look()
    assert one.things.status("tiny")["phase"] == "Failed"
    one.made.clock.time += FIRST_RELOAD_S
    await one.objects.beat()
    await one.look()
    assert one.things.status("tiny")["phase"] == "Ready"


async def test_a_newer_version_of_a_job_is_not_worked_against(tmp_path: Path) -> None:
    one = await follower(tmp_path)
    one.things.put("tiny", {"uri": one.made.folder()})
    await one.look()
    await one.made.models.register(Registration("tiny", "", one.made.folder(version="2"), "torch", load=True))
    await one.look()
    told = one.things.status("tiny")
    assert (told["phase"], told["ready_versions"]) == ("Unloaded", ["2"]) and "replaced by version 2" in told["message"]


async def test_a_deleted_object_takes_its_versions_along_and_no_others(tmp_path: Path) -> None:
    one = await follower(tmp_path)
    await one.made.models.register(Registration("tiny", "", one.made.folder(version="1"), "torch", load=True))
    one.things.put("tiny", {"uri": one.made.folder(version="2")})
    one.things.put("other", {"uri": one.made.folder("other"), "traffic": {"versions": "all"}})
    await one.look()
    assert one.things.status("tiny")["version"] == "2"
    one.things.ask_to_delete("tiny")
    one.things.ask_to_delete("other")
    await one.look()
    assert one.things.things == {}
    assert [item.key for item in await one.made.models.versions()] == ["tiny/1"]
    assert one.made.models.serving.find("other") is None and one.made.models.serving.traffic("other") == Traffic()


@pytest.mark.parametrize(("error", "reason"), [
    (Unavailable("NATS is away", reason="NO_NATS"), "NoNats"),
    (FailedPrecondition("it is in use", reason="IN_USE"), "InUse"),
])  # fmt: skip
@pytest.mark.parametrize("act", ["unregister", "set_traffic"])
async def test_why_an_object_is_not_deleted_yet_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: MeshError, reason: str, act: str
) -> None:
    one = await follower(tmp_path)
    await one.made.models.register(Registration("tiny", "", one.made.folder(version="1"), "torch", load=True))
    one.things.put("tiny", {"uri": one.made.folder(version="2"), "traffic": {"versions": "all"}})
    await one.look()
    generation, writes = one.things.status("tiny")["observedGeneration"], one.things.statuses

    async def refuse(*args: Any) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(one.made.models, act, refuse)
        one.things.ask_to_delete("tiny")
        await one.look()
        told = one.things.status("tiny")
    assert (told["phase"], told["reason"], told["model"], told["version"]) == ("Deleting", reason, "tiny", "2")
    assert told["message"] == f"it is not deleted yet: {error.message}" and told["observedGeneration"] == generation
    synced = one.things.condition("tiny", "Synced")
    assert (synced["status"], synced["reason"], synced["message"]) == ("False", reason, told["message"])
    assert one.things.condition("tiny", "Accepted")["status"] == "True"
    assert one.things.statuses == writes + 1, "told once, however often it was tried"
    assert (one.things.events[-1].reason, one.things.events[-1].is_warning) == (reason, True)
    await one.look()
    assert one.things.things == {} and [item.key for item in await one.made.models.versions()] == ["tiny/1"]


class Counted(FakeBucket):
    """A registry that counts what is asked of it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    async def get(self, key: str) -> FakeEntry | None:
        self.calls.append("get")
        return await super().get(key)

    async def keys(self, prefix: str = "") -> Sequence[str]:
        self.calls.append("keys")
        return await super().keys(prefix)

    async def entries(self, prefix: str = "") -> Sequence[FakeEntry]:
        self.calls.append("entries")
        return [self.values[key] for key in sorted(self.values) if key.startswith(prefix)]


async def test_one_reading_of_the_registry_serves_all_objects_that_rest(tmp_path: Path) -> None:
    bucket = Counted()
    one = await Follower(gateway(tmp_path, bucket=bucket), FakeThings(MODEL_FINALIZER), FakeBucket()).start()
    names = [f"m{number}" for number in range(20)]
    for name in names:
        one.things.put(name, {"uri": one.made.folder(name), "load": name != "m0"})
    await one.look()
    assert {one.things.status(name)["phase"] for name in names} == {"Ready", "Unloaded"}
    bucket.calls.clear()
    for _ in range(3):
        await asyncio.gather(*(one.objects.look(("ads", name), one.things.things["ads", name]) for name in names))
        one.made.clock.time += GOOD_FOR_S
    assert bucket.calls == ["entries"] * 3
    one.things.put("m1", {"uri": "models/m1/1", "load": False})      # what is to be done is not decided by a glance
    await one.objects.look(("ads", "m1"), one.things.things["ads", "m1"])
    assert one.things.status("m1")["phase"] == "Unloaded" and "keys" in bucket.calls


async def test_a_version_that_somebody_unregistered_is_registered_again(tmp_path: Path) -> None:
    one = await follower(tmp_path)
    one.things.put("tiny", {"uri": one.made.folder()})
    await one.look()
    await one.made.models.unregister("tiny")
    await one.look()
    assert one.things.status("tiny")["phase"] == "Ready" and one.serves("tiny", "1")


async def test_after_a_restart_nothing_is_done_twice(tmp_path: Path) -> None:
    one = await follower(tmp_path)
    one.things.put("tiny", {"uri": one.made.folder()})
    await one.look()
    await one.made.models.register(Registration("tiny", "", one.made.folder(version="2"), "torch", load=True))
    await one.look()
    again = await Follower(gateway(tmp_path, bucket=one.made.bucket), one.things, FakeBucket(), "b").start()
    await again.look()
    assert again.serves("tiny", "2") and not again.serves("tiny", "1")
    assert [item.state for item in await again.made.models.versions("tiny")] == [State.UNLOADED, State.READY]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(120.0):
        while not condition():  # noqa: ASYNC110 (tasks of gateways are waited for)
            await asyncio.sleep(0.001)


async def test_every_gateway_serves_and_one_tells(tmp_path: Path) -> None:
    things, leases, bucket = FakeThings(MODEL_FINALIZER), FakeBucket(), FakeBucket()
    one, two = [
        await Follower(gateway(tmp_path, bucket=bucket), things, leases, identity).start() for identity in "ab"
    ]
    assert one.lease.is_held and not two.lease.is_held
    async with following(one.made), following(two.made):
        uri = one.made.folder()
        things.put("tiny", {"uri": uri, "traffic": {"versions": "all"}})
        await two.look()
        assert "tiny" not in two.made.models.serving.names and things.status("tiny") == {}
        await one.look()
        await until(lambda: one.serves("tiny", "1") and two.serves("tiny", "1"))
        await two.look()
        await one.look()
        assert things.status("tiny")["ready"] == "2/2" and things.status("tiny")["replicas"] == 2
        assert two.made.models.serving.traffic("tiny").keeps_all
        assert len(await one.made.models.versions("tiny")) == 1

        await one.lease.give_up()                       # the other one tells now, and does nothing twice
        await two.objects.beat()
        events = len(things.events)
        await two.look()
        assert len(things.events) == events and list(two.made.runtimes.loaded) == ["tiny/1"]
        things.put("tiny", {"uri": uri, "load": False})
        await one.look()
        assert one.serves("tiny", "1")
        await two.look()
        await until(lambda: not one.serves("tiny", "1") and not two.serves("tiny", "1"))
        assert things.status("tiny")["phase"] == "Unloaded"
        things.ask_to_delete("tiny")
        await one.look()
        await two.look()
        assert things.things == {} and await two.made.models.versions() == []


async def test_an_object_of_another_namespace_has_models_and_folders_of_its_own(tmp_path: Path) -> None:
    one = await follower(tmp_path)
    one.made.folder()
    one.things.put("tiny", {"uri": "models/tiny/1"}, namespace="play")
    one.things.put("good", {"uri": one.made.folder("play--good")}, namespace="play")
    await one.look()
    assert one.things.status("tiny", namespace="play")["phase"] == "Refused"
    assert "namespaces/play" in one.things.status("tiny", namespace="play")["message"]
    assert one.things.status("good", namespace="play")["model"] == "play--good"
    assert one.serves("play--good", "1")


async def test_an_object_is_refused_whose_namespace_s_names_could_be_another_s(tmp_path: Path) -> None:
    one = await follower(tmp_path)
    uri = one.made.folder("a--b--c")
    one.things.put("c", {"uri": uri}, namespace="a--b")
    one.things.put("b--c", {"uri": uri}, namespace="a")
    await one.look()
    told = one.things.status("c", namespace="a--b")
    assert told["phase"] == "Refused" and "metadata.namespace: 'a--b' has '--' in it" in told["message"]
    assert one.things.status("b--c", namespace="a")["model"] == "a--b--c" and one.serves("a--b--c", "1")
    one.things.ask_to_delete("c", namespace="a--b")
    await one.look()
    assert ("a--b", "c") not in one.things.things and one.serves("a--b--c", "1")


async def test_objects_go_with_the_namespace_of_their_gateway(tmp_path: Path) -> None:
    one = await follower(tmp_path)
    one.things.put("tiny", {"uri": one.made.folder()})
    await one.look()
    one.objects._reconciling.objects = dict(one.things.things)
    one.things.ending.add("ads")
    await one.objects.stop()
    assert "finalizers" not in one.things.things["ads", "tiny"]["metadata"] or not (
        one.things.things["ads", "tiny"]["metadata"]["finalizers"]
    )


async def test_while_the_registry_is_away_the_object_waits_and_is_not_carried_out(tmp_path: Path) -> None:
    one = await follower(tmp_path)
    one.things.put("tiny", {"uri": one.made.folder()})

    async def away(prefix: str = "") -> list[str]:
        raise Unavailable("NATS is away", reason="NO_NATS")

    there, one.made.bucket.keys = one.made.bucket.keys, away      # type: ignore[method-assign]  # for a while
    await one.look()
    told = one.things.status("tiny")
    assert (told["phase"], told["reason"]) == ("Pending", "NoNats") and "observedGeneration" not in told
    one.made.bucket.keys = there                                  # type: ignore[method-assign]  # as it was
    await one.look()
    assert one.things.status("tiny")["phase"] == "Ready"


async def test_an_object_goes_on_after_a_load_that_lost_the_registry(tmp_path: Path) -> None:
    one = await follower(tmp_path)
    get = one.made.bucket.get

    async def lost(key: str) -> FakeEntry | None:
        task = asyncio.current_task()
        if task is not None and task.get_name().startswith("load "):
            raise Unavailable("NATS is away", reason="NO_NATS")
        return await get(key)

    one.made.bucket.get = lost          # type: ignore[method-assign]  # for a while
    one.things.put("tiny", {"uri": one.made.folder()})
    await one.look()
    assert one.things.status("tiny")["phase"] == "Loading" and not one.serves("tiny", "1")
    one.made.bucket.get = get           # type: ignore[method-assign]  # as it was
    one.made.clock.time += FIRST_RELOAD_S
    await one.objects.beat()
    await one.look()
    assert one.things.status("tiny")["phase"] == "Ready" and one.serves("tiny", "1")


async def test_an_api_server_that_takes_no_events_says_nothing_of_the_specification(tmp_path: Path) -> None:
    one = await follower(tmp_path)

    async def refuses(ref: Ref, told: Told) -> None:
        raise PermissionDenied("events is forbidden", reason="Forbidden")

    one.things.tell = refuses           # type: ignore[method-assign]  # for good
    one.things.put("tiny", {"uri": one.made.folder()})
    phases = []
    for _ in range(4):
        with suppress(PermissionDenied):
            await one.look()
        phases.append(one.things.status("tiny")["phase"])
    assert phases[-1] == "Ready" and "Refused" not in phases


async def test_an_object_that_changes_all_the_time_tells_only_so_many_events(tmp_path: Path) -> None:
    one = await follower(tmp_path)
    uri = one.made.folder()
    for number in range(30):
        one.things.put("tiny", {"uri": uri if number % 2 else f"models/none/{number}"})
        await one.objects.look(("ads", "tiny"), one.things.things["ads", "tiny"])
        await one.made.settled()
        await one.objects.look(("ads", "tiny"), one.things.things["ads", "tiny"])
    assert EVENTS_BURST <= len(one.things.events) < 30, "of some sixty changes of phase, in no time"
    assert one.things.status("tiny")["phase"] == "Ready", "its status is told all the same"


async def test_an_earlier_text_answers_again_where_all_versions_stay(tmp_path: Path) -> None:
    one = await follower(tmp_path)
    first, second, traffic = one.made.folder(version="1"), one.made.folder(version="2"), {"versions": "all"}
    for uri, version in ((first, "1"), (second, "2"), (first, "1")):
        one.things.put("tiny", {"uri": uri, "traffic": traffic})
        await one.look()
        current = one.made.models.serving.current("tiny")
        assert current is not None and current.record.version == version
    assert one.things.status("tiny")["ready_versions"] == ["1", "2"]


async def test_a_version_that_only_this_gateway_cannot_load_is_not_marked_for_all(tmp_path: Path) -> None:
    things, leases, bucket = FakeThings(MODEL_FINALIZER), FakeBucket(), FakeBucket()
    one, two = [
        await Follower(gateway(tmp_path, bucket=bucket), things, leases, identity).start() for identity in "ab"
    ]
    one.made.runtimes.broken["tiny/1"] = InvalidArgument("no memory left", reason="NO_MEMORY")
    things.put("tiny", {"uri": one.made.folder()})
    await one.look()
    assert things.status("tiny")["phase"] == "Failed"
    await two.made.models.load("tiny", "1")
    async with following(one.made):
        await until(lambda: "tiny/1" in one.made.models.loading.not_here)
    one.made.clock.time += FIRST_RELOAD_S
    await one.objects.beat()
    await one.look()
    assert things.status("tiny")["phase"] == "Failed" and "another gateway" in things.status("tiny")["message"]
    assert two.serves("tiny", "1") and (await two.made.models.get("tiny", "1")).state is State.READY


def version_in(state: State) -> ModelVersion:
    return ModelVersion("tiny", "1", "u", "torch", state=state)


@pytest.mark.parametrize(("state", "load", "is_done", "expected"), [
    (State.REGISTERED, True, True, Act.LOAD),
    (State.UNLOADED, True, False, Act.LOAD),
    (State.UNLOADED, True, True, Act.NOTHING),
    (State.LOADING, True, False, Act.NOTHING),
    (State.READY, True, False, Act.NOTHING),
    (State.FAILED, True, True, Act.NOTHING),
    (State.READY, False, False, Act.UNLOAD),
    (State.LOADING, False, False, Act.UNLOAD),
    (State.UNLOADED, False, False, Act.NOTHING),
    (State.READY, False, True, Act.NOTHING),
    (State.REGISTERED, False, False, Act.NOTHING),
])  # fmt: skip
async def test_what_is_done(state: State, load: bool, is_done: bool, expected: Act) -> None:
    assert rules.act(version_in(state), load=load, is_done=is_done) is expected
