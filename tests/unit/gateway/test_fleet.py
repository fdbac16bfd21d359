"""Processes of one kind: who has which device, what one that leaves holds up, and what a failure leaves behind."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from recmesh.runtime.errors import MeshError, NotFound, Unavailable
from recmesh.serving.settings import Scaling, ServingSettings
from services.gateway.domain.devices import Grant, Ledger, Wish, listed
from services.gateway.runtimes import fleet as fleets
from services.gateway.runtimes import split
from services.gateway.runtimes.fleet import Fleet
from services.gateway.runtimes.pool import Runtimes
from services.gateway.runtimes.process import Limits, ModelServer, _Loaded
from services.gateway.runtimes.whole import WholeServer

pytestmark = pytest.mark.asyncio

CARDS = "".join(f"GPU {card}: H200 (UUID: GPU-{card})\n" for card in range(3))
SETTINGS = ServingSettings()


class Server:
    """As a ModelServer, without a process."""

    framework, reason, pid, in_flight, queued = "torch", "", 1, 0, 0

    def __init__(self, grant: Grant) -> None:
        self.device = grant.label
        self.held: dict[str, str] = {}
        self.models: list[str] = []
        self.empty = asyncio.Event()
        self.stopped = 0
        self.fails = False
        self.lost: Any = None
        self.broken = False

    async def load(self, key: str, folder: Path, **_: Any) -> None:
        if self.broken:
            raise Unavailable("its file is away")
        self.models.append(key)

    async def drained(self, timeout_s: float) -> bool:
        await self.empty.wait()
        return True

    async def freshen(self, key: str, act: str, version: int, **_: Any) -> Mapping[str, Any]:
        if self.fails:
            raise Unavailable("its storage is away")
        self.held[key] = f"{act} {version}"
        return {}

    async def stop(self) -> None:
        self.stopped += 1
        self.empty.set()


class World:
    """A fleet with a GPU for each process."""

    def __init__(self, count: int) -> None:
        self.ledger = Ledger(listed(CARDS))
        self.made: list[Server] = []
        self.lost: list[str] = []
        self.broken = False
        self.fleet = Fleet(
            self._made, part="whole", count=count, take=lambda: self.ledger.take(Wish(1)),
            give_back=self.ledger.give_back, lost=lambda key, why: self.lost.append(key), log=print,
        )  # fmt: skip

    def _made(self, number: int, grant: Grant, lost: Any) -> Any:
        self.made.append(Server(grant))
        self.made[-1].lost, self.made[-1].broken = lost, self.broken
        return self.made[-1]

    async def load(self, settings: ServingSettings = SETTINGS) -> None:
        await self.fleet.load("m/1", Path(), settings=settings, timeout_s=1.0)


def numbers(world: World) -> list[int]:
    return list(world.fleet.numbers)


async def turns() -> None:
    """For tasks to go on as far as they can."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_what_a_process_had_is_given_back_once_though_two_end_it() -> None:
    world = World(2)
    await world.fleet.remove()
    await turns()
    slow, hold = world.made[1].stop, asyncio.Event()

    async def stop() -> None:
        """The first is done at once, the other when its device has another owner."""
        await slow()
        if world.made[1].stopped > 1:
            await hold.wait()

    world.made[1].stop = stop  # type: ignore[method-assign]  # of this one process
    await world.fleet.stop()
    taken = world.ledger.take(Wish(3))
    hold.set()
    await turns()
    assert len(taken.devices) == 3 and world.ledger.free == ()
    with pytest.raises(Unavailable):
        await world.fleet.add()                  # nobody would end it


async def test_while_one_finishes_what_it_has_another_may_come() -> None:
    world = World(2)
    await world.load()
    async with asyncio.timeout(5.0):
        await world.fleet.remove()
        assert len(world.fleet.servers) == 1
        await world.fleet.add()
    leaving, joined = world.made[1:]
    assert list(world.fleet.numbers) == [1, 3] and joined.models == ["m/1"]
    assert not leaving.stopped and world.ledger.free == (), "it has its device until it ends"
    leaving.empty.set()
    await turns()
    assert leaving.stopped and len(world.ledger.free) == 1
    await world.fleet.stop()
    assert len(world.ledger.free) == 3


async def test_a_process_that_was_stopped_is_idle() -> None:
    server = ModelServer(
        "torch", command=["recmesh.serving.nothing"], environment={}, limits=Limits(),
        lost=lambda _key, _why: None, log=lambda _text: None,
    )  # fmt: skip
    await server.stop()
    assert await server.drained(1.0)


