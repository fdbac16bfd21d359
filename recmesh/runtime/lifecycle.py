"""The life of a service process: start in order, be ready, drain, stop, and say why it ended.

A component that fails to start stops those already started, in reverse order. A component that ends
by itself afterwards is a crash of the process: the supervisor's restart is the one way to recover.
"""

import asyncio
import contextlib
import errno
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Protocol, runtime_checkable

import orjson

from recmesh.runtime import clock, gates, secret_files, telemetry, variables
from recmesh.runtime.clock import Clock, system_clock
from recmesh.runtime.errors import (
    FailedPrecondition,
    InvalidArgument,
    MeshError,
    MeshFault,
    ResourceExhausted,
    Unavailable,
)
from recmesh.runtime.settings import ServiceSettings

_log = telemetry.get_logger(__name__)


class ExitCode(IntEnum):
    """Why a recmesh process ended; numbers of sysexits.h where it has them."""

    OK = 0
    """Asked to stop, and stopped within the drain time."""
    USER_ERROR = 64
    """The user's code or data is at fault; a restart would end the same way."""
    UNAVAILABLE = 69
    """Something it needs (bus, store, peer) could not be reached at the start."""
    CRASH = 70
    """A bug, or a component that ended by itself."""
    DRAIN_TIMEOUT = 71
    """Asked to stop, but a component did not finish in time; what it acknowledged is safe all the same."""
    CANNOT_WRITE = 73
    """The data folder cannot be written, or is full."""
    RETRY = 75
    """A restart may help: a port is taken, a generation was lost."""
    BAD_CONFIG = 78
    """A setting is missing or wrong; the message names its variable."""


class PortTaken(FailedPrecondition):
    """Another process listens on the address."""

    def __init__(self, what: str, address: str) -> None:
        super().__init__(f"{what}: the address {address} is already in use", reason="PORT_TAKEN")


class Component(Protocol):
    """A part of a process that is started and stopped once.

    Optional: `async wait()` returns or raises when the component ends by itself;
    `set_ready(ready)` hears about the readiness of the whole process; `address` is told in the log.
    """

    @property
    def name(self) -> str:
        """What logs call it."""
        ...

    async def start(self) -> None:
        """Return when it works; raise a MeshError that says what is wrong."""
        ...

    async def stop(self) -> None:
        """Finish what was begun, then free everything. Called once, also after a failed start."""
        ...


@runtime_checkable
class Watched(Protocol):
    """A component that may end by itself."""

    async def wait(self) -> None:
        """Returns or raises when it has ended; is cancelled otherwise."""
        ...


@runtime_checkable
class ReadyAware(Protocol):
    """A component that tells the outside whether the process is ready."""

    def set_ready(self, ready: bool) -> None:
        """Called with True after the last start, with False before the first stop."""
        ...


