"""Several gateways over one registry: what one does with models, the others do, too."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recmesh.runtime.errors import DataLoss, FailedPrecondition, NotFound, Unavailable
from services.gateway.domain import replica
from services.gateway.domain import traffic as rules
from services.gateway.domain.inference import InferRequest
from services.gateway.domain.models import NOT_KEPT, ON_REQUEST, ModelVersion, Registration, State
from services.gateway.domain.tensors import Tensor
from services.gateway.domain.traffic import Traffic
from services.gateway.store.registry import Registry
from tests.support.gateway import CARD, FakeBucket, Gateway, gateway
from tests.support.gateways import LOAD_S, following

pytestmark = pytest.mark.asyncio


def request(version: str = "") -> InferRequest:
    x, ids = np.array([1.0], np.float32), np.array([2], np.int64)
    return InferRequest("tiny", version, (Tensor.of("x", x), Tensor.of("id", ids)))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(120.0):
        while not condition():  # noqa: ASYNC110 (tasks of gateways are waited for)
            await asyncio.sleep(0.001)


@asynccontextmanager
async def gateways(root: Path, count: int = 2) -> AsyncIterator[list[Gateway]]:
    bucket = FakeBucket()
    async with AsyncExitStack() as stack:
        made = [gateway(root, bucket=bucket) for _ in range(count)]
        for each in made:
            await each.models.start()
            await stack.enter_async_context(following(each))
        yield made


async def add(made: Gateway, version: str, *, load: bool = True) -> None:
    made.clock.time += 1.0                       # each load has its own moment
    uri = f"models/tiny/{version}"
    if not (made.root / uri).exists():
        made.folder(version=version)
    await made.models.register(Registration("tiny", version, uri, "torch", load=load))
    await made.settled()


def served(made: Gateway) -> list[str]:
    return [item.record.version for item in made.models.serving.versions("tiny")]


async def states(made: Gateway) -> dict[str, str]:
    return {item.version: str(item.state) for item in await made.models.versions("tiny")}


async def test_what_one_gateway_loads_all_serve_and_nobody_loads_twice(tmp_path: Path) -> None:
    async with gateways(tmp_path, 3) as [first, *others]:
        await add(first, "1")
        for each in others:
            await until(lambda each=each: served(each) == ["1"])  # type: ignore[misc]  # a lambda with a default
            assert (await each.models.infer(request())).version == "1" and await states(each) == {"1": "ready"}
        await add(others[0], "2")
        for each in (first, others[1]):
            await until(lambda each=each: served(each) == ["2"])  # type: ignore[misc]  # as above
            await each.settled()
            assert list(each.runtimes.loaded) == ["tiny/2"] and await states(each) == {"1": "unloaded", "2": "ready"}
        assert [len(each.runtimes.time_left) for each in (first, *others)] == [2, 2, 2]
        told = first.facts.models + others[0].facts.models + others[1].facts.models
        assert sorted(told) == sorted({*told}), "each fact is told once"


async def test_what_a_version_replaces_answers_until_it_is_here(tmp_path: Path) -> None:
    async with gateways(tmp_path) as [first, second]:
        await add(first, "1")
        await until(lambda: served(second) == ["1"])
        second.runtimes.hold_load = asyncio.Event()
        await add(first, "2")
        await until(lambda: len(second.runtimes.time_left) == 2)
        assert (await second.models.infer(request())).version == "1"
        assert await states(second) == {"1": "ready", "2": "loading"}
        [loading] = [item for item in await second.models.versions("tiny") if item.version == "2"]
        assert "another gateway serves it" in loading.reason
        second.runtimes.hold_load.set()
        await until(lambda: served(second) == ["2"])


async def test_a_version_that_one_gateway_cannot_load_is_no_failure_of_the_others_and_is_tried_again(
    tmp_path: Path,
) -> None:
    async with gateways(tmp_path) as [first, second]:
        await add(first, "1")
        await until(lambda: served(second) == ["1"])
        second.runtimes.broken["tiny/2"] = DataLoss("the disk is gone", reason="DAMAGED")
        await add(first, "2")
        await until(lambda: "tiny/2" in second.models.loading.not_here)
        assert (await second.models.infer(request())).version == "1"
        assert await states(first) == {"1": "unloaded", "2": "ready"}
        assert await states(second) == {"1": "ready", "2": "failed"}
        with pytest.raises(FailedPrecondition, match="the disk is gone"):
            await second.models.infer(request("2"))
        del second.runtimes.broken["tiny/2"]
        await until(lambda: served(second) == ["2"])
        assert await states(second) == {"1": "unloaded", "2": "ready"}


async def test_rules_of_traffic_reach_all_and_choose_among_versions_that_are_ready_there(tmp_path: Path) -> None:
    async with gateways(tmp_path) as [first, second]:
        await add(first, "1")
        await add(first, "2", load=False)
        second.runtimes.hold_load = asyncio.Event()
        await first.models.set_traffic(
            "tiny", rules.parse({"versions": "all", "weights": {"1": 1, "2": 1}, "idle_s": 60})
        )
        await first.settled()
        await until(lambda: second.models.serving.traffic("tiny").idle_s == 60)
        second.runtimes.hold_load.set()
        await until(lambda: served(second) == ["1", "2"])
        assert second.models.serving.traffic("tiny") == first.models.serving.traffic("tiny")
        await second.models.set_traffic("tiny", rules.parse({"shadow": {"version": "1"}}))
        await second.settled()
        await until(lambda: sorted(first.runtimes.loaded) == ["tiny/1#shadow", "tiny/2"])
        assert first.models.serving.current("tiny") is not None
        assert (await first.models.infer(request())).version == "2"


async def test_versions_stand_in_the_order_in_which_they_were_loaded_whoever_loads_them_later(tmp_path: Path) -> None:
    async with gateways(tmp_path) as [first, second]:
        await first.models.register(Registration("tiny", "1", first.folder(version="1"), "torch"))
        await first.models.set_traffic("tiny", rules.parse({"versions": {"latest": 2}}))
        second.runtimes.broken["tiny/2"] = Unavailable("no room", reason="NO_ROOM")
        for version in ("2", "3"):
            await add(first, version)
        await until(lambda: served(second) == ["3"])
        del second.runtimes.broken["tiny/2"]
        await until(lambda: served(second) == ["2", "3"])
        assert (await second.models.infer(request())).version == "3"


async def test_unload_and_unregister_reach_all(tmp_path: Path) -> None:
    async with gateways(tmp_path) as [first, second]:
        await add(first, "1")
        await until(lambda: served(second) == ["1"])
        await second.models.unload("tiny")
        await until(lambda: served(first) == [])
        with pytest.raises(FailedPrecondition, match="unloaded on request"):
            await first.models.infer(request())
        first.clock.time += 1.0
        await first.models.load("tiny")
        await until(lambda: served(second) == ["1"])
        await first.models.unregister("tiny")
        await until(lambda: served(second) == [])
        await second.settled()
        assert second.runtimes.loaded == {}
        with pytest.raises(NotFound):
            await second.models.infer(request())


async def test_a_version_that_is_loaded_anew_is_so_everywhere_and_one_registered_anew_is_another(
    tmp_path: Path,
) -> None:
    async with gateways(tmp_path) as [first, second]:
        await add(first, "1")
        await until(lambda: served(second) == ["1"])
        first.clock.time += 1.0
        await first.models.load("tiny", "1")
        await until(lambda: len(second.runtimes.time_left) == 2)
        before = second.models.serving.find("tiny", "1")
        await first.models.unregister("tiny", "1")
        await add(first, "1")
        await until(lambda: second.models.serving.find("tiny", "1") not in (None, before))
        await second.settled()
        assert (await second.models.infer(request())).version == "1"


async def test_a_gateway_whose_start_fails_takes_no_model_from_the_others(tmp_path: Path) -> None:
    async with gateways(tmp_path, 1) as [first]:
        await add(first, "1")
        third = gateway(tmp_path, bucket=first.bucket)
        third.runtimes.broken["tiny/1"] = DataLoss("the disk is gone", reason="DAMAGED")
        async with following(third):
            await third.models.start()
            await third.settled()
            await until(lambda: "tiny/1" in third.models.loading.not_here)
            assert await states(first) == {"1": "ready"} and served(first) == ["1"]
            [record] = await Registry(first.bucket).versions("tiny")
            assert record.state is State.READY, "who starts next loads it"
            del third.runtimes.broken["tiny/1"]
            await until(lambda: served(third) == ["1"])


async def test_a_hold_is_told_to_every_model_server(tmp_path: Path) -> None:
    async with gateways(tmp_path) as [first, second]:
        await add(first, "1")
        await until(lambda: served(second) == ["1"])
        found = second.models.serving.find("tiny", "1")
        assert found is not None
        found.card = _that_follows(found.card)
        await Registry(first.bucket).change("tiny", "1", lambda item: _held(item, 41))
        await until(lambda: found.untold)
        assert found.settings.freshness.held == 41 == found.record.held


async def test_a_load_whose_gateway_is_gone_is_taken_over(tmp_path: Path) -> None:
    bucket = FakeBucket()
    dead, alive = gateway(tmp_path, bucket=bucket), gateway(tmp_path, bucket=bucket)
    await alive.models.start()
    async with following(alive) as clock:
        dead.runtimes.hold_load = asyncio.Event()
        await dead.models.start()
        wanted = Registration("tiny", "1", dead.folder(version="1"), "torch", load=True)
        await dead.models.register(wanted)
        await dead.loading()
        await dead.models.stop()
        await asyncio.sleep(0.05)
        assert served(alive) == [] and await states(alive) == {"1": "loading"}
        clock.time += LOAD_S + 61.0
        await until(lambda: served(alive) == ["1"])
        await alive.settled()
        assert await states(alive) == {"1": "ready"}


async def test_an_ensemble_is_loaded_when_its_step_is_there_also_after_a_restart(tmp_path: Path) -> None:
    bucket = FakeBucket()
    made = gateway(tmp_path, bucket=bucket)
    await made.models.start()
    await add(made, "1")
    folder = made.folder("both", card=_ensemble())
    await made.models.unload("tiny")
    await made.models.register(Registration("both", "1", folder, "ensemble", load=True))
    await made.settled()
    assert (await made.models.get("both")).state is State.FAILED
    again = gateway(tmp_path, bucket=bucket)
    await again.models.start()
    await again.settled()
    await again.models.loading.load_ensembles()
    assert (await again.models.get("both")).state is State.FAILED, "its step is away still"
    await again.models.load("tiny")
    await again.models.loading.load_ensembles()
    await again.settled()
    assert (await again.models.get("both")).state is State.READY
    assert again.facts.models.count(("failed", "both/1")) == 0


def record(version: str, state: State = State.READY, *, reason: str = "", **more: Any) -> ModelVersion:
    return ModelVersion("tiny", version, "u", "torch", state=state, reason=reason, **{"loaded": float(version), **more})


ONE, TWO = record("1"), record("2")
LATEST_2 = Traffic(latest=2)


@pytest.mark.parametrize(
    ("records", "traffic", "here", "expected"),
    [
        ([ONE], Traffic(), {"1": ONE}, {"order": ["1"]}),
        ([ONE], Traffic(), {}, {"order": ["1"], "load": ["1"]}),
        ([ONE, TWO], Traffic(), {"1": ONE}, {"order": ["2"], "load": ["2"], "replaced": ["1"]}),
        ([ONE, TWO], LATEST_2, {"2": TWO}, {"order": ["1", "2"], "load": ["1"]}),
        ([record("1", loaded=3.0), TWO], LATEST_2, {"1": ONE, "2": TWO}, {"order": ["2", "1"], "load": ["1"]}),
        ([record("1", created=5.0)], Traffic(), {"1": ONE}, {"order": ["1"], "load": ["1"]}),
        ([record("1", State.UNLOADED, reason=ON_REQUEST)], Traffic(), {"1": ONE}, {"leave": ["1"]}),
        ([record("1", State.UNLOADED, reason=NOT_KEPT), TWO], Traffic(specific=("2",)), {"1": ONE},
         {"order": ["2"], "load": ["2"], "replaced": ["1"]}),
        ([], Traffic(), {"1": ONE}, {"leave": ["1"]}),
        ([record("1", State.REGISTERED)], Traffic(), {"1": ONE}, {"leave": ["1"]}),
        ([record("1", State.FAILED)], Traffic(), {"1": ONE}, {"mend": ["1"]}),
        ([record("1", State.FAILED)], Traffic(), {}, {}),
        ([record("1", State.LOADING)], Traffic(), {"1": ONE}, {}),
        ([record("1", State.LOADING)], Traffic(), {}, {"loading": ["1"]}),
    ],
)  # fmt: skip
async def test_what_a_gateway_does_about_what_others_did(
    records: list[ModelVersion], traffic: Traffic, here: dict[str, ModelVersion], expected: dict[str, list[str]]
) -> None:
    plan = replica.steps(records, traffic, here)
    found = {
        "order": list(plan.order), "load": [each.version for each in plan.load], "leave": list(plan.leave),
        "replaced": list(plan.replaced), "mend": list(plan.mend), "loading": [each.version for each in plan.loading],
    }  # fmt: skip
    assert {name: versions for name, versions in found.items() if versions} == expected
    assert [each.version for each in replica.steps([ONE], Traffic(), {"1": ONE}, moved=["1"]).load] == ["1"]


def _held(item: ModelVersion, number: int) -> ModelVersion:
    return replace(item, held=number)


def _that_follows(card: Any) -> Any:
    return replace(card, apart=object())


def _ensemble() -> dict[str, Any]:
    return {
        "framework": "ensemble", "inputs": [{k: v for k, v in each.items() if k != "kind"} for each in CARD["inputs"]],
        "outputs": [{"name": "score", "dtype": "float32", "shape": [-1]}],
        "steps": [{"model": "tiny", "inputs": {"x": "x", "id": "id"}, "outputs": {"predictions": "score"}}],
    }  # fmt: skip
