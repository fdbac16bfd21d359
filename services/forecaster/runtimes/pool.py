"""The processes that models run in."""

import asyncio
import contextlib
import logging
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from recmesh.plugins.registry import UnknownPlugin
from recmesh.runtime.errors import DeadlineExceeded, FailedPrecondition, ResourceExhausted, Unavailable
from recmesh.runtime.telemetry import Metrics
from services.forecaster.domain.fitting import Asked, Refined
from services.forecaster.domain.forecast import Predicted
from services.forecaster.runtimes import models

WARM_S = 120.0
"""For the first import, at most."""
SPARED_S = 600.0
"""After a process was killed over a series: others wait for its lane, and are not to wait for it again so soon."""
MAX_SPARED = 1_000

log = logging.getLogger(__name__)
_metrics = Metrics("forecaster")
_killed = _metrics.counter("models_killed", "Model processes that were killed because they did not answer in time")


class ModelPool:
    """Processes: some that answer, each for its own series, and one for dear models; made again when they die."""

    name = "models"

    def __init__(
        self, *, processes: int = 1, wanted: tuple[str, ...] = (), timeout_s: float = 60.0,
        refine_timeout_s: float = 900.0, max_waiting: int = 32,
    ) -> None:  # fmt: skip
        self._wanted, self._timeout_s, self._refine_timeout_s = wanted, timeout_s, refine_timeout_s
        self._max_waiting, self._waiting = max_waiting, 0
        self._lanes = [_Lane(f"models-{index}") for index in range(processes)]
        self._dear = _Lane("models-dear")
        self._warming: asyncio.Task[None] | None = None
        self._spared: OrderedDict[str, float] = OrderedDict()
        """Until when a series that cost a process is not asked for."""

    async def start(self) -> None:
        """Return at once; the import goes on behind, and the first forecast waits for it."""
        self._warming = asyncio.create_task(self._warm(), name="models-warm")

    async def stop(self) -> None:
        """End the processes; forecasts under way fail."""
        if self._warming is not None:
            self._warming.cancel()
            await asyncio.gather(self._warming, return_exceptions=True)
        for lane in (*self._lanes, self._dear):
            await lane.stop()

    async def predict(self, asked: Asked) -> Predicted:
        """As `models.predict`. ResourceExhausted when too many wait, DeadlineExceeded after the timeout;
        FailedPrecondition when the settings name a model that there is not.

        A process that works for longer than that on one series is killed, and that series refused for a while: the
        others' models are fitted again, and answer.
        """
        if time.monotonic() < self._spared.get(asked.key, 0.0):
            raise Unavailable("its models did not end in time a while ago; they are tried again later", reason="SPARED")
        if self._waiting >= self._max_waiting:
            raise ResourceExhausted(f"{self._waiting} forecasts wait already", reason="BUSY")
        self._waiting += 1
        try:
            answered = self._lane(asked.key).submit(
                models.predict, asked, self._wanted, limit_s=self._timeout_s, late=lambda: self._spare(asked.key)
            )
            answer: Predicted = await asyncio.wait_for(answered, self._timeout_s)
            return answer
        except TimeoutError:
            raise DeadlineExceeded(f"no forecast within {self._timeout_s:g} s", reason="TIMED_OUT") from None
        except UnknownPlugin as error:
            raise FailedPrecondition(f"RECMESH_FORECAST_MODELS: {error}", reason="BAD_CONFIG") from None
        finally:
            self._waiting -= 1

    async def refine(self, asked: Asked) -> Refined:
        """As `models.refine`, in a process of its own; what is better answers from then on. One at a time."""
        try:
            tried = self._dear.submit(models.refine_packed, asked, self._wanted, limit_s=self._refine_timeout_s)
            refined: Refined
            refined, packed = await asyncio.wait_for(tried, self._refine_timeout_s)
            if packed:
                adopted = self._lane(asked.key).submit(_adopt, asked.key, packed, limit_s=self._timeout_s)
                await asyncio.wait_for(adopted, self._timeout_s)
            return refined
        except TimeoutError:
            raise DeadlineExceeded("the dear models did not end in time", reason="TIMED_OUT") from None

    def _spare(self, key: str) -> None:
        """Called from the lane's thread; each operation on the dictionary is one step."""
        self._spared[key] = time.monotonic() + SPARED_S
        while len(self._spared) > MAX_SPARED:
            self._spared.popitem(last=False)

    def _lane(self, key: str) -> "_Lane":
        """Always the same for a series: its models are kept there."""
        return self._lanes[zlib.crc32(key.encode()) % len(self._lanes)]

    async def _warm(self) -> None:
        try:
            await asyncio.gather(*(lane.submit(models.warm, self._wanted, limit_s=WARM_S) for lane in self._lanes))
            log.info("the models are loaded")
        except (Unavailable, DeadlineExceeded):     # the lane has told it; the first forecast loads them
            return
        except UnknownPlugin as error:
            log.error("RECMESH_FORECAST_MODELS: %s", error)


