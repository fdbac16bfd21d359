"""What any client of the Open Inference Protocol is asked to do, the same for each: checks by name.

Runs in the clients' own environments, so it imports nothing but numpy and what Python has.
"""

import asyncio
import json
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

HELD, FREE = 1, 0
"""The model `slow` waits for a file to be there, or for nothing."""
PATIENCE_S = 60.0
REFUSED_WITHIN_S = 3.0
SETTLE_S = 1.0
"""For what was sent, or taken back, to get where it goes."""

Arrays = dict[str, np.ndarray[Any, Any]]


class Refused(Exception):
    """The server's error, as the client tells it: its code, and its text."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code, self.text = code, text


@dataclass(frozen=True)
class Answer:
    """What a client hands out."""

    outputs: Arrays
    id: str = ""
    version: str = ""


@dataclass(frozen=True)
class Ask:
    """One request."""

    model: str
    inputs: Arrays
    version: str = ""
    id: str = ""
    timeout_us: int = 0
    client_timeout_s: float = 0.0
    priority: int = 0
    compression: str = ""
    types: dict[str, str] = field(default_factory=dict)
    """Datatypes that differ from the arrays' own."""


class Caller(Protocol):
    """One client with one protocol and one encoding."""

    name: str
    leaves_out: frozenset[str]
    """Checks for which the client has no words."""

    async def infer(self, ask: Ask) -> Answer:
        """Refused, or the answer."""
        ...


def adder(rows: int = 1, **more: Any) -> Ask:
    """predictions = x + id"""
    x = np.linspace(0.5, 2.0, rows, dtype=np.float32)
    return Ask("adder", {"x": x, "id": np.arange(rows, dtype=np.int64)}, **more)


def _expect(condition: bool, what: str) -> None:
    if not condition:
        raise AssertionError(what)


def _sums(answer: Answer, ask: Ask) -> None:
    wanted = ask.inputs["x"] + ask.inputs["id"].astype(np.float32)
    got = answer.outputs["predictions"]
    _expect(got.dtype == np.float32 and np.array_equal(got, wanted), f"{got!r} instead of {wanted!r}")


async def _refusal(caller: Caller, ask: Ask, codes: tuple[str, ...], text: str) -> None:
    try:
        await caller.infer(ask)
    except Refused as error:
        _expect(any(code in error.code for code in codes), f"code {error.code}, not {codes}: {error.text[:200]}")
        _expect(text in error.text, f"{text!r} is not in {error.text[:200]!r}")
        return
    raise AssertionError("it was answered")


