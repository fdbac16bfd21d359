"""Readiness follows the stores, with patience and without piling up questions; full disks are refused."""

import asyncio
from pathlib import Path

import pytest

from recmesh.runtime.bus.link import Link
from recmesh.runtime.bus.stored import store
from recmesh.runtime.errors import ResourceExhausted, Unavailable
from recmesh.runtime.lifecycle import ExitCode, exit_code
from recmesh.runtime.readiness import Readiness
from recmesh.runtime.room import Room


class Store:
    """Answers, refuses or hangs."""

    def __init__(self) -> None:
        self.away = False
        self.hangs = False
        self.asked = 0

    async def ping(self) -> None:
        self.asked += 1
        if self.hangs:
            await asyncio.Event().wait()
        if self.away:
            raise Unavailable("connection refused")


class Health:
    """What gRPC's health would say."""

    def __init__(self) -> None:
        self.told: list[bool] = []

    def set_ready(self, ready: bool) -> None:
        self.told.append(ready)


@pytest.mark.asyncio
async def test_a_lost_ping_is_nothing_two_are_and_one_answer_mends_it() -> None:
    store, health = Store(), Health()
    readiness = Readiness({"Valkey": store.ping}, followers=[health])
    readiness.set_ready(True)
    store.away = True
    await readiness.look()
    assert readiness.reason() == "" and health.told == []
    await readiness.look()
    assert readiness.reason() == "Valkey is away: connection refused" and health.told == [False]
    await readiness.look()
    store.away = False
    await readiness.look()
    assert readiness.reason() == "" and health.told == [False, True]


@pytest.mark.asyncio
async def test_a_store_that_hangs_is_asked_once_and_bounded() -> None:
    store = Store()
    store.hangs = True
    readiness = Readiness({"the database": store.ping}, timeout_s=0.01)
    readiness.set_ready(True)
    for _ in range(3):
        await readiness.look()
    assert store.asked == 1 and readiness.reason() == "the database is away: no answer within 0.01 s"
    await readiness.stop()


@pytest.mark.asyncio
async def test_a_process_that_stops_is_not_called_ready_again() -> None:
    store, health = Store(), Health()
    store.away = True
    readiness = Readiness({"Valkey": store.ping}, followers=[health], patience=1)
    readiness.set_ready(True)
    await readiness.look()
    readiness.set_ready(False)
    store.away = False
    await readiness.look()
    assert health.told == [False]


def test_what_is_known_at_once_needs_no_look() -> None:
    assert Readiness({}, known=lambda: "no connection to NATS").reason() == "no connection to NATS"


def test_a_full_folder_is_told_with_what_is_needed(tmp_path: Path) -> None:
    assert Room(None).objection() == Room(tmp_path / "none").objection() == Room(tmp_path).objection() == ""
    with pytest.raises(ResourceExhausted, match=r"data folder .* is full: \d+ MiB free, at least 1099511627776 MiB"):
        Room(tmp_path, reserve_bytes=1 << 60).check()
    Room(tmp_path, reserve_bytes=1 << 60).check(last=True)       # what ends may use the reserve


@pytest.mark.asyncio
async def test_a_full_disk_refuses_a_write_before_nats_is_asked(tmp_path: Path) -> None:
    link = Link("nats://127.0.0.1:1", name="tests", room=Room(tmp_path, reserve_bytes=1 << 60))
    with pytest.raises(ResourceExhausted) as caught:
        async with asyncio.timeout(2):
            await store(link, "a.b", b"", message_id="1")
    assert caught.value.reason == "DATA_FOLDER_FULL"
    assert exit_code(caught.value) is ExitCode.CANNOT_WRITE
