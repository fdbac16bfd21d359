"""TrainingDataset objects on virtual time: registered, named by jobs, held while these live, and told of."""

from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
import pytest_asyncio

from recmesh.crd.kinds import DATASET_FINALIZER
from recmesh.crd.telling import EVENTS_BURST, Ref, Told
from recmesh.runtime.errors import InvalidArgument, Violation
from recmesh.spec.dataset import DatasetSpec
from services.jobmaster.app.datasets import COUNT_S, DatasetObjects
from services.jobmaster.app.reconciler import Reconciler
from services.jobmaster.domain import datasets as rules
from tests.support.job_fakes import LoopClock
from tests.support.job_world import spec
from tests.support.object_world import NAMESPACE, ObjectWorld
from tests.support.things import FakeThings

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]
DATA: dict[str, Any] = spec()["data"]


class DatasetWorld(ObjectWorld):
    """With TrainingDataset objects."""

    def __init__(self) -> None:
        super().__init__()
        self.datasets = FakeThings(DATASET_FINALIZER)
        self.following: DatasetObjects | None = None

    async def begin(self) -> None:
        await super().begin()
        assert self.reconciler is not None
        reconciler = self.reconciler
        self.following = DatasetObjects(
            self.jobs, self.datasets, namespace=NAMESPACE, clock=LoopClock(),
            of_jobs=reconciler.known_objects, changed=reconciler.dataset_changed,
        )
        await self.following.start()

    async def close(self) -> None:
        if self.following is not None:
            await self.following.stop()
        await super().close()

    async def until_dataset(self, name: str, **fields: Any) -> None:
        await self.until(lambda: all(self.datasets.status(name).get(key) == value for key, value in fields.items()))


@pytest_asyncio.fixture
async def world() -> AsyncIterator[DatasetWorld]:
    made = DatasetWorld()
    yield made
    await made.close()


def job(**changes: Any) -> dict[str, Any]:
    """An object's specification that names the dataset."""
    return {name: value for name, value in spec(**changes).items() if name not in ("name", "data")} | {
        "dataset": "clicks"
    }


async def test_an_object_is_registered_and_says_what_is_in_it(world: DatasetWorld) -> None:
    await world.begin()
    world.datasets.put("clicks", DATA)
    await world.until_dataset("clicks", phase="Ready")
    told = world.datasets.status("clicks")
    assert (told["dataset"], told["revision"], told["rows"], told["files"]) == ("clicks", 1, world.shards.total, 1)
    assert (told["observedGeneration"], told["used_by"], told["size"]) == (1, 0, "39.1 KiB")
    assert world.datasets.condition("clicks", "Ready")["status"] == "True"
    assert world.datasets.things[NAMESPACE, "clicks"]["metadata"]["finalizers"] == [DATASET_FINALIZER]
    assert orjson.loads(world.shards.datasets["clicks"])["name"] == "clicks"
    assert [event.reason for event in world.datasets.events] == ["Registered"]
    world.datasets.put("clicks", DATA | {"task_rows": 100})
    await world.until_dataset("clicks", revision=2, observedGeneration=2)


async def test_files_are_counted_again_now_and_then(world: DatasetWorld) -> None:
    await world.begin()
    world.datasets.put("clicks", DATA)
    await world.until_dataset("clicks", phase="Ready")
    statuses, world.shards.total = world.datasets.statuses, 500
    await LoopClock().sleep(COUNT_S + 10)
    assert world.datasets.status("clicks")["rows"] == 500 and world.datasets.status("clicks")["revision"] == 1
    assert world.datasets.statuses == statuses + 1


async def test_what_is_wrong_is_told_and_tried_again(world: DatasetWorld) -> None:
    await world.begin()
    world.shards.refusals = [Violation("data.source.files", "there are none")]
    world.datasets.put("clicks", DATA)
    await world.until_dataset("clicks", phase="Refused")
    assert "data.source.files: there are none" in world.datasets.status("clicks")["message"]
    world.datasets.put("views", {"features": []})
    await world.until_dataset("views", phase="Refused")
    assert "features" in world.datasets.status("views")["message"]
    world.shards.refusals = []
    await world.until_dataset("clicks", phase="Ready")


async def test_an_object_that_changes_all_the_time_tells_only_so_many_events(world: DatasetWorld) -> None:
    sent: list[Told] = []

    async def tell(ref: Ref, told: Told) -> None:
        sent.append(told)

    world.datasets.tell = tell          # type: ignore[method-assign]  # the clock stands, and one moment's are one Event
    await world.begin()
    for number in range(20):
        world.datasets.put("clicks", {"features": []} | {"label": f"y{number}"})
        await world.until_dataset("clicks", phase="Refused", observedGeneration=2 * number + 1)
        world.datasets.put("clicks", DATA)
        await world.until_dataset("clicks", phase="Ready", observedGeneration=2 * number + 2)
    assert EVENTS_BURST <= len(sent) < 40, "its status tells all the same"