class Checks:
    """The checks of one encoding; `runs` tells what the model `slow` has run so far."""

    def __init__(self, caller: Caller, runs: Path) -> None:
        self._caller = caller
        self._runs = runs
        self._go = Path(f"{runs}.go")

    async def infer(self) -> None:
        ask = adder()
        _sums(await self._caller.infer(ask), ask)

    async def batch(self) -> None:
        ask = adder(32)
        _sums(await self._caller.infer(ask), ask)

    async def version(self) -> None:
        answer = await self._caller.infer(adder(version="1"))
        _expect(answer.version == "1", f"version {answer.version!r}")

    async def unknown_version(self) -> None:
        await _refusal(self._caller, adder(version="77"), ("404", "NOT_FOUND"), "77")

    async def unknown_model(self) -> None:
        ask = Ask("nobody", adder().inputs)
        await _refusal(self._caller, ask, ("404", "NOT_FOUND"), "nobody")

    async def bad_shape(self) -> None:
        ask = adder(4)
        wrong = Ask("adder", {**ask.inputs, "x": ask.inputs["x"].reshape(2, 2)})
        await _refusal(self._caller, wrong, ("400", "INVALID_ARGUMENT"), "x")

    async def bad_dtype(self) -> None:
        ask = adder(2)
        wrong = Ask("adder", {**ask.inputs, "x": ask.inputs["x"].astype(np.float64)})
        await _refusal(self._caller, wrong, ("400", "INVALID_ARGUMENT"), "x")

    async def id_echo(self) -> None:
        answer = await self._caller.infer(adder(id="request 7"))
        _expect(answer.id == "request 7", f"id {answer.id!r}")

    async def bytes_tensor(self) -> None:
        words = np.array([b"", "über".encode(), b"x" * 300], dtype=np.object_)
        answer = await self._caller.infer(Ask("echo", {"text": words}))
        got = [item.encode() if isinstance(item, str) else bytes(item) for item in answer.outputs["text"]]
        _expect(got == words.tolist(), f"{got!r}")

    async def fp16(self) -> None:
        x = np.array([0.5, -2.0, 1024.0], np.float16)
        got = (await self._caller.infer(Ask("half", {"x": x}))).outputs["y"]
        _expect(got.dtype == np.float16 and np.array_equal(got, x * 2), f"{got!r}")

    async def gzip(self) -> None:
        ask = adder(4096, compression="gzip")
        _sums(await self._caller.infer(ask), ask)

    async def deflate(self) -> None:
        ask = adder(4096, compression="deflate")
        _sums(await self._caller.infer(ask), ask)

    async def deadline(self) -> None:
        """A request that asks for less time than the model takes is refused, and not after the model's time."""
        await self._late(slow(1, HELD, timeout_us=50_000), ("504", "408", "DEADLINE_EXCEEDED"))

    async def client_deadline(self) -> None:
        """gRPC's own deadline."""
        await self._late(slow(1, HELD, client_timeout_s=0.05), ("DEADLINE_EXCEEDED",))

    async def cancel(self) -> None:
        """A queued request whose caller goes away never runs."""
        self._begin()
        first = asyncio.ensure_future(self._caller.infer(slow(1, HELD)))
        await self._until(1)
        second = asyncio.ensure_future(self._caller.infer(slow(2, HELD)))
        await asyncio.sleep(SETTLE_S)
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        await asyncio.sleep(SETTLE_S)
        self._go.touch()
        await first
        await self._caller.infer(slow(3, FREE))
        _expect(self._ran() == [1, 3], f"these ran: {self._ran()}")

    async def priority(self) -> None:
        """Of those that wait, the one with priority 1 goes first."""
        self._begin()
        asks = [slow(1, HELD), slow(2, HELD), slow(3, FREE, priority=9), slow(4, FREE, priority=1)]
        tasks = []
        for ask in asks:
            tasks.append(asyncio.ensure_future(self._caller.infer(ask)))
            await (asyncio.sleep(SETTLE_S) if len(tasks) > 1 else self._until(1))
        self._go.touch()
        await asyncio.gather(*tasks)
        ran = self._ran()
        _expect(sorted(ran) == [1, 2, 3, 4] and ran.index(4) < ran.index(3), f"the order was {ran}")

    async def _late(self, ask: Ask, codes: tuple[str, ...]) -> None:
        self._begin()
        asking = asyncio.ensure_future(_refusal(self._caller, ask, codes, ""))
        done, _ = await asyncio.wait({asking}, timeout=REFUSED_WITHIN_S)
        self._go.touch()
        await asking
        _expect(bool(done), "it was refused only when the model was done")
        await self._caller.infer(slow(0, FREE))     # what was given up stands in nobody's way any more

    def _begin(self) -> None:
        self._go.unlink(missing_ok=True)
        self._runs.write_text("")

    def _ran(self) -> list[int]:
        lines = self._runs.read_text().split() if self._runs.exists() else []
        return [int(float(line.strip("[]"))) for line in lines]

    async def _until(self, count: int) -> None:
        ends = time.monotonic() + PATIENCE_S
        while len(self._ran()) < count:
            _expect(time.monotonic() < ends, "the model did not begin")
            await asyncio.sleep(0.005)


def slow(number: int, held: int, **more: Any) -> Ask:
    """A request that writes its number down when it runs, and waits until it may go on."""
    return Ask("slow", {"number": np.array([number], np.float32), "held": np.array([held], np.int32)}, **more)


NAMES = (
    "infer", "batch", "version", "unknown_version", "unknown_model", "bad_shape", "bad_dtype", "id_echo",
    "bytes_tensor", "fp16", "gzip", "deflate", "deadline", "client_deadline", "cancel", "priority",
)  # fmt: skip


class Report:
    """Cells by name, each passed or failed with a reason."""

    def __init__(self) -> None:
        self.cells: dict[str, str] = {}

    async def cell(self, name: str, check: Callable[[], Awaitable[None]]) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                await check()
            self.cells[name] = ""
        except Exception as error:
            self.cells[name] = f"{type(error).__name__}: {error}"[:400] or "failed"

    async def encoding(self, caller: Caller, runs: Path) -> None:
        """All checks of one encoding."""
        checks = Checks(caller, runs)
        for name in NAMES:
            if name not in caller.leaves_out:
                await self.cell(f"{caller.name}/{name}", getattr(checks, name))

    def show(self) -> None:
        json.dump(self.cells, sys.stdout)


def ready(http: str) -> None:
    """Wait until the server serves all models."""
    ends = time.monotonic() + 240.0
    for model in ("adder", "half", "echo", "slow"):
        while True:
            try:
                with urllib.request.urlopen(f"http://{http}/v2/models/{model}/ready", timeout=5.0):
                    break
            except OSError:
                if time.monotonic() > ends:
                    raise
                time.sleep(0.1)
