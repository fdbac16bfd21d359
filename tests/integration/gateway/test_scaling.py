"""CN and HN processes by plan: requests go on while there are more and fewer of them."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from recmesh.runtime.clock import system_clock
from recmesh.runtime.errors import FailedPrecondition, InvalidArgument, NotFound, Unavailable
from recmesh.runtime.rpc import RpcServer
from recmesh.serving.settings import Scaling as Rules
from recmesh.serving.settings import ServingSettings
from recmesh.serving.tensors import Tensor
from services.brain import rpc as brain_rpc
from services.brain.app.serving import Serving as Planner
from services.brain.domain import serving as planning
from services.gateway.app.observation import Observation
from services.gateway.app.scaling import Scaling
from services.gateway.config import child_environment
from services.gateway.domain.load import Load
from services.gateway.domain.scaling import Change, Decision, Look, Measured, ScalingFact
from services.gateway.peers.data import PlanningPeer
from services.gateway.peers.mesh import Mesh
from services.gateway.runtimes import fleet
from services.gateway.runtimes.pool import Runtimes
from services.gateway.runtimes.process import Limits
from tests.support import split_models

pytestmark = [pytest.mark.integration, pytest.mark.asyncio]

LOAD_S = 240.0
STEP_S = 0.5


@pytest_asyncio.fixture
async def runtimes() -> AsyncIterator[Runtimes]:
    made = Runtimes(environment=child_environment(os.environ), limits=Limits(backoff_s=(0.1,)), log=print)
    yield made
    await made.stop()


def own(runtimes: Runtimes) -> str:
    """The key of the processes; they are the only ones."""
    [key] = runtimes.scaled()
    return key


class NoForecaster:
    """Is away."""

    async def forecast(self, series: str, *, steps: int, step_s: float, now: float, level: float):  # type: ignore[no-untyped-def]  # never returns
        raise Unavailable("forecaster does not run")

    async def history(self, series: str, *, since: float, step_s: float) -> list[tuple[float, float]]:
        return []


class World:
    """Real processes, the gateway's scaling over them, and brain's planner with nothing but measurements."""

    def __init__(self, runtimes: Runtimes) -> None:
        self.runtimes = runtimes
        self.observation = Observation(clock=system_clock, rate_step_s=10.0, tell_rates=_untold)
        self.planner = Planner(NoForecaster(), clock=system_clock)
        self.facts: list[ScalingFact] = []
        self.scaling = Scaling(
            runtimes, self.observation, planned=self._planned, tell=self._tell, clock=system_clock, step_s=STEP_S
        )
        self.answered = 0
        self.failed: list[str] = []

    def count(self, kind: str) -> int:
        return sum(item.kind == kind for item in self.runtimes.status())

    async def requests(self, stop: asyncio.Event) -> None:
        """One caller, who asks again and again."""
        inputs = [Tensor.of("x", np.array([0.5], np.float32)), Tensor.of("id", np.array([3], np.int64))]
        while not stop.is_set():
            self.observation.came["ctr", "1"] += 1
            try:
                tensors, _ = await self.runtimes.infer(
                    "torch", "ctr/1", inputs, ["predictions"], timeout_s=60.0, priority=100
                )
                assert float(tensors[0].array[0]) == split_models.expected(3, 0.5)
                self.answered += 1
            except Exception as error:
                self.failed.append(repr(error))
                await asyncio.sleep(0.01)        # what fails at once would leave no turn to anybody else

    @contextlib.asynccontextmanager
    async def calling(self, callers: int) -> AsyncIterator[None]:
        """So many ask; in the end, whatever it is, none does."""
        calm = asyncio.Event()
        asking = [asyncio.create_task(self.requests(calm)) for _ in range(callers)]
        try:
            yield
            calm.set()
            await asyncio.gather(*asking)
        finally:
            await _ended(asking)

    @contextlib.asynccontextmanager
    async def looking(self) -> AsyncIterator[None]:
        """Processes are planned meanwhile."""
        over = asyncio.Event()
        looks = asyncio.create_task(self.looks(over))
        try:
            yield
            over.set()
            await looks
        finally:
            await _ended([looks])
            await self.scaling.stop()

    async def more(self, count: int) -> None:
        """So many more answers."""
        enough = self.answered + count
        async with asyncio.timeout(180.0):
            while self.answered < enough and not self.failed:  # noqa: ASYNC110 (others' work)
                await asyncio.sleep(0.02)

    async def looks(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            wait_s = await self.scaling.look()
            await asyncio.sleep(wait_s)

    async def until(self, kind: str, count: int) -> None:
        async with asyncio.timeout(180.0):
            while self.count(kind) != count or self._changing:  # noqa: ASYNC110 (other processes are waited for)
                await asyncio.sleep(0.02)

    @property
    def _changing(self) -> bool:
        return any(model.changing and not model.changing.done() for model in self.scaling._seen.values())

    async def _planned(self, measured: Measured) -> list[Decision]:
        rules, loads = measured.rules, measured.loads
        limits = {"cn": rules.cn, "hn": rules.hn}
        kinds = [
            planning.Kind(
                kind, load.replicas, limits[kind].min, limits[kind].max, load.busy, load.answered_per_s, load.waiting,
                load.start_s,
            )
            for kind, load in loads.items()
        ]  # fmt: skip
        bounds = planning.Rules(rules.target_utilisation, rules.quantile, rules.hold_s)
        look = await self.planner.plan(
            planning.ServingAsk(
                measured.model, f"model/{measured.model}", STEP_S, measured.arrivals_per_s, measured.window_s, kinds,
                bounds,
            )
        )
        return [Decision(each.kind, each.replicas, each.reason, each.why) for each in look.chosen]

    async def _tell(self, fact: ScalingFact, look: Look, change: Change | None) -> None:
        self.facts.append(fact)


async def _ended(tasks: Sequence["asyncio.Task[None]"]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _untold(*_: object) -> None:
    """Rates are of no interest here."""


@pytest.mark.long
async def test_an_hn_comes_with_load_and_goes_with_it_and_no_request_fails(runtimes: Runtimes, tmp_path: Path) -> None:
    """The target is so low that any load is too much for one HN."""
    settings = ServingSettings.parse(
        {"scaling": {"hn": {"min": 1, "max": 2}, "target_utilisation": 0.001, "hold_s": 1.0}}
    )
    folder = split_models.torch_model(tmp_path / "1", post=True)
    await runtimes.load("torch", "ctr/1", folder, settings=settings, timeout_s=LOAD_S)
    world = World(runtimes)

    async def asked() -> list[int]:
        return [sum(told["answered"].values()) for item, told in await runtimes.told() if item.kind == "hn"]

    async with world.looking():
        async with world.calling(4):
            await world.until("hn", 2)
            [grown] = world.scaling.changes
            assert (grown.kind, grown.before, grown.after, grown.trouble) == ("hn", 1, 2, "") and grown.took_s > 0
            before = await asked()
            async with asyncio.timeout(180.0):
                while not all(now > then for now, then in zip(await asked(), before, strict=True)):  # noqa: ASYNC110 (others' work)
                    await asyncio.sleep(0.02)
            loads = await runtimes.measured(own(runtimes))
            assert loads["hn"].replicas == 2 and loads["cn"].replicas == 1
            await runtimes.shrink(own(runtimes), "hn")   # under load: what is in it is answered
            await runtimes.grow(own(runtimes), "hn")
        await world.until("hn", 1)
    assert world.failed == []
    assert {"measured", "scaling_decided", "scaled"} <= set(world.facts)
    reasons = [change.reason for change in world.scaling.changes]
    assert reasons[-1] == "MEASURED"
    assert "there is no forecast (forecaster does not run)" in world.scaling.changes[0].why


async def test_brain_is_asked_over_the_wire_for_each_kind() -> None:
    unused: Any = None
    planner = Planner(NoForecaster(), clock=system_clock)
    servicer = brain_rpc.BrainServicer(unused, unused, unused, unused, planner, unused)
    server = RpcServer("rpc", "127.0.0.1:0", [brain_rpc.register(servicer)])
    await server.start()
    mesh = Mesh({"brain": f"127.0.0.1:{server.port}"}, token=None, tls=None)
    rules = Rules.model_validate({"cn": {"max": 2}, "hn": {"max": 4}, "target_utilisation": 0.5})
    loads = {"cn": Load(1, 0.1, 80.0, 0.0, 3.0, 10.0), "hn": Load(1, 0.8, 80.0, 0.0, 5.0, 10.0)}
    measured = Measured("k", "ctr", rules, loads, 120.0, 10.0)
    try:
        decisions = await PlanningPeer(mesh).processes(measured)
        with pytest.raises(InvalidArgument):
            await PlanningPeer(mesh).processes(replace(measured, window_s=0.0))
        with pytest.raises(InvalidArgument, match="elsewhere"):
            await PlanningPeer(mesh).processes(replace(measured, elsewhere=1.5))
    finally:
        await mesh.stop()
        await server.stop()
    assert [(each.kind, each.replicas, each.reason) for each in decisions] == [
        ("cn", 1, "MEASURED"), ("hn", 3, "MEASURED"),
    ]
    assert decisions[1].capacity_per_s == pytest.approx(50.0) and decisions[1].demand_per_s == 120.0
    away = Mesh({"brain": "127.0.0.1:1"}, token=None, tls=None)
    with pytest.raises(Unavailable, match="brain"):
        await PlanningPeer(away).processes(measured)
    await away.stop()


@pytest.mark.long
async def test_cns_and_whole_models_come_and_go_without_a_failed_request(runtimes: Runtimes, tmp_path: Path) -> None:
    folder = split_models.torch_model(tmp_path / "1", post=True)
    for split, kind in (("always", "cn"), ("never", "hn")):
        settings = ServingSettings.parse({"split": split, "scaling": {kind: {"min": 2, "max": 2}}})
        for version in ("1", "2"):
            await runtimes.load("torch", f"ctr/{version}", folder, settings=settings, timeout_s=LOAD_S)
        world = World(runtimes)
        async with asyncio.timeout(180.0):
            while world.count(kind) + world.count("hn" if kind == "cn" else "cn") > (3 if kind == "cn" else 2):  # noqa: ASYNC110
                await asyncio.sleep(0.02)        # until those of the round before are gone
        assert world.count(kind) == 2
        async with world.calling(4):
            for move in (runtimes.shrink, runtimes.grow, runtimes.shrink):
                await move(own(runtimes), kind)
                await asyncio.sleep(0.1)
            with pytest.raises(FailedPrecondition, match="last process"):
                await runtimes.shrink(own(runtimes), kind)
        assert world.failed == [] and world.answered > 0
        assert [item.models for item in runtimes.status() if item.kind == kind] == [("ctr/1", "ctr/2")]


@pytest.mark.long
async def test_versions_that_run_in_two_ways_have_processes_apart_that_grow_apart(
    runtimes: Runtimes, tmp_path: Path
) -> None:
    folder = split_models.torch_model(tmp_path / "1", post=True)
    for version, split in (("1", "never"), ("2", "always")):
        settings = ServingSettings.parse({"split": split, "scaling": {"hn": {"max": 2}}})
        await runtimes.load("torch", f"ctr/{version}", folder, settings=settings, timeout_s=LOAD_S)
    keys = {found.way: key for key, found in runtimes.scaled().items()}
    assert {found.way: set(found.versions) for found in runtimes.scaled().values()} == {
        "torch, whole": {"1"}, "torch, in halves": {"2"},
    }

    def hns() -> list[str]:
        return sorted(item.way for item in runtimes.status() if item.kind == "hn")

    await runtimes.grow(keys["torch, whole"], "hn")
    assert hns() == ["split", "whole", "whole"]
    assert {way: (await runtimes.measured(key))["hn"].replicas for way, key in keys.items()} == {
        "torch, whole": 2, "torch, in halves": 1,
    }
    await runtimes.shrink(keys["torch, whole"], "hn")
    await runtimes.unload("torch", "ctr/1")
    assert [found.way for found in runtimes.scaled().values()] == ["torch, in halves"]
    with pytest.raises(NotFound):
        await runtimes.grow(keys["torch, whole"], "hn")


@pytest.mark.long
async def test_a_process_that_cannot_bring_its_model_back_leaves_and_another_comes_when_it_can(
    runtimes: Runtimes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "REPLACE_S", (0.1,))
    settings = ServingSettings.parse({"split": "never", "scaling": {"hn": {"min": 2, "max": 2}}})
    folder = split_models.torch_model(tmp_path / "1", post=True)
    await runtimes.load("torch", "ctr/1", folder, settings=settings, timeout_s=LOAD_S)
    world = World(runtimes)
    victim, other = [item.pid for item in runtimes.status()]
    (folder / "model.pt2").rename(tmp_path / "away")
    os.kill(victim, signal.SIGKILL)
    async with asyncio.timeout(180.0):
        while [item.pid for item in runtimes.status()] != [other]:  # noqa: ASYNC110 (other processes are waited for)
            await asyncio.sleep(0.02)
    assert (await runtimes.measured(own(runtimes)))["hn"].replicas == 1, "it counts no more"
    async with world.calling(4):
        await world.more(100)
        (tmp_path / "away").rename(folder / "model.pt2")
        await world.until("hn", 2)
        await world.more(100)
    assert world.failed == [] and [item.models for item in runtimes.status()] == [("ctr/1",)] * 2


@pytest.mark.long
async def test_a_model_that_asks_for_a_gpu_is_refused_where_there_is_none(tmp_path: Path) -> None:
    bare = {**child_environment(os.environ), "PATH": str(tmp_path)}
    runtimes = Runtimes(environment=bare, limits=Limits(), log=print)
    folder = split_models.torch_model(tmp_path / "1", post=True)
    wants = ServingSettings.parse({"resources": {"hn": {"gpu": 1, "mig": "2g.20gb"}}})
    with pytest.raises(FailedPrecondition, match="no accelerator"):
        await runtimes.load("torch", "ctr/1", folder, settings=wants, timeout_s=LOAD_S)
    assert runtimes.status() == []
    either = ServingSettings.parse({"resources": {"hn": {"gpu": 1, "or_cpu": True}}})
    await runtimes.load("torch", "ctr/1", folder, settings=either, timeout_s=LOAD_S)
    assert [item.device for item in runtimes.status() if item.kind == "hn"] == ["CPU: no 1 GPU is free"]
    await runtimes.stop()
