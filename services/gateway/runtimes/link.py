"""One run of a model server's process: calls are sent, answers are matched to them."""

import asyncio
import contextlib
import itertools
import math
import socket
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from recmesh.runtime.errors import DeadlineExceeded, MeshError, Unavailable
from recmesh.serving import frames
from recmesh.serving.failures import rebuilt
from recmesh.serving.tensors import Tensor

ROOT = Path(__file__).resolve().parents[3]
STOP_S = 5.0
HELLO = 0
SILENT = "MODEL_TOO_SLOW"
WORD_S = 0.02
"""For so long after a call's deadline the process may say what became of it: that it waits, which it says at once."""

Reply = tuple[frames.Header, list[Tensor]]


class Running(Protocol):
    """What is at the other end."""

    @property
    def pid(self) -> int:
        """Above 0; another for each run."""
        ...

    def kill(self) -> None:
        """At once."""
        ...

    async def wait(self) -> int:
        """Until it has ended; the exit code, below 0 for a signal."""
        ...


@dataclass(frozen=True, slots=True)
class _Pending:
    """A call that is not answered."""

    future: "asyncio.Future[Reply]"
    due: float
    line: str
    """Calls of one line are answered in turn."""
    answered: Callable[[], None] | None = None
    waits: Callable[[str], None] | None = None