async def test_while_shardsvc_is_away_the_object_waits(world: DatasetWorld) -> None:
    await world.begin()
    world.shards.away = True
    world.datasets.put("clicks", DATA)
    await world.until_dataset("clicks", phase="Pending")
    assert "observedGeneration" not in world.datasets.status("clicks")
    world.shards.away = False
    await world.until_dataset("clicks", phase="Ready")


async def test_a_job_that_is_applied_before_its_dataset_waits_for_it(world: DatasetWorld) -> None:
    await world.begin()
    world.objects.put("early", job())
    await world.until_told("early", phase="Pending", reason="NoDataset")
    assert "there is no dataset clicks" in world.status("early")["message"]
    world.datasets.put("clicks", DATA)
    await world.until_told("early", phase="Succeeded")
    assert world.shards.runs["early"].dataset_json == world.shards.datasets["clicks"]


async def test_a_dataset_is_held_while_a_job_uses_it(world: DatasetWorld) -> None:
    await world.begin()
    world.datasets.put("clicks", DATA)
    await world.until_dataset("clicks", phase="Ready")
    world.objects.put("user", job(training={"epochs": 1, "batch_size": 4}))
    await world.until_told("user", phase="Running")
    await world.until_dataset("clicks", used_by=1, jobs=["user"])
    world.datasets.ask_to_delete("clicks")
    await world.until_dataset("clicks", phase="Deleting")
    assert "user" in world.datasets.status("clicks")["message"] and "clicks" in world.shards.datasets
    in_use = world.datasets.condition("clicks", "InUse")
    assert (in_use["status"], in_use["reason"], in_use["message"]) == ("True", "NamedByJobs", "user")
    assert world.datasets.events[-1].is_warning
    await world.until_told("user", phase="Succeeded")
    await world.until(lambda: world.datasets.things == {})
    assert world.shards.datasets == {}


async def test_a_dataset_is_not_removed_before_jobs_are_known(world: DatasetWorld) -> None:
    await world.begin()
    world.datasets.put("clicks", DATA)
    await world.until_dataset("clicks", phase="Ready")
    world.objects.put("user", job(training={"epochs": 50, "batch_size": 4}))
    await world.until_told("user", phase="Running")
    assert world.reconciler is not None and world.following is not None
    await world.following.stop()
    await world.reconciler.stop()
    world.datasets.ask_to_delete("clicks")
    world.reconciler = Reconciler(world.jobs, clock=LoopClock())        # of the next jobmaster
    world.following = DatasetObjects(
        world.jobs, world.datasets, namespace=NAMESPACE, clock=LoopClock(), of_jobs=world.reconciler.known_objects
    )
    await world.following.start()
    await LoopClock().sleep(2.0)
    assert "clicks" in world.shards.datasets
    await world.reconciler.start()
    await world.until_dataset("clicks", phase="Deleting", jobs=["user"])
    assert "clicks" in world.shards.datasets


async def test_a_refused_object_takes_no_dataset_of_that_name_along(world: DatasetWorld) -> None:
    await world.begin()
    await world.shards.register_dataset("clicks", DatasetSpec.parse(DATA | {"name": "clicks"}).model_dump_json())
    world.datasets.put("clicks", {"features": []})
    await world.until_dataset("clicks", phase="Refused")
    world.datasets.ask_to_delete("clicks")
    await world.until(lambda: world.datasets.things == {})
    assert "clicks" in world.shards.datasets
    # One that was registered, and could not be told of before its jobmaster died, goes.
    world.datasets.put("clicks", DATA, finalizers=[DATASET_FINALIZER], deletionTimestamp="2026-11-23T12:00:00Z")
    await world.until(lambda: world.datasets.things == {})
    assert world.shards.datasets == {}


async def test_a_dataset_of_another_namespace_is_that_namespaces_own(world: DatasetWorld) -> None:
    await world.begin()
    world.datasets.put("clicks", DATA)
    world.datasets.put("clicks", DATA | {"task_rows": 100}, namespace="play")
    await world.until(lambda: world.datasets.status("clicks", namespace="play").get("phase") == "Ready")
    assert world.datasets.status("clicks", namespace="play")["dataset"] == "play--clicks"
    world.objects.put("user", job(), namespace="play")
    await world.until(lambda: world.objects.status("user", namespace="play").get("phase") == "Succeeded")
    assert world.shards.runs["user"].dataset_json == world.shards.datasets["play--clicks"]
    assert world.objects.condition("user", "Synced") == {}      # of this namespace there is none
    synced = next(
        item for item in world.objects.status("user", namespace="play")["conditions"] if item["type"] == "Synced"
    )
    assert synced["status"] == "True"


