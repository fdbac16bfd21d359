"""Several versions of a name: weights, shadows, policies, rest."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recmesh.runtime.deadline import deadline
from recmesh.runtime.errors import DeadlineExceeded, FailedPrecondition, InvalidArgument, MeshError, NotFound
from services.gateway.domain import traffic as rules
from services.gateway.domain.inference import InferRequest
from services.gateway.domain.models import Registration, State
from services.gateway.domain.tensors import Tensor
from services.gateway.domain.traffic import Traffic
from tests.support.gateway import Gateway, gateway, http

pytestmark = pytest.mark.asyncio


def request(version: str = "", **parameters: Any) -> InferRequest:
    x, ids = np.array([1.0], np.float32), np.array([2], np.int64)
    return InferRequest("tiny", version, (Tensor.of("x", x), Tensor.of("id", ids)), parameters=parameters)


async def serving(root: Path, *versions: str, **parts: Any) -> Gateway:
    made = gateway(root, **parts)
    await made.models.start()
    for version in versions:
        await add(made, version)
    return made


async def add(made: Gateway, version: str, *, load: bool = True) -> None:
    uri = made.folder(version=version)
    await made.models.register(Registration("tiny", version, uri, "torch", load=load))
    await made.settled()


async def set_traffic(made: Gateway, **document: Any) -> None:
    await made.models.set_traffic("tiny", rules.parse(document))
    await made.settled()


async def states(made: Gateway) -> dict[str, str]:
    return {item.version: str(item.state) for item in await made.models.versions("tiny")}


@pytest.mark.parametrize(
    ("document", "path"),
    [
        ({"weights": {"1": -1}}, "weights.1"),
        ({"weights": {"1": 0}}, "weights"),
        ({"weights": {"1": float("nan")}}, "weights.1"),
        ({"versions": {"latest": 0}}, "versions.latest"),
        ({"versions": {"specific": []}}, "versions.specific"),
        ({"versions": "some"}, "versions"),
        ({"shadow": {"version": "2", "share": 1.5}}, "shadow.share"),
        ({"shadow": {"version": "2"}, "weights": {"2": 1}}, "shadow.version"),
        ({"idle_s": -1}, "idle_s"),
        ({"canary": 1}, "canary"),
    ],
)
async def test_wrong_rules_name_the_field(document: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        rules.parse(document)
    assert path in [item.path for item in caught.value.violations]


@pytest.mark.parametrize(
    "document",
    [
        {}, {"versions": "all"}, {"versions": {"latest": 3}, "idle_s": 60},
        {"versions": {"specific": ["1"]}, "weights": {"1": 9, "2": 1}, "shadow": {"version": "3", "share": 0.5}},
    ],
)  # fmt: skip
async def test_rules_read_what_they_write(document: dict[str, Any]) -> None:
    read = rules.parse(document)
    assert rules.parse(rules.as_document(read)) == read


async def test_weights_are_met_over_many_draws_and_a_version_without_one_is_never_chosen() -> None:
    traffic = Traffic(weights={"1": 3, "2": 1, "3": 0})
    draws = Counter(rules.choose(traffic, ("1", "2", "3"), at / 1000) for at in range(1000))
    assert draws == {"1": 750, "2": 250}


async def test_a_canary_gets_its_share_only_while_it_is_ready(tmp_path: Path) -> None:
    draws = iter([0.0, 0.95] * 20)
    made = await serving(tmp_path, "1", draw=lambda: next(draws))
    await add(made, "2", load=False)
    made.runtimes.hold_load = asyncio.Event()
    await made.models.set_traffic("tiny", rules.parse({"weights": {"1": 90, "2": 10}}))
    assert [(await made.models.infer(request())).version for _ in range(2)] == ["1", "1"]
    made.runtimes.hold_load.set()
    await made.settled()
    assert [(await made.models.infer(request())).version for _ in range(4)] == ["1", "2", "1", "2"]
    del made.runtimes.loaded["tiny/2"]          # its model server went down
    assert [(await made.models.infer(request())).version for _ in range(2)] == ["1", "1"]


async def test_versions_with_weights_stay_when_another_is_loaded(tmp_path: Path) -> None:
    made = await serving(tmp_path, "1")
    await add(made, "2", load=False)
    await set_traffic(made, weights={"1": 1, "2": 1})
    await add(made, "3")
    assert await states(made) == {"1": "ready", "2": "ready", "3": "ready"}
    assert (await made.models.infer(request("3"))).version == "3"
    await set_traffic(made)
    assert await states(made) == {"1": "unloaded", "2": "unloaded", "3": "ready"}
    assert sorted(made.runtimes.unloaded) == ["tiny/1", "tiny/2"]


async def test_the_latest_two_stay(tmp_path: Path) -> None:
    made = await serving(tmp_path, "1")
    await set_traffic(made, versions={"latest": 2})
    await add(made, "2")
    await add(made, "3")
    assert await states(made) == {"1": "unloaded", "2": "ready", "3": "ready"}
    assert (await made.models.infer(request())).version == "3"
    assert (await made.models.infer(request("2"))).version == "2"


async def test_specific_versions_are_loaded_and_no_others(tmp_path: Path) -> None:
    made = await serving(tmp_path, "1")
    await add(made, "2", load=False)
    await add(made, "3", load=False)
    await set_traffic(made, versions={"specific": ["2"]})
    assert await states(made) == {"1": "unloaded", "2": "ready", "3": "registered"}
    with pytest.raises(FailedPrecondition, match="none of the versions"):
        await made.models.load("tiny", "3")
    await add(made, "4")                        # as a job does when it ends
    assert await states(made) == {"1": "unloaded", "2": "ready", "3": "unloaded", "4": "unloaded"}
    assert "traffic rules" in (await made.models.get("tiny", "4")).reason


async def test_all_versions_stay_and_come_back_after_a_restart(tmp_path: Path) -> None:
    made = await serving(tmp_path, "1")
    await set_traffic(made, versions="all")
    await add(made, "2")
    again = gateway(tmp_path, bucket=made.bucket)
    await again.models.start()
    await again.settled()
    assert sorted(again.runtimes.loaded) == ["tiny/1", "tiny/2"]
    assert (await again.models.infer(request())).version == "2"


async def test_all_loads_what_rules_had_unloaded_or_refused_behind_the_one_that_answers(tmp_path: Path) -> None:
    made = await serving(tmp_path, "1")
    await set_traffic(made, versions="all")
    await add(made, "2")
    await add(made, "3")
    await add(made, "4")
    await made.models.unload("tiny", "4")
    await set_traffic(made, versions={"specific": ["2"]})
    await add(made, "5")
    assert await states(made) == {"1": "unloaded", "2": "ready", "3": "unloaded", "4": "unloaded", "5": "unloaded"}
    await set_traffic(made, versions="all")
    assert await states(made) == {"1": "ready", "2": "ready", "3": "ready", "4": "unloaded", "5": "ready"}
    assert (await made.models.infer(request())).version == "2"
    assert (await made.models.infer(request("3"))).version == "3"
    await set_traffic(made, versions={"latest": 2})
    assert [each for each, state in (await states(made)).items() if state == "ready"] == ["2", "5"]


async def test_what_is_on_its_way_back_leaves_when_the_rules_change_meanwhile(tmp_path: Path) -> None:
    made = await serving(tmp_path, "1")
    await set_traffic(made, versions="all")
    await add(made, "2")
    await set_traffic(made, versions={"specific": ["2"]})
    await made.models.set_traffic("tiny", rules.parse({"versions": "all"}))
    await set_traffic(made, versions={"latest": 1})
    assert await states(made) == {"1": "unloaded", "2": "ready"}
    assert list(made.runtimes.loaded) == ["tiny/2"]


async def test_versions_that_were_on_their_way_back_are_loaded_after_a_restart(tmp_path: Path) -> None:
    made = await serving(tmp_path, "1")
    await set_traffic(made, versions="all")
    await add(made, "2")
    await add(made, "3")
    await set_traffic(made, versions={"specific": ["3"]})
    made.runtimes.hold_load = asyncio.Event()
    await made.models.set_traffic("tiny", rules.parse({"versions": "all"}))
    again = gateway(tmp_path, bucket=made.bucket)
    await again.models.start()
    await again.settled()
    assert sorted(again.runtimes.loaded) == ["tiny/1", "tiny/2", "tiny/3"]
    assert (await again.models.infer(request())).version == "3"
    await made.models.stop()


async def test_a_shadow_that_the_rules_drop_is_not_loaded_by_all(tmp_path: Path) -> None:
    made = await serving(tmp_path, "1")
    await add(made, "2", load=False)
    await set_traffic(made, shadow={"version": "2"})
    await set_traffic(made, versions="all")
    await set_traffic(made, versions="all")
    assert await states(made) == {"1": "ready", "2": "unloaded"}


async def test_the_version_that_was_loaded_last_answers_after_restarts_too(tmp_path: Path) -> None:
    made = await serving(tmp_path)
    await add(made, "1", load=False)
    await set_traffic(made, versions={"latest": 2})
    await add(made, "2", load=False)
    await add(made, "3", load=False)
    for version in ("1", "3", "2", "1"):          # back to the first one
        made.clock.time += 1.0
        await made.models.load("tiny", version)
    await made.settled()
    for _ in range(3):
        assert (await made.models.infer(request())).version == "1"
        assert await states(made) == {"1": "ready", "2": "ready", "3": "unloaded"}
        before, made = made, gateway(tmp_path, bucket=made.bucket)
        await before.models.stop()
        await made.models.start()
        await made.settled()


async def test_rules_for_what_is_not_there_are_refused(tmp_path: Path) -> None:
    made = await serving(tmp_path, "1")
    with pytest.raises(NotFound):
        await made.models.set_traffic("tiny", Traffic(weights={"9": 1}))
    with pytest.raises(NotFound):
        await made.models.set_traffic("nobody", Traffic())


async def test_a_shadow_gets_copies_in_a_server_of_its_own_and_its_answers_are_dropped(tmp_path: Path) -> None:
    made = await serving(tmp_path, "1", draw=lambda: 0.2)
    await add(made, "2", load=False)
    await set_traffic(made, shadow={"version": "2", "share": 0.25})
    response = await made.models.infer(request())
    await asyncio.gather(*made.models.serving.shadow.tasks)
    assert response.version == "1"
    assert made.runtimes.ran == [("torch", "tiny/1"), ("torch#shadow", "tiny/2")]
    await set_traffic(made, shadow={"version": "2", "share": 0.1})
    await made.models.infer(request())
    assert len(made.runtimes.ran) == 3 and not made.models.serving.shadow.tasks


async def test_a_shadow_that_hangs_or_fails_keeps_nobody_waiting(tmp_path: Path) -> None:
    made = await serving(tmp_path, "1", draw=lambda: 0.0)
    await add(made, "2", load=False)
    await set_traffic(made, shadow={"version": "2"})

    async def hang(*_: Any) -> bool:
        await asyncio.Event().wait()
        return True

    made.models.serving.shadow._run = hang
    for _ in range(50):
        assert (await made.models.infer(request())).version == "1"
    assert len(made.models.serving.shadow.tasks) == 8       # more are dropped
    await made.models.stop()


async def test_a_shadow_that_becomes_the_version_moves_to_the_framework_s_own_server(tmp_path: Path) -> None:
    made = await serving(tmp_path, "1")
    await add(made, "2", load=False)
    await set_traffic(made, shadow={"version": "2"})
    await set_traffic(made, weights={"2": 1})
    assert (await made.models.infer(request())).version == "2"
    assert made.runtimes.ran[-1] == ("torch", "tiny/2")


async def test_a_shadow_that_the_rules_drop_leaves_and_takes_nobody_s_place(tmp_path: Path) -> None:
    made = await serving(tmp_path, "1")
    await add(made, "2", load=False)
    await set_traffic(made, shadow={"version": "2"})
    await set_traffic(made)
    assert (await made.models.infer(request())).version == "1"
    assert await states(made) == {"1": "ready", "2": "unloaded"}
    assert list(made.runtimes.loaded) == ["tiny/1"]


async def test_a_shadow_that_becomes_the_version_answers_while_it_moves(tmp_path: Path) -> None:
    made = await serving(tmp_path, "1")
    await add(made, "2", load=False)
    await set_traffic(made, shadow={"version": "2"})
    made.runtimes.hold_load = asyncio.Event()
    await made.models.set_traffic("tiny", rules.parse({"versions": {"specific": ["2"]}}))
    assert made.models.serving.is_ready("tiny")
    assert (await made.models.infer(request())).version == "2"
    made.runtimes.hold_load.set()
    await made.settled()
    assert list(made.runtimes.loaded) == ["tiny/2"]


async def test_what_the_server_of_shadows_loses_still_serves_where_it_moved_to(tmp_path: Path) -> None:
    made = await serving(tmp_path, "1")
    await add(made, "2", load=False)
    await set_traffic(made, shadow={"version": "2"})
    await set_traffic(made, weights={"2": 1})
    made.runtimes.lost("torch#shadow", "tiny/2", "its model server dies while loading it")
    await made.settled()
    assert (await made.models.infer(request())).version == "2"
    made.runtimes.lost("torch", "tiny/2", "its model server dies while loading it")
    await made.settled()
    assert (await states(made))["2"] == "failed"


async def test_an_idle_version_rests_and_the_first_request_brings_it_back_for_all(tmp_path: Path) -> None:
    made = await serving(tmp_path, "1")
    await set_traffic(made, idle_s=60)
    made.clock.time += 59
    await made.models.serving.rest_idle()
    assert made.runtimes.loaded
    made.clock.time += 1
    await made.models.serving.rest_idle()
    assert not made.runtimes.loaded and made.models.serving.is_ready("tiny")
    loads = len(made.runtimes.time_left)
    answers = await asyncio.gather(*(made.models.infer(request()) for _ in range(20)))
    assert {item.version for item in answers} == {"1"} and len(made.runtimes.time_left) == loads + 1
    await made.models.serving.rest_idle()
    assert made.runtimes.loaded             # it was asked just now


async def test_a_version_does_not_rest_under_a_request(tmp_path: Path) -> None:
    made = await serving(tmp_path, "1")
    await set_traffic(made, idle_s=60)
    made.runtimes.hold = asyncio.Event()
    asking = asyncio.create_task(made.models.infer(request()))
    await made.runtimes.running.wait()
    made.clock.time += 100
    await made.models.serving.rest_idle()
    made.runtimes.hold.set()
    await asking                            # the fake asserts that its model was not taken away


async def test_a_version_that_is_loaded_again_does_not_rest_meanwhile(tmp_path: Path) -> None:
    made = await serving(tmp_path, "1")
    await set_traffic(made, idle_s=60)
    noting = made.models.loading.note

    async def slow(*args: Any, **kwargs: Any) -> Any:
        made.clock.time += 100
        await made.models.serving.rest_idle()
        return await noting(*args, **kwargs)

    made.models.loading.note = slow  # type: ignore[method-assign]  # the registry takes its time
    await made.models.load("tiny", "1")
    assert (await made.models.infer(request())).version == "1"


async def test_who_wakes_a_version_waits_no_longer_than_its_deadline_and_the_load_goes_on(tmp_path: Path) -> None:
    made = await serving(tmp_path, "1")
    await set_traffic(made, idle_s=1)
    made.clock.time += 5
    await made.models.serving.rest_idle()
    made.runtimes.hold_load = asyncio.Event()
    with pytest.raises(DeadlineExceeded):
        await made.models.infer(request(timeout=1000))
    waiting = asyncio.create_task(made.models.infer(request()))
    await asyncio.sleep(0)
    made.runtimes.hold_load.set()
    assert (await waiting).version == "1"


async def test_a_version_that_cannot_come_back_tells_why_and_is_tried_again(tmp_path: Path) -> None:
    made = await serving(tmp_path, "1")
    await set_traffic(made, idle_s=1)
    made.clock.time += 5
    await made.models.serving.rest_idle()
    made.runtimes.broken["tiny/1"] = FailedPrecondition("no memory", reason="NO_MEMORY")
    with pytest.raises(MeshError, match="no memory"):
        await made.models.infer(request())
    made.runtimes.broken.clear()
    assert (await made.models.infer(request())).version == "1"


async def test_a_request_of_a_sequence_is_refused_and_not_answered_by_itself(tmp_path: Path) -> None:
    made = await serving(tmp_path, "1")
    for wrong in (request(sequence_id=7), request(sequence_id="a"), request(sequence_end=True)):
        with pytest.raises(InvalidArgument, match="is not taken"):
            await made.models.infer(wrong)
    assert (await made.models.infer(request(sequence_id=0, sequence_start=False))).version == "1"


async def test_a_deadline_that_is_over_is_refused_before_anything_runs(tmp_path: Path) -> None:
    made = await serving(tmp_path, "1")
    with deadline(-1.0), pytest.raises(DeadlineExceeded):
        await made.models.infer(request())
    assert made.runtimes.ran == []


async def test_rules_over_rest(tmp_path: Path) -> None:
    made = await serving(tmp_path, "1")
    async with http(made) as client:
        answer = await client.put("/v1/models/tiny/traffic", json={"weights": {"1": 1}, "idle_s": 5})
        assert answer.status_code == 200, answer.text
        assert (await client.get("/v1/models/tiny/traffic")).json() == {
            "versions": {"latest": 1}, "weights": {"1": 1.0}, "shadow": None, "idle_s": 5.0,
        }  # fmt: skip
        wrong = await client.put("/v1/models/tiny/traffic", json={"weights": []})
        assert (wrong.status_code, wrong.json()["reason"]) == (400, "BAD_TRAFFIC")
        assert (await client.get("/v1/models/nobody/traffic")).status_code == 404
    assert (await made.models.get("tiny")).state is State.READY