def _adopt(key: str, packed: bytes) -> None:
    models.adopt_packed(key, packed)


class _Lane:
    """A worker process, and the thread in which those who ask it wait for each other."""

    def __init__(self, name: str) -> None:
        self._turns = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._worker: _Worker | None = None
        self._stopped = False

    def submit(
        self, function: Callable[..., Any], *args: Any, limit_s: float, late: Callable[[], None] | None = None
    ) -> "asyncio.Future[Any]":
        """Its answer, after those who asked before.

        DeadlineExceeded when the work itself takes longer than `limit_s`, whoever still waits for it: the process is
        killed, and `late` called in the lane's thread.
        """
        return asyncio.wrap_future(self._turns.submit(self._ask, limit_s, late, function, *args))

    def kill(self) -> None:
        """What it is at fails; the next who asks gets a new one."""
        worker = self._worker
        if worker is not None:
            worker.kill()

    async def stop(self) -> None:
        """For good."""
        self._stopped = True
        self.kill()
        await asyncio.to_thread(self._turns.shutdown, cancel_futures=True)

    def _ask(
        self, limit_s: float, late: Callable[[], None] | None, function: Callable[..., Any], *args: Any
    ) -> Any:
        """One after the other, in the thread for it."""
        if self._stopped:
            raise Unavailable("the service stops", reason="MODEL_PROCESS")
        worker = self._worker = self._worker or _Worker()
        try:
            return worker.ask(function, args, limit_s=limit_s)
        except _TooLong:
            worker.kill()
            self._worker = None
            _killed.inc()
            log.error("a model process did not answer within %g s, and was killed", limit_s)
            if late is not None:
                late()
            raise DeadlineExceeded(f"the models did not end within {limit_s:g} s", reason="TIMED_OUT") from None
        except (EOFError, OSError):
            worker.kill()
            self._worker = None
            if not self._stopped:
                log.error("the model process died")
            raise Unavailable("the model process died; it is started again", reason="MODEL_PROCESS") from None


class _TooLong(Exception):
    """No answer yet."""


class _Worker:
    """A process at the other end of a pipe. No executor of processes: their semaphores outlive a kill, in /dev/shm."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")  # fork and threads do not go together
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), name="models", daemon=True)
        self._process.start()
        theirs.close()

    def ask(self, function: Callable[..., Any], args: tuple[Any, ...], *, limit_s: float) -> Any:
        """Its answer, or the error that it raised. EOFError or OSError: it has died; _TooLong: it is still at it."""
        self._pipe.send((function, args))
        if not self._pipe.poll(limit_s):
            raise _TooLong
        answer, error = self._pipe.recv()
        if error is not None:
            raise error
        return answer

    def kill(self) -> None:
        """At once: what it holds can be fitted again; its work is only computing."""
        self._process.kill()
        self._process.join()


def _serve(pipe: Any) -> None:
    _follow_parent()
    with contextlib.suppress(EOFError, OSError):
        while True:
            function, args = pipe.recv()
            try:
                pipe.send((function(*args), None))
            except Exception as error:  # the service answers it to whoever asked
                pipe.send((None, error))


def _follow_parent() -> None:
    """In the worker: end with the parent, however it ends; leave signals of the terminal to it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            with contextlib.suppress(OSError):
                multiprocessing.connection.wait([parent.sentinel])
        os._exit(0)

    threading.Thread(target=watch, name="follow-parent", daemon=True).start()