class Link(asyncio.Protocol):
    """A started process, and this side of the socket to it."""

    leaving = False
    """It goes on for a while, and another is to take its place."""
    address = ""
    """Where CNs reach it, if that is not known before it is started."""
    place = ""
    """Where it runs, if that is not this machine."""

    def __init__(self, process: Running) -> None:
        self._process = process
        self._transport: Any = None              # uvloop's is no asyncio.Transport
        self._cutter = frames.Cutter()
        self._unsent: list[frames.Bytes] = []
        self._calls = itertools.count(HELLO + 1)
        self._pending: dict[int, _Pending] = {}
        self._lines: dict[str, dict[int, _Pending]] = defaultdict(dict)
        """The same by line; in each the one that came last is due last."""
        self.ended = asyncio.Event()
        self.exit = ""
        self._broken = ""
        self._ending: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._hello: asyncio.Future[Reply] = self._loop.create_future()
        self._hello.add_done_callback(_observe)
        self._pending[HELLO] = _Pending(self._hello, math.inf, "hello")  # who starts the process waits for it

    @classmethod
    async def start(cls, command: Sequence[str], *, environment: Mapping[str, str]) -> "Link":
        """Start a module of ours with these arguments; the process is of use when `hello` has answered."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", *command, "--fd", str(theirs.fileno()),
                pass_fds=(theirs.fileno(),), stdin=asyncio.subprocess.DEVNULL,
                env={**environment, "PYTHONPATH": str(ROOT)},
            )  # fmt: skip
        link = cls(process)
        await link.join(ours)
        return link

    async def join(self, sock: socket.socket) -> None:
        """Speak and listen by this socket."""
        await self._loop.create_unix_connection(lambda: self, sock=sock)

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    @property
    def is_idle(self) -> bool:
        """Whether every call is answered."""
        return not self._pending

    @property
    def overdue_s(self) -> float:
        """For how long an answer has been missing past its deadline, and past those of the calls before it."""
        now = self._loop.time()
        return max((now - call.due for call in self._pending.values()), default=0.0)

    async def hello(self, timeout_s: float) -> str:
        """The framework's version, once it is imported."""
        async with asyncio.timeout(timeout_s):
            header, _ = await asyncio.shield(self._hello)
        return str(header["framework_version"])

    async def call(
        self,
        header: frames.Header,
        tensors: Sequence[Tensor] = (),
        *,
        timeout_s: float,
        answered: Callable[[], None] | None = None,
        waits: Callable[[str], None] | None = None,
    ) -> Reply:
        """Ask and wait. `answered` is called when the process is done with it, even if nobody waits; `waits` when it
        says what it waits for itself.

        Who stops waiting, by the deadline or by cancellation, takes the call back: if it has not begun, it never runs.
        """
        if self.ended.is_set():
            if answered:
                answered()
            raise self._gone()
        call = next(self._calls)
        future: asyncio.Future[Reply] = self._loop.create_future()
        line = "load" if header.get("op") == "load" else str(header.get("model"))
        before = self._lines[line]
        due = self._loop.time() + timeout_s
        if before:
            due = max(due, before[next(reversed(before))].due)
        self._pending[call] = before[call] = _Pending(future, due, line, answered, waits)
        self._send({**header, "call": call}, tensors)
        late = self._loop.call_later(timeout_s, self._late, call, timeout_s)
        try:
            return await future
        except asyncio.CancelledError:
            self._take_back(call)
            raise
        finally:
            late.cancel()

    def tell(self, header: frames.Header) -> None:
        """Send what needs no answer."""
        self._send({**header, "call": next(self._calls)})

    async def stop(self) -> None:
        """Close the socket, which ends the process; kill it when it lingers."""
        self._transport.close()
        try:
            async with asyncio.timeout(STOP_S):
                await self._process.wait()
        except TimeoutError:
            self.kill()
        await self.ended.wait()

    def kill(self) -> None:
        """End the process at once."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Of the protocol."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Of the protocol."""
        try:
            for header, tensors in self._cutter.cut(data):
                self._settle(header, tensors)
        except (frames.FrameError, MeshError, KeyError, TypeError, ValueError) as error:
            self._broken = f"spoke nonsense: {error}"
            self.kill()
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Of the protocol: the process has ended, or will."""
        self._ending = self._loop.create_task(self._end(), name="model-server-end")

    async def _outcome(self) -> str:
        """How it ended, once it has."""
        code = await self._process.wait()
        return f"killed by signal {-code}" if code < 0 else f"exit code {code}"

    async def _end(self) -> None:
        outcome = await self._outcome()
        self.exit = self._broken or outcome
        self.ended.set()
        for number in list(self._pending):
            call = self._taken(number)
            if not call.future.done():
                call.future.set_exception(self._gone())

    def _send(self, header: frames.Header, tensors: Sequence[Tensor] = ()) -> None:
        """With whatever else is sent in this turn of the loop, in one write: each wakes the process, and on a busy core
        takes this one off it. Nobody waits until it is out: no more requests are let in than may be on their way."""
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent += frames.encode(header, tensors)

    def _flush(self) -> None:
        parts, self._unsent = self._unsent, []
        if not self._transport.is_closing():     # else all calls fail when the process has ended
            self._transport.writelines(parts)

    def _late(self, number: int, timeout_s: float) -> None:
        call = self._pending.get(number)
        if call is not None and not call.future.done():
            self._take_back(number)
            self._loop.call_later(WORD_S, self._silent, number, timeout_s)

    def _silent(self, number: int, timeout_s: float) -> None:
        call = self._pending.get(number)
        if call is not None and not call.future.done():
            call.future.set_exception(DeadlineExceeded(
                f"the model server did not answer within {timeout_s:.3g} s", reason=SILENT
            ))  # fmt: skip

    def _take_back(self, number: int) -> None:
        """Nobody waits for it: if the process has not begun with it, it never will. It still answers."""
        if number in self._pending:
            self._send({"op": "cancel", "target": number})

    def _settle(self, header: frames.Header, tensors: list[Tensor]) -> None:
        number = int(header["call"])
        if number not in self._pending:
            return
        if "waits" in header:
            if (told := self._pending[number].waits) is not None:
                told(str(header["waits"]))
            return
        call = self._taken(number)
        if call.future.done():
            return
        if "error" in header:
            call.future.set_exception(rebuilt(header))
        else:
            call.future.set_result((header, tensors))

    def _taken(self, number: int) -> _Pending:
        """The process is done with it."""
        call = self._pending.pop(number)
        line = self._lines[call.line]
        line.pop(number, None)
        if not line:
            del self._lines[call.line]
        if call.answered is not None:
            call.answered()
        return call

    def _gone(self) -> Unavailable:
        return Unavailable(
            f"the model server ended ({self.exit}); it is started again", reason="RUNTIME_CRASHED"
        )


def _observe(future: "asyncio.Future[Reply]") -> None:
    """An answer that nobody waits for any more is no error worth a warning."""
    if not future.cancelled():
        future.exception()
