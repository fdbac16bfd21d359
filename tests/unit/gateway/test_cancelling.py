"""Calls that nobody waits for any more: what has not begun never runs."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import pytest_asyncio

from recmesh.runtime.errors import DeadlineExceeded, Internal
from services.gateway.domain.card import ModelCard
from services.gateway.domain.tensors import Tensor
from services.gateway.runtimes.link import Link
from services.gateway.runtimes.programs import Arrays
from services.gateway.runtimes.server import Connection, Server
from tests.support.gateway import CARD
from tests.unit.gateway.test_model_link import SilentProcess

pytestmark = pytest.mark.asyncio
INPUTS = [Tensor.of("x", np.array([1.0], np.float32)), Tensor.of("id", np.array([2], np.int64))]


class Counting:
    """A framework whose program counts its runs, and waits in each until it may go on."""

    def __init__(self) -> None:
        self.runs = 0
        self.inside = threading.Semaphore(0)
        self.go_on = threading.Semaphore(0)
        self.held = False

    def prepare(self) -> str:
        return "1"

    def load(self, folder: Path, card: ModelCard) -> "Counting":
        return self

    def run(self, inputs: Arrays) -> Arrays:
        if self.held:
            self.runs += 1
            self.inside.release()
            self.go_on.acquire()
        return {"predictions": inputs["x"] + inputs["id"].astype(np.float32)}


@pytest_asyncio.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[Link, Counting]]:
    """The model server's own loop in a thread, and the gateway's link to it over a socket."""
    (tmp_path / "model.json").write_text(json.dumps(CARD))
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    program = Counting()
    thread = threading.Thread(target=Server(program, Connection(theirs)).serve, daemon=True)
    thread.start()
    link = Link(cast("Any", SilentProcess()), *await asyncio.open_unix_connection(sock=ours))
    await link.call({"op": "load", "model": "m/1", "folder": str(tmp_path)}, timeout_s=60.0)
    program.held = True
    yield link, program
    for _ in range(10):
        program.go_on.release()
    theirs.shutdown(socket.SHUT_RDWR)
    await asyncio.to_thread(thread.join)
    await link.ended.wait()
    theirs.close()


def infer(link: Link, *, timeout_s: float = 60.0) -> "asyncio.Task[Any]":
    due_ns = time.monotonic_ns() + int(60e9)
    header = {"op": "infer", "model": "m/1", "outputs": ["predictions"], "due_ns": due_ns}
    return asyncio.create_task(link.call(header, INPUTS, timeout_s=timeout_s))


@pytest.mark.parametrize("how", ["cancelled", "too late"])
async def test_a_queued_call_that_nobody_waits_for_never_runs(served: tuple[Link, Counting], how: str) -> None:
    link, program = served
    first = infer(link)
    await asyncio.to_thread(program.inside.acquire)      # it runs, and holds the only thread
    second = infer(link, timeout_s=60.0 if how == "cancelled" else 0.01)
    third = infer(link)
    await asyncio.sleep(0.01)
    if how == "cancelled":
        second.cancel()
    with pytest.raises(asyncio.CancelledError if how == "cancelled" else DeadlineExceeded):
        await second
    with pytest.raises(Internal):   # answered by the other thread: whatever was sent before has been read
        await link.call({"op": "load", "model": "n/1", "folder": "/nowhere"}, timeout_s=60.0)
    program.go_on.release()
    await asyncio.to_thread(program.inside.acquire)
    program.go_on.release()
    await asyncio.gather(first, third)
    assert program.runs == 2


async def test_a_call_that_runs_already_ends_and_harms_no_later_one(served: tuple[Link, Counting]) -> None:
    link, program = served
    first = infer(link)
    await asyncio.to_thread(program.inside.acquire)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    program.go_on.release()
    program.go_on.release()
    _header, tensors = await infer(link)
    assert (tensors[0].array.tolist(), program.runs) == ([3.0], 2)
