"""Use cases of the registry over fakes: loading, swapping, failing, restarting."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

from recmesh.runtime.deadline import deadline
from recmesh.runtime.errors import FailedPrecondition, InvalidArgument, MeshError, NotFound, Unavailable
from services.gateway.domain.inference import InferRequest
from services.gateway.domain.models import Registration, State
from services.gateway.domain.tensors import Tensor
from tests.support.gateway import CARD, Gateway, gateway

pytestmark = pytest.mark.asyncio


def request(version: str = "", *, value: float = 1.0) -> InferRequest:
    x, ids = np.array([value], np.float32), np.array([2], np.int64)
    return InferRequest("tiny", version, (Tensor.of("x", x), Tensor.of("id", ids)))


async def started(root: Path) -> Gateway:
    made = gateway(root)
    await made.models.start()
    await made.settled()
    return made


async def serve(made: Gateway, version: str) -> None:
    made.folder(version=version)
    await made.models.register(Registration("tiny", version, f"models/tiny/{version}", "torch", load=True))
    await made.settled()


async def state(made: Gateway, version: str) -> State:
    return (await made.models.get("tiny", version)).state


async def test_a_registered_model_is_loaded_and_answers(tmp_path: Path) -> None:
    made = await started(tmp_path)
    await serve(made, "1")
    response = await made.models.infer(request())
    assert (response.version, response.outputs[0].array.tolist()) == ("1", [3.0])
    assert made.facts.models == [("registered", "tiny/1"), ("ready", "tiny/1")]


async def test_registering_without_load_serves_nothing(tmp_path: Path) -> None:
    made = await started(tmp_path)
    await made.models.register(Registration("tiny", "", made.folder(), "torch"))
    assert await state(made, "1") is State.REGISTERED
    with pytest.raises(FailedPrecondition, match="registered, not serving"):
        await made.models.infer(request())


async def test_a_request_sent_twice_makes_one_version_and_one_fact(tmp_path: Path) -> None:
    made = await started(tmp_path)
    wanted = Registration("tiny", "", made.folder(), "torch", request_id="r")
    first, second = await asyncio.gather(made.models.register(wanted), made.models.register(wanted))
    assert first == second
    assert made.facts.models == [("registered", "tiny/1")]


async def test_registrations_at_the_same_time_get_different_versions(tmp_path: Path) -> None:
    made = await started(tmp_path)
    uri = made.folder()
    records = await asyncio.gather(
        *(made.models.register(Registration("tiny", "", uri, "torch", job_id=f"job-{n}")) for n in range(8))
    )
    assert sorted(item.number for item in records) == list(range(1, 9))


async def test_a_model_outside_the_storage_is_not_registered(tmp_path: Path) -> None:
    made = await started(tmp_path / "storage")
    with pytest.raises(InvalidArgument, match="outside"):
        await made.models.register(Registration("tiny", "", "../elsewhere", "torch"))
    assert made.bucket.values == {}


async def test_a_card_of_another_framework_is_not_registered(tmp_path: Path) -> None:
    made = await started(tmp_path)
    with pytest.raises(FailedPrecondition, match=r"model\.json says torch"):
        await made.models.register(Registration("tiny", "", made.folder(), "tensorflow"))


async def test_a_new_version_takes_over_without_a_dropped_request(tmp_path: Path) -> None:
    made = await started(tmp_path)
    await serve(made, "1")
    made.runtimes.hold = asyncio.Event()
    in_flight = asyncio.create_task(made.models.infer(request()))
    await made.runtimes.running.wait()
    made.folder(version="2")
    await made.models.register(Registration("tiny", "2", "models/tiny/2", "torch", load=True))
    await made.swapped("2")
    assert "tiny/1" in made.runtimes.loaded
    made.runtimes.hold.set()
    assert (await in_flight).version == "1"
    await made.settled()
    assert (await made.models.infer(request())).version == "2"
    assert made.runtimes.unloaded == ["tiny/1"]
    assert await state(made, "1") is State.UNLOADED


async def test_a_version_that_cannot_be_loaded_leaves_the_one_before_serving(tmp_path: Path) -> None:
    made = await started(tmp_path)
    await serve(made, "1")
    made.runtimes.broken["tiny/2"] = InvalidArgument("the program is broken")
    await serve(made, "2")
    found = await made.models.get("tiny", "2")
    assert (found.state, found.reason) == (State.FAILED, "the program is broken")
    assert (await made.models.infer(request())).version == "1"
    assert made.facts.models[-1] == ("failed", "tiny/2")


async def test_a_failed_version_may_be_loaded_again(tmp_path: Path) -> None:
    made = await started(tmp_path)
    made.runtimes.broken["tiny/1"] = Unavailable("the runtime is away")
    await serve(made, "1")
    with pytest.raises(Unavailable):
        await made.models.load("tiny")
    made.runtimes.broken.clear()
    assert (await made.models.load("tiny")).state is State.READY


async def test_an_older_version_may_be_loaded_back(tmp_path: Path) -> None:
    made = await started(tmp_path)
    await serve(made, "1")
    await serve(made, "2")
    await made.models.load("tiny", "1")
    await made.settled()
    assert (await made.models.infer(request())).version == "1"
    assert await state(made, "2") is State.UNLOADED


async def test_what_was_ready_is_ready_again_after_a_restart(tmp_path: Path) -> None:
    before = await started(tmp_path)
    await serve(before, "1")
    await serve(before, "2")
    after = gateway(tmp_path, bucket=before.bucket)
    assert (await after.models.get("tiny")).state is State.LOADING
    await after.models.start()
    await after.settled()
    assert after.models.loading.restored.is_set()
    assert (await after.models.infer(request())).version == "2"
    assert list(after.runtimes.loaded) == ["tiny/2"]


async def test_an_interrupted_load_is_taken_up_after_a_restart(tmp_path: Path) -> None:
    before = await started(tmp_path)
    await serve(before, "1")
    before.folder(version="2")
    await before.models.register(Registration("tiny", "2", "models/tiny/2", "torch", load=True))
    await before.models.stop()  # before the load ran
    after = gateway(tmp_path, bucket=before.bucket)
    await after.models.start()
    await after.settled()
    assert (await after.models.infer(request())).version == "2"
    assert await state(after, "1") is State.UNLOADED


async def test_a_restart_with_a_broken_new_version_serves_the_old_one(tmp_path: Path) -> None:
    before = await started(tmp_path)
    await serve(before, "1")
    before.folder(version="2")
    await before.models.register(Registration("tiny", "2", "models/tiny/2", "torch", load=True))
    await before.models.stop()
    after = gateway(tmp_path, bucket=before.bucket)
    after.runtimes.broken["tiny/2"] = InvalidArgument("broken")
    await after.models.start()
    await after.settled()
    assert (await after.models.infer(request())).version == "1"
    assert await state(after, "2") is State.FAILED


async def test_an_unloaded_model_answers_what_it_is(tmp_path: Path) -> None:
    made = await started(tmp_path)
    await serve(made, "1")
    await made.models.unload("tiny")
    with pytest.raises(FailedPrecondition, match="unloaded"):
        await made.models.infer(request())
    assert made.facts.models[-1] == ("unloaded", "tiny/1")


async def test_a_forgotten_model_is_unknown(tmp_path: Path) -> None:
    made = await started(tmp_path)
    await serve(made, "1")
    await made.models.unregister("tiny")
    for call in (made.models.infer(request()), made.models.get("tiny"), made.models.load("tiny")):
        with pytest.raises(NotFound):
            await call
    assert made.bucket.values == {}


async def test_another_version_than_the_serving_one_says_so(tmp_path: Path) -> None:
    made = await started(tmp_path)
    await serve(made, "1")
    await serve(made, "2")
    with pytest.raises(FailedPrecondition, match="replaced by version 2"):
        await made.models.infer(request("1"))
    with pytest.raises(NotFound, match="'9'"):
        await made.models.infer(request("9"))


async def test_a_model_that_its_runtime_lost_is_failed(tmp_path: Path) -> None:
    made = await started(tmp_path)
    await serve(made, "1")
    made.runtimes.lost("torch", "tiny/1", "its model server dies while loading it")
    await made.settled()
    found = await made.models.get("tiny", "1")
    assert (found.state, found.reason) == (State.FAILED, "its model server dies while loading it")


async def test_a_changed_card_is_found_at_load(tmp_path: Path) -> None:
    made = await started(tmp_path)
    await made.models.register(Registration("tiny", "", made.folder(), "torch"))
    (tmp_path / "models/tiny/1/model.json").write_text("{}")
    with pytest.raises(MeshError):
        await made.models.load("tiny")
    assert await state(made, "1") is State.FAILED


async def test_requests_are_counted_and_rates_told(tmp_path: Path) -> None:
    made = await started(tmp_path)
    await serve(made, "1")
    await made.models.infer(request())
    with pytest.raises(InvalidArgument):
        await made.models.infer(InferRequest("tiny", "", ()))
    statistics = (await made.inference.statistics("tiny"))[("tiny", "1")]
    assert (statistics.success.count, statistics.fail.count, statistics.compute_infer.ns) == (1, 1, 30)
    made.clock.time += 10.0
    made.facts.away = True
    await made.observation.tell()
    made.facts.away = False
    made.clock.time += 10.0
    await made.observation.tell()
    assert made.facts.rates == [("model/tiny", 10.0, [(1000.0, 0.2), (1010.0, 0.0)])]


async def test_metadata_come_from_the_card(tmp_path: Path) -> None:
    made = await started(tmp_path)
    await made.models.register(Registration("tiny", "", made.folder(), "torch"))
    record, card, versions = await made.inference.metadata("tiny")
    assert (record.version, [item.name for item in card.inputs], versions) == ("1", ["x", "id"], ["1"])
    assert card.metrics == CARD["metrics"]


async def test_the_index_says_the_state_of_every_version(tmp_path: Path) -> None:
    made = await started(tmp_path)
    await serve(made, "1")
    await serve(made, "2")
    assert [(item.version, item.state) for item in await made.inference.index()] == [
        ("1", "UNAVAILABLE"),
        ("2", "READY"),
    ]
    assert [item.version for item in await made.inference.index(only_ready=True)] == ["2"]


async def test_a_load_is_not_bound_by_the_deadline_of_the_call_that_asked_for_it(tmp_path: Path) -> None:
    made = await started(tmp_path)
    uri = made.folder()
    with deadline(0.001):
        await made.models.register(Registration("tiny", "", uri, "torch", load=True))
    await made.settled()
    assert made.runtimes.time_left == [None]


async def test_a_caller_that_goes_away_does_not_stop_the_load(tmp_path: Path) -> None:
    made = await started(tmp_path)
    await made.models.register(Registration("tiny", "", made.folder(), "torch"))
    made.runtimes.hold_load = asyncio.Event()
    asking = asyncio.create_task(made.models.load("tiny"))
    await made.loading()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    made.runtimes.hold_load.set()
    await made.settled()
    assert await state(made, "1") is State.READY


async def test_a_reload_that_fails_leaves_the_version_serving(tmp_path: Path) -> None:
    made = await started(tmp_path)
    await serve(made, "1")
    made.runtimes.broken["tiny/1"] = InvalidArgument("damaged meanwhile")
    with pytest.raises(InvalidArgument, match="damaged"):
        await made.models.load("tiny", "1")
    assert await state(made, "1") is State.READY
    assert (await made.models.infer(request())).version == "1"


async def test_an_unload_during_a_load_is_carried_out_after_it(tmp_path: Path) -> None:
    made = await started(tmp_path)
    made.runtimes.hold_load = asyncio.Event()
    await made.models.register(Registration("tiny", "", made.folder(), "torch", load=True))
    await made.loading()
    unloading = asyncio.create_task(made.models.unload("tiny"))
    made.runtimes.hold_load.set()
    await unloading
    await made.settled()
    assert await state(made, "1") is State.UNLOADED
    assert made.runtimes.loaded == {}
