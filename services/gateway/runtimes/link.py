"""One run of a model server's process: calls are sent, answers are matched to them."""

import asyncio
import contextlib
import itertools
import math
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from recmesh.runtime.errors import DeadlineExceeded, MeshError, Unavailable
from recmesh.serving import frames
from recmesh.serving.failures import rebuilt
from recmesh.serving.tensors import Tensor

ROOT = Path(__file__).resolve().parents[3]
STOP_S = 5.0
HELLO = 0
SILENT = "MODEL_TOO_SLOW"

Reply = tuple[frames.Header, list[Tensor]]


@dataclass(frozen=True, slots=True)
class _Pending:
    """A call that is not answered."""

    future: "asyncio.Future[Reply]"
    due: float
    line: str


class Link:
    """A started process and its socket."""

    def __init__(
        self, process: asyncio.subprocess.Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self._calls = itertools.count(HELLO + 1)
        self._pending: dict[int, _Pending] = {}
        self.ended = asyncio.Event()
        self.exit = ""
        loop = asyncio.get_running_loop()
        self._hello: asyncio.Future[Reply] = loop.create_future()
        self._hello.add_done_callback(_observe)
        self._pending[HELLO] = _Pending(self._hello, math.inf, "hello")  # who starts the process waits for it
        self._reading = asyncio.create_task(self._read(), name="model-server-read")

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
        reader, writer = await asyncio.open_unix_connection(sock=ours, limit=1 << 22)
        return cls(process, reader, writer)

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    @property
    def overdue_s(self) -> float:
        """For how long an answer has been missing past its deadline, and past those of the calls before it."""
        now = asyncio.get_running_loop().time()
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
    ) -> Reply:
        """Ask and wait. `answered` is called when the process is done with it, even if nobody waits.

        Who stops waiting, by the deadline or by cancellation, takes the call back: if it has not begun, it never runs.
        """
        if self.ended.is_set():
            if answered:
                answered()
            raise self._gone()
        loop = asyncio.get_running_loop()
        call = next(self._calls)
        future: asyncio.Future[Reply] = loop.create_future()
        future.add_done_callback(_observe)
        if answered:
            future.add_done_callback(lambda _future: answered())
        line = "load" if header.get("op") == "load" else str(header.get("model"))    # each is answered in turn
        before = max((item.due for item in self._pending.values() if item.line == line), default=0.0)
        self._pending[call] = _Pending(future, max(before, loop.time() + timeout_s), line)
        self._writer.writelines(frames.encode({**header, "call": call}, tensors))
        try:
            async with asyncio.timeout(timeout_s):
                with contextlib.suppress(ConnectionError):  # the reader sees the end, and fails the future
                    await self._writer.drain()
                return await asyncio.shield(future)
        except asyncio.CancelledError:
            self._cancel(call)
            raise
        except TimeoutError:
            self._cancel(call)
            raise DeadlineExceeded(
                f"the model server did not answer within {timeout_s:.3g} s", reason=SILENT
            ) from None

    def tell(self, header: frames.Header) -> None:
        """Send what needs no answer."""
        if not self.ended.is_set():
            self._writer.writelines(frames.encode({**header, "call": next(self._calls)}))

    def _cancel(self, call: int) -> None:
        """Nobody waits for it: if the process has not begun with it, it never will. It still answers."""
        if call in self._pending and not self.ended.is_set():
            self._writer.writelines(frames.encode({"op": "cancel", "target": call}))

    async def stop(self) -> None:
        """Close the socket, which ends the process; kill it when it lingers."""
        self._writer.close()
        try:
            async with asyncio.timeout(STOP_S):
                await self._process.wait()
        except TimeoutError:
            self.kill()
            await self._process.wait()
        await self._reading

    def kill(self) -> None:
        """End the process at once."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def _read(self) -> None:
        broken = ""
        try:
            while True:
                header_bytes, body_bytes = frames.sizes(await self._reader.readexactly(frames.PREFIX.size))
                head = await self._reader.readexactly(header_bytes)
                body = await self._reader.readexactly(body_bytes)
                self._settle(*frames.decode(head, body))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        except (frames.FrameError, MeshError, KeyError, TypeError, ValueError) as error:
            broken = f"spoke nonsense: {error}"
            self.kill()
        self._writer.close()
        code = await self._process.wait()
        self.exit = broken or (f"killed by signal {-code}" if code < 0 else f"exit code {code}")
        self.ended.set()
        for call in list(self._pending.values()):
            if not call.future.done():
                call.future.set_exception(self._gone())
        self._pending.clear()

    def _settle(self, header: frames.Header, tensors: list[Tensor]) -> None:
        call = self._pending.pop(int(header["call"]), None)
        if call is None or call.future.done():
            return
        if "error" in header:
            call.future.set_exception(rebuilt(header))
        else:
            call.future.set_result((header, tensors))

    def _gone(self) -> Unavailable:
        return Unavailable(
            f"the model server ended ({self.exit}); it is started again", reason="RUNTIME_CRASHED"
        )


def _observe(future: "asyncio.Future[Reply]") -> None:
    """An answer that nobody waits for any more is no error worth a warning."""
    if not future.cancelled():
        future.exception()
