"""The local controller with real processes: what it starts outlives it, and is found with the truth."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from recmesh.runtime.errors import FailedPrecondition
from recmesh.spec.job import TrainingJob
from services.jobmaster.cluster import RoleProcess, StartOrder
from services.jobmaster.cluster.local import LocalController
from services.jobmaster.domain.exits import Exit

pytestmark = [pytest.mark.asyncio, pytest.mark.integration]

ROLE = """
import os, sys, time
print("I am", os.environ["RECMESH_ROLE"], "in", os.getcwd(), flush=True)
while not os.path.exists("end"):
    time.sleep(0.02)
print("no such column: clicks", file=sys.stderr, flush=True)
sys.exit(int(open("end").read()))
"""


def controller(folder: Path, *, program: str = ROLE) -> LocalController:
    return LocalController(folder, command=(sys.executable, "-c", program))


def order(name: str = "worker-0-1", *, memory_bytes: int = 0) -> StartOrder:
    role, index, _ = name.split("-")
    env = {"PATH": os.environ["PATH"], "RECMESH_ROLE": role}
    return StartOrder("ads", name, role, int(index), env, memory_bytes=memory_bytes)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110  # any condition
            await asyncio.sleep(0.01)


async def until_ended(local: LocalController, name: str) -> Exit:
    async with asyncio.timeout(30):
        while True:
            end = (await one(local, name)).exit
            if end is not None:
                return end
            await asyncio.sleep(0.01)


async def one(local: LocalController, name: str = "worker-0-1") -> RoleProcess:
    return next(process for process in await local.processes("ads") if process.name == name)


async def test_what_one_machine_cannot_give_is_refused_by_its_field(tmp_path: Path) -> None:
    spec = {
        "name": "ads", "model": {"entrypoint": "mine:main", "image": "shop/ads:1"},
        "data": {"source": {"files": ["a.parquet"]}, "features": [{"name": "user"}]},
        "roles": {"worker": {"gpu": 1}, "ps": {"cpu": 64}},
    }
    refused = controller(tmp_path).refusals(TrainingJob.parse(spec))
    assert [item.path for item in refused] == ["roles.worker.gpu", "model.image"]
    spec |= {"model": {"entrypoint": "mine:main", "image": "shop/ads:1", "code": "sha256:0"}, "roles": {}}
    assert controller(tmp_path).refusals(TrainingJob.parse(spec)) == []


@pytest_asyncio.fixture
async def local(tmp_path: Path) -> AsyncIterator[LocalController]:
    made = controller(tmp_path)
    await made.find_again()
    yield made
    for process in await made.processes("ads"):
        await made.stop("ads", process.name, grace_s=0)
    await made.stop_watching()


async def test_an_end_is_told_at_once_with_its_code_and_last_line(local: LocalController) -> None:
    changed: list[str] = []
    local.watch(changed.append)
    started = await local.start(order())
    assert started.exit is None
    (local.work_dir("ads", "worker", 0) / "end").write_text("64")
    await until(lambda: changed == ["ads"])
    end = (await one(local)).exit
    assert end is not None
    assert (end.code, end.last_line) == (64, "no such column: clicks")
    assert any("I am worker" in line for line in await local.tail("ads", "worker-0-1", lines=10))


async def test_starting_the_same_name_twice_gives_one_process(local: LocalController) -> None:
    first = await local.start(order())
    again = await local.start(order())
    assert again.handle == first.handle


async def test_a_later_controller_finds_what_lives_and_the_truth_of_what_ended(tmp_path: Path) -> None:
    first = controller(tmp_path)
    await first.find_again()
    killed = await first.start(order("worker-0-1"))
    lives = await first.start(order("worker-1-1"))
    await first.stop_watching()
    os.kill(int(killed.handle), signal.SIGKILL)

    second = controller(tmp_path)
    await second.find_again()
    try:
        assert await second.jobs() == ["ads"]
        assert (await one(second, "worker-1-1")).handle == lives.handle
        assert (await one(second, "worker-1-1")).exit is None
        end = await until_ended(second, "worker-0-1")
        assert end.signal == signal.SIGKILL
        assert (await second.start(order("worker-1-1"))).handle == lives.handle
    finally:
        await second.stop("ads", "worker-1-1", grace_s=0)
        await until_ended(second, "worker-1-1")
        await second.stop_watching()


async def test_a_controller_that_stood_by_finds_what_another_started_meanwhile(tmp_path: Path) -> None:
    first, second = controller(tmp_path), controller(tmp_path)
    await second.find_again()
    lives = await first.start(order("worker-0-1"))
    assert await second.processes("ads") == []
    await second.find_again()
    await second.find_again()
    try:
        assert [process.handle for process in await second.processes("ads")] == [lives.handle]
    finally:
        await second.stop("ads", "worker-0-1", grace_s=0)
        assert (await until_ended(second, "worker-0-1")).signal == signal.SIGKILL
        await second.stop_watching()
        await first.stop_watching()


async def test_a_worker_note_of_its_batch_is_part_of_the_truth_about_its_end(tmp_path: Path) -> None:
    program = f"import sys; sys.path.insert(0, {str(Path(__file__).parents[3])!r})\n"
    program += "from recmesh.formats.inhand import VARIABLE, InHand; import os\n"
    program += "note = InHand.at(os.environ[VARIABLE]); note.take(0, 50, 100)\n"
    program += "note.put_down() if os.environ['RECMESH_ROLE'] == 'evaluator' else None; os._exit(9)"
    local = controller(tmp_path, program=program)
    await local.start(order("worker-0-1"))
    await local.start(order("evaluator-0-1"))
    end = await until_ended(local, "worker-0-1")
    assert (end.code, end.knows_batch, end.batch) == (9, True, (0, 50, 100))
    end = await until_ended(local, "evaluator-0-1")
    assert (end.knows_batch, end.batch) == (True, None)
    await local.stop_watching()


async def test_a_process_that_ignores_sigterm_is_killed_after_its_grace(tmp_path: Path) -> None:
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('on', flush=True)\n"
    local = controller(tmp_path, program=stubborn + "while True: time.sleep(0.1)")
    changed: list[str] = []
    local.watch(changed.append)
    await local.start(order())
    log = tmp_path / "logs" / "jobs" / "ads" / "worker-0.log"
    await until(lambda: log.exists() and log.stat().st_size > 0)
    await local.stop("ads", "worker-0-1", grace_s=0.2)
    await until(lambda: bool(changed))
    end = (await one(local)).exit
    assert end is not None
    assert end.signal == signal.SIGKILL
    await local.stop_watching()


async def test_records_of_living_processes_are_not_forgotten(local: LocalController, tmp_path: Path) -> None:
    changed: list[str] = []
    local.watch(changed.append)
    await local.start(order())
    with pytest.raises(FailedPrecondition):
        await local.forget("ads")
    await local.stop("ads", "worker-0-1", grace_s=0)
    await until(lambda: bool(changed))
    await local.forget("ads")
    assert await local.processes("ads") == []
    assert not list((tmp_path / "logs" / "jobs").glob("*"))


async def test_limits_are_enforced_or_said_not_to_be(local: LocalController) -> None:
    started = await local.start(order("worker-5-1", memory_bytes=1 << 30))
    note = started.limits_note
    limited = not note
    assert limited or "cgroup" in note.lower()


async def test_what_is_free_is_what_no_limit_has_promised(tmp_path: Path) -> None:
    made = LocalController(tmp_path, command=(sys.executable, "-c", ROLE), cores=4.0)
    await made.find_again()
    try:
        assert (await made.capacity()).cpu == 4.0
        started = await made.start(replace(order(), cpu=1.5))
        assert (await made.capacity()).cpu == 2.5
        if not started.limits_note:
            assert await made.resize("ads", "worker-0-1", cpu=0.5, memory_bytes=0)
            assert (await made.capacity()).cpu == 3.5
            assert not await made.resize("ads", "worker-0-1", cpu=0.0, memory_bytes=0), "a quota cannot be lifted"
        await made.stop("ads", "worker-0-1", grace_s=0.0)
        await until_ended(made, "worker-0-1")
        assert (await made.capacity()).cpu == 4.0
    finally:
        await made.stop_watching()


SERVER = """
import sys, time
from recmesh.runtime.process.forkserver import serve
serve(int(sys.argv[1]))
print("forked", flush=True)
time.sleep(600)
"""


async def test_a_fork_server_begins_with_the_first_process_and_ends_behind_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.jobmaster.cluster.local.IDLE_S", 0.1)
    made = LocalController(
        tmp_path, command=(sys.executable, "-c", ROLE), fork_command=(sys.executable, "-c", SERVER)
    )
    server = made._server
    assert server is not None and server.pid is None
    try:
        await made.start(order())
        assert server.pid is not None and "I am worker" in (await last(made, "worker-0-1"))[0]
        await until(lambda: server.fits(order().env))
        await made.start(order("worker-1-1"))
        assert await last(made, "worker-1-1") == ["forked"], "it did not execute the command"
        for name in ("worker-0-1", "worker-1-1"):
            await made.stop("ads", name, grace_s=0)
            assert (await until_ended(made, name)).signal == signal.SIGKILL
        await until(lambda: server.pid is None)
    finally:
        await made.stop_watching()


async def last(made: LocalController, name: str) -> list[str]:
    async with asyncio.timeout(30):
        while not (lines := await made.tail("ads", name, lines=1)):  # noqa: ASYNC110  # a process writes it
            await asyncio.sleep(0.01)
    return lines