async def test_objects_go_with_the_namespace_of_their_jobmaster(world: DatasetWorld) -> None:
    await world.begin()
    world.datasets.put("clicks", DATA)
    await world.until_dataset("clicks", phase="Ready")
    world.datasets.ending.add(NAMESPACE)
    assert world.following is not None
    await world.following.stop()
    assert world.datasets.things[NAMESPACE, "clicks"]["metadata"]["finalizers"] == []


def thing(name: str, namespace: str = "ads", **spec_: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": namespace}, "spec": spec_}


async def test_only_jobs_that_live_in_its_namespace_use_a_dataset() -> None:
    dataset = thing("clicks")
    ended = thing("ended", dataset="clicks") | {"status": {"phase": "Succeeded"}}
    jobs = [
        thing("b", dataset="clicks"), thing("a", dataset="clicks") | {"status": {"phase": "Suspended"}}, ended,
        thing("other", dataset="views"), thing("far", "play", dataset="clicks"), thing("inline"),
        thing("wrong", dataset="clicks") | {"status": {"phase": "Refused"}},
        thing("waiting", dataset="clicks") | {"status": {"phase": "Pending"}},
        thing("theirs", dataset="clicks", managed_by="kueue.x-k8s.io/multikueue"),
    ]
    assert rules.users(dataset, jobs) == ["a", "b", "waiting"]


async def test_datasets_and_jobs_are_refused_whose_namespace_s_names_could_be_another_s(world: DatasetWorld) -> None:
    await world.begin()
    world.datasets.put("c", DATA, namespace="a--b")
    world.datasets.put("b--c", DATA, namespace="a")
    world.objects.put("user", job() | {"dataset": "c"}, namespace="a--b")
    await world.until(lambda: world.datasets.status("b--c", namespace="a").get("phase") == "Ready")
    await world.until(lambda: world.datasets.status("c", namespace="a--b").get("phase") == "Refused")
    await world.until(lambda: world.objects.status("user", namespace="a--b").get("phase") == "Refused")
    assert "metadata.namespace: 'a--b' has" in world.datasets.status("c", namespace="a--b")["message"]
    assert "namespace: 'a--b' has" in world.objects.status("user", namespace="a--b")["message"]
    assert list(world.shards.datasets) == ["a--b--c"]
    world.objects.ask_to_delete("user", namespace="a--b")
    world.datasets.ask_to_delete("c", namespace="a--b")
    await world.until(lambda: ("a--b", "c") not in world.datasets.things)
    assert list(world.shards.datasets) == ["a--b--c"], "that is the other's"


async def test_a_job_by_rest_is_refused_whose_namespace_s_names_could_be_another_s(world: DatasetWorld) -> None:
    await world.begin()
    asked = spec() | {"namespace": "a--b", "export": {"namespace": "c--d"}}
    with pytest.raises(InvalidArgument) as refused:
        await world.jobs.submit(orjson.dumps(asked).decode(), request_id="r", submitter="rest", dry_run=False)
    assert [item.path for item in refused.value.violations] == ["namespace", "export.namespace"]
    assert world.objects.things == {}


async def test_jobs_of_one_name_in_two_namespaces_are_two_and_are_listed_apart(world: DatasetWorld) -> None:
    await world.begin()
    body = {name: value for name, value in spec().items() if name != "name"}
    world.objects.put("same", body)
    await world.until_told("same", job_id="same")
    world.objects.put("same", body, namespace="play")
    await world.until(lambda: world.objects.status("same", namespace="play").get("phase") == "Succeeded")
    other = world.objects.status("same", namespace="play")["job_id"]
    assert other.startswith("same-")
    await world.until_told("same", phase="Succeeded")
    found, _ = world.jobs.page(labels={}, limit=10, page_token="", namespace="play")
    assert [run.job_id for run in found] == [other]
    await world.until(lambda: len(world.brain.ends) == 2)
    assert {end.facts.job_id: end.facts.namespace for end in world.brain.ends} == {"same": NAMESPACE, other: "play"}


async def test_a_job_by_rest_goes_to_the_namespace_that_it_names(world: DatasetWorld) -> None:
    await world.begin()
    world.datasets.put("clicks", DATA, namespace="play")
    await world.until(lambda: world.datasets.status("clicks", namespace="play").get("phase") == "Ready")
    asked = job() | {"name": "byrest", "namespace": "play"}
    run = await world.jobs.submit(orjson.dumps(asked).decode(), request_id="r", submitter="rest", dry_run=False)
    thing = world.objects.things["play", "byrest"]
    assert run.job.object is not None and run.job.object.namespace == "play"
    assert "namespace" not in thing["spec"] and run.spec.data is not None and run.spec.data.name == "play--clicks"
    await world.until(lambda: world.objects.status("byrest", namespace="play").get("phase") == "Succeeded")
    world.jobs._everywhere = False
    with pytest.raises(InvalidArgument) as refused:
        await world.jobs.submit(orjson.dumps(asked).decode(), request_id="s", submitter="rest", dry_run=False)
    assert [item.path for item in refused.value.violations] == ["namespace"]