async def run(name: str, components: Sequence[Component], *, drain_s: float = 10) -> int:
    """Start all, wait for SIGTERM, SIGINT or a crash, stop all in reverse; returns the ExitCode."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stop.set)
    started: list[Component] = []
    try:
        code = await _start(components, started, stop)
        if code is None:
            _tell(components, ready=True)
            _write_ready_file(name, components)
            _log.info("%s is ready", name, extra={"addresses": addresses(components)})
            code = await _until_ended(components, stop)
        _tell(components, ready=False)
        drained = await _stop(started, drain_s)
        return ExitCode.DRAIN_TIMEOUT if code is ExitCode.OK and not drained else code
    finally:
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(signum)


async def _start(
    components: Sequence[Component], started: list[Component], stop: asyncio.Event
) -> ExitCode | None:
    """None when all have started; a signal in between ends the start."""
    asked = asyncio.ensure_future(stop.wait())
    try:
        for component in components:
            started.append(component)
            task = asyncio.ensure_future(component.start())
            await asyncio.wait({task, asked}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                return ExitCode.OK
            try:
                task.result()
            except Exception as error:
                return explain(error, f"{component.name} cannot start")
        return ExitCode.OK if stop.is_set() else None
    finally:
        asked.cancel()


async def _until_ended(components: Sequence[Component], stop: asyncio.Event) -> ExitCode:
    asked = asyncio.ensure_future(stop.wait())
    waits = {asyncio.ensure_future(item.wait()): item for item in components if isinstance(item, Watched)}
    await asyncio.wait({asked, *waits}, return_when=asyncio.FIRST_COMPLETED)
    code = ExitCode.OK
    if not asked.done():
        ended = next(task for task in waits if task.done())
        error = ended.exception()
        label = waits[ended].name
        _log.critical("%s ended by itself", label, exc_info=error)
        print(f"{label} ended by itself: {error or 'no error'}", file=sys.stderr, flush=True)
        code = ExitCode.CRASH
    for task in (asked, *waits):
        task.cancel()
    await asyncio.gather(asked, *waits, return_exceptions=True)
    return code


async def _stop(started: Sequence[Component], drain_s: float) -> bool:
    """True when every component stopped within the drain time they share."""
    deadline = asyncio.get_running_loop().time() + drain_s
    clean = True
    for component in reversed(started):
        left_s = max(0.1, deadline - asyncio.get_running_loop().time())
        try:
            async with asyncio.timeout(left_s):
                await component.stop()
        except TimeoutError:
            clean = False
            _log.error("%s did not stop within the drain time", component.name)
        except Exception:
            _log.exception("%s failed while stopping", component.name)
    return clean


def addresses(components: Sequence[Component]) -> dict[str, str]:
    """Where the components listen, by name."""
    pairs = ((item.name, getattr(item, "address", "")) for item in components)
    return {name: address for name, address in pairs if isinstance(address, str) and address}


def explain(error: Exception, what: str) -> ExitCode:
    """Print one clear message about the error to stderr, and choose the exit code."""
    code = exit_code(error)
    print(f"{what}: {error}", file=sys.stderr, flush=True)
    _log.error("%s", what, exc_info=error if code is ExitCode.CRASH else None,
               extra={"error": str(error), "exit_code": int(code)})
    return code


def exit_code(error: BaseException) -> ExitCode:
    """The exit code that tells a supervisor what to do about the error."""
    match error:
        case PortTaken():
            return ExitCode.RETRY
        case InvalidArgument() | FailedPrecondition():
            return ExitCode.BAD_CONFIG
        case ResourceExhausted(reason="NO_SPACE" | "STORAGE_FULL" | "DATA_FOLDER_FULL"):
            return ExitCode.CANNOT_WRITE
        case Unavailable() | ConnectionError():
            return ExitCode.UNAVAILABLE
        case OSError(errno=errno.EADDRINUSE):
            return ExitCode.RETRY
        case OSError(errno=errno.ENOSPC | errno.EROFS | errno.EACCES | errno.EPERM | errno.EDQUOT):
            return ExitCode.CANNOT_WRITE
        case MeshFault():
            return ExitCode.UNAVAILABLE if error.reason == "NOT_READY" else ExitCode.CRASH
        case MeshError():
            return ExitCode.BAD_CONFIG
        case _:
            return ExitCode.CRASH


def main(service: str, build: Callable[[Mapping[str, str]], Awaitable[Sequence[Component]]]) -> None:
    """What every `services/<name>/__main__.py` calls: telemetry, event loop, components, exit code.

    `build` gets the environment and answers with the components in start order. With RECMESH_READY_FILE
    set, that file appears (JSON: service, pid, addresses) once everything has started.
    """
    sys.exit(_main(service, build, os.environ))


def _main(
    service: str, build: Callable[[Mapping[str, str]], Awaitable[Sequence[Component]]], env: Mapping[str, str]
) -> int:
    try:
        given, env = env, secret_files.expanded(env)
        settings = ServiceSettings.from_env(env, "RECMESH_")
        telemetry.setup(service, settings)
        for name, nearest in variables.unknown(given).items():
            _log.warning("%s", variables.complaint(name, nearest))
        gates.install(env, who=service)
        clock.install(env, who=service)
    except MeshError as error:
        return explain(error, f"{service} cannot start")

    async def body() -> int:
        try:
            components = await build(env)
        except Exception as error:
            return explain(error, f"{service} cannot start")
        return await run(service, components, drain_s=settings.drain_s)

    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(body())
    finally:
        telemetry.shutdown()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:   # a training image has none; asyncio's own loop does
        return asyncio.new_event_loop
    return uvloop.new_event_loop


def _tell(components: Sequence[Component], *, ready: bool) -> None:
    for component in components:
        if isinstance(component, ReadyAware):
            component.set_ready(ready)


def _write_ready_file(name: str, components: Sequence[Component]) -> None:
    target = os.environ.get("RECMESH_READY_FILE")
    if not target:
        return
    path = Path(target)
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    new.write_bytes(orjson.dumps({"service": name, "pid": os.getpid(), "addresses": addresses(components)}))
    new.replace(path)


class Loop:
    """A periodic task: runs `step`, then sleeps as many seconds as it returned.

    An error is logged and answered with a growing pause (1 s to 30 s); the loop goes on. Stopping lets
    the step that runs finish, within the drain time.
    """

    def __init__(
        self, name: str, step: Callable[[], Awaitable[float]], *, clock: Clock = system_clock,
        max_backoff_s: float = 30.0,
    ) -> None:
        self.name = name
        self._step = step
        self._clock = clock
        self._max_backoff_s = max_backoff_s
        self._stopping = asyncio.Event()
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.failures = 0
        """Errors in a row; 0 after a step that worked."""

    async def start(self) -> None:
        """Begin at once; the first step runs in the background."""
        self._task = asyncio.create_task(self._run(), name=self.name)

    async def stop(self) -> None:
        """No new step; waits for the one that runs."""
        self._stopping.set()
        if self._task is not None:
            try:
                await asyncio.shield(self._task)
            except asyncio.CancelledError:
                self._task.cancel()
                raise
            self._task = None

    def wake(self) -> None:
        """End the present sleep: there is something to do."""
        self._woken.set()

    async def wait(self) -> None:
        """Raises what killed the loop, which only a BaseException can."""
        if self._task is None:
            raise RuntimeError(f"{self.name} was never started")
        await asyncio.shield(self._task)

    async def _run(self) -> None:
        while not self._stopping.is_set():
            self._woken.clear()
            try:
                delay_s = await self._step()
                self.failures = 0
            except Exception:
                self.failures += 1
                delay_s = min(self._max_backoff_s, 2.0 ** min(self.failures - 1, 10))
                _log.exception("%s failed; again in %.0f s", self.name, delay_s)
            await self._pause(delay_s)

    async def _pause(self, delay_s: float) -> None:
        waits = [
            asyncio.ensure_future(self._clock.sleep(delay_s)),
            asyncio.ensure_future(self._stopping.wait()),
            asyncio.ensure_future(self._woken.wait()),
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for item in waits:
                item.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(*waits, return_exceptions=True)
