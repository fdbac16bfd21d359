import asyncio
import errno
import itertools
import os
import signal
from typing import Any

import pytest

from recmesh.runtime.errors import InvalidArgument, Unavailable
from recmesh.runtime.lifecycle import ExitCode, Loop, PortTaken, exit_code, run

pytestmark = pytest.mark.asyncio


class Part:
    def __init__(self, name: str, diary: list[str], *, fails: Exception | None = None) -> None:
        self.name = name
        self.diary = diary
        self.fails = fails
        self.started = asyncio.Event()

    async def start(self) -> None:
        self.diary.append(f"start {self.name}")
        if self.fails:
            raise self.fails
        self.started.set()

    async def stop(self) -> None:
        self.diary.append(f"stop {self.name}")


class Telling(Part):
    def set_ready(self, ready: bool) -> None:
        self.diary.append("ready" if ready else "not ready")


class Crashing(Part):
    async def wait(self) -> None:
        raise RuntimeError("broken")


class Stuck(Part):
    async def stop(self) -> None:
        await asyncio.Event().wait()


async def ended_by_sigterm(*parts: Any, drain_s: float = 5) -> int:
    running = asyncio.create_task(run("tests", parts, drain_s=drain_s))
    await parts[-1].started.wait()
    os.kill(os.getpid(), signal.SIGTERM)
    return await running


async def test_components_start_in_order_and_stop_in_reverse() -> None:
    diary: list[str] = []
    code = await ended_by_sigterm(Telling("a", diary), Part("b", diary))
    assert diary == ["start a", "start b", "ready", "not ready", "stop b", "stop a"]
    assert code == ExitCode.OK


async def test_a_failed_start_stops_what_was_started_and_is_never_ready() -> None:
    diary: list[str] = []
    parts = [Telling("a", diary), Part("b", diary, fails=Unavailable("no NATS")), Part("c", diary)]
    assert await run("tests", parts) == ExitCode.UNAVAILABLE
    assert diary == ["start a", "start b", "not ready", "stop b", "stop a"]


async def test_a_component_that_ends_by_itself_ends_the_process() -> None:
    diary: list[str] = []
    assert await run("tests", [Part("a", diary), Crashing("b", diary)]) == ExitCode.CRASH
    assert diary[-2:] == ["stop b", "stop a"]


async def test_a_component_that_does_not_stop_is_left_after_the_drain_time() -> None:
    diary: list[str] = []
    assert await ended_by_sigterm(Part("a", diary), Stuck("b", diary), drain_s=0.2) == ExitCode.DRAIN_TIMEOUT
    assert diary[-1] == "stop a"


async def test_sigterm_during_a_start_ends_it() -> None:
    diary: list[str] = []
    begun = asyncio.Event()

    class Slow(Part):
        async def start(self) -> None:
            begun.set()
            await asyncio.Event().wait()

    running = asyncio.create_task(run("tests", [Part("a", diary), Slow("b", diary)]))
    await begun.wait()
    os.kill(os.getpid(), signal.SIGTERM)
    assert await running == ExitCode.OK
    assert diary == ["start a", "stop b", "stop a"]


@pytest.mark.parametrize(("error", "code"), [
    (PortTaken("rpc", "127.0.0.1:1"), ExitCode.RETRY),
    (InvalidArgument("x"), ExitCode.BAD_CONFIG),
    (Unavailable("x"), ExitCode.UNAVAILABLE),
    (OSError(errno.ENOSPC, "full"), ExitCode.CANNOT_WRITE),
    (OSError(errno.EACCES, "no"), ExitCode.CANNOT_WRITE),
    (ConnectionRefusedError(), ExitCode.UNAVAILABLE),
    (KeyError("x"), ExitCode.CRASH),
])
async def test_the_exit_code_says_what_a_supervisor_should_do(error: Exception, code: ExitCode) -> None:
    assert exit_code(error) is code


@pytest.mark.looptime
async def test_a_loop_goes_on_after_errors_with_growing_pauses() -> None:
    at: list[float] = []
    done = asyncio.Event()

    async def step() -> float:
        at.append(asyncio.get_running_loop().time())
        if len(at) == 6:
            done.set()
        if len(at) < 5:
            raise Unavailable("not yet")
        return 100.0

    loop = Loop("tests", step)
    await loop.start()
    await done.wait()
    await loop.stop()
    pauses = [round(after - before, 3) for before, after in itertools.pairwise(at)]
    assert pauses == [1, 2, 4, 8, 100]


@pytest.mark.looptime
async def test_a_woken_loop_does_not_sleep_on() -> None:
    steps: list[float] = []

    async def step() -> float:
        steps.append(asyncio.get_running_loop().time())
        return 3600.0

    loop = Loop("tests", step)
    await loop.start()
    await asyncio.sleep(1)
    loop.wake()
    await asyncio.sleep(1)
    await loop.stop()
    assert len(steps) == 2 and steps[1] < 3


async def test_stopping_a_loop_lets_its_step_finish() -> None:
    gate, finished = asyncio.Event(), asyncio.Event()

    async def step() -> float:
        await gate.wait()
        finished.set()
        return 1.0

    loop = Loop("tests", step)
    await loop.start()
    await asyncio.sleep(0)
    stopping = asyncio.create_task(loop.stop())
    await asyncio.sleep(0)
    gate.set()
    await stopping
    assert finished.is_set()