@pytest.mark.parametrize(("trouble", "held"), [
    (Unavailable("it ended", reason="RUNTIME_CRASHED"), 9), (NotFound("no version 9", reason="UNKNOWN_VERSION"), 0),
])
async def test_a_process_that_dies_while_it_is_told_of_a_version_comes_back_with_it(
    trouble: MeshError, held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = ModelServer(
        "torch", command=["recmesh.serving.nothing"], environment={}, limits=Limits(),
        lost=lambda _key, _why: None, log=lambda _text: None,
    )  # fmt: skip
    await server.stop()
    noted: list[Any] = []

    def loaded_with() -> Any:
        settings: Any = server._loaded["m/1"].header["settings"]
        return settings["freshness"]["held"]

    class Dying:
        async def call(self, header: Mapping[str, Any], **_: Any) -> Any:
            noted.append(loaded_with())
            raise trouble

    async def started(_: float) -> Dying:
        return Dying()

    monkeypatch.setattr(server, "_started", started)
    server._loaded["m/1"] = _Loaded({"op": "load", "settings": SETTINGS.model_dump(mode="json")}, 1.0)
    wanted = ServingSettings.parse({"freshness": {"held": 9}})
    with pytest.raises(type(trouble)):
        await server.freshen("m/1", "rollback", 9, settings=wanted, timeout_s=1.0)
    assert (noted, loaded_with()) == ([9], held)


@pytest.mark.parametrize(("before", "act", "back"), [(0, "rollback", "resume 0"), (7, "resume", "rollback 7")])
async def test_where_one_cannot_change_its_version_the_others_change_back(before: int, act: str, back: str) -> None:
    world = World(3)
    await world.load(ServingSettings.parse({"freshness": {"held": before}}))
    world.made[1].fails = True
    wanted = ServingSettings.parse({"freshness": {"held": 0 if before else 9}})
    with pytest.raises(Unavailable, match="storage"):
        await world.fleet.freshen("m/1", act, 9, settings=wanted, timeout_s=1.0)
    assert [server.held.get("m/1") for server in world.made] == [back, None, back]
    world.made[1].fails = False
    await world.fleet.freshen("m/1", act, 9, settings=wanted, timeout_s=1.0)
    assert [server.held["m/1"] for server in world.made] == [f"{act} 9"] * 3


async def test_one_that_could_not_bring_a_model_back_leaves_and_another_takes_its_place_when_it_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fleets, "REPLACE_S", (0.0,))
    world = World(2)
    await world.load()
    world.broken = True
    first, second = world.made
    first.models.remove("m/1")
    first.lost("m/1", "its file is away")
    await turns()
    assert numbers(world) == [2] and world.lost == []
    first.empty.set()
    await turns()
    assert first.stopped and len(world.made) > 3, "it is tried again"
    world.broken = False
    async with asyncio.timeout(10.0):
        while len(world.fleet.servers) < 2:  # noqa: ASYNC110 (its task sleeps, too)
            await asyncio.sleep(0)
    third = world.made[-1]
    assert third.models == ["m/1"] and len(world.ledger.free) == 1, "the first one's device is free"
    for server in (second, third):
        server.models.remove("m/1")
        server.lost("m/1", "its file is gone")
    await turns()
    assert world.lost == ["m/1"]
    await world.fleet.stop()
    assert len(world.ledger.free) == 3


async def test_where_fewer_are_wanted_by_then_none_takes_the_place_of_one_that_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fleets, "REPLACE_S", (0.0,))
    world = World(3)
    await world.load()
    world.broken = True
    world.made[0].models.remove("m/1")
    world.made[0].lost("m/1", "its file is away")
    await turns()
    await world.fleet.remove()
    world.broken = False
    await turns()
    assert numbers(world) == [2]
    await world.fleet.stop()


async def test_the_last_model_that_is_lost_ends_its_processes() -> None:
    runtimes = Runtimes(environment={}, limits=Limits(), log=print)
    lane = ("torch", "whole", "m 0  False")
    server = runtimes._servers[lane] = runtimes._made(lane, SETTINGS)
    runtimes._lanes["torch", "m/1"] = lane
    assert isinstance(server, WholeServer) and runtimes.status()
    server.fleets["hn"].servers[0]._supervisor.cancel()    # no process is needed here
    server._none_left("m/1", "its file is gone")
    assert runtimes.status() == [] and not runtimes.serves("torch", "m/1")
    await runtimes.stop()


async def test_a_cn_that_does_not_answer_is_told_of_new_hns_when_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    class Asked(Server):
        silent = False

        def __init__(self, name: str, **_: Any) -> None:
            super().__init__(Grant())
            self.name = name
            self.command: list[str] = []
            self.heard: list[list[str]] = []

        is_up = True

        async def ask(self, header: Mapping[str, Any], *, timeout_s: float) -> Mapping[str, Any]:
            if self.silent:
                raise TimeoutError
            self.heard.append(header["addresses"])
            return {}

    monkeypatch.setattr(split, "ModelServer", Asked)
    monkeypatch.setattr(split, "TELL_AGAIN_S", 0.01)
    served = split.SplitServer(
        "torch", environment={}, limits=Limits(), lost=lambda *_: None, log=print, scaling=Scaling(),
        take=lambda: Grant(), give_back=lambda _: None,
    )  # fmt: skip
    cn: Any = served.cns.servers[0]
    cn.silent = True
    await served.hns.add()
    assert not cn.heard and len(served.hns.numbers) == 2
    cn.silent = False
    async with asyncio.timeout(10.0):
        while not cn.heard:  # noqa: ASYNC110 (its task sleeps, too)
            await asyncio.sleep(0.01)
    assert len(cn.heard[-1]) == 2
    await served.stop()
