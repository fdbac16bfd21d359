"""The process that models run in."""

import asyncio
import contextlib
import logging
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from recmesh.runtime.errors import DeadlineExceeded, ResourceExhausted, Unavailable
from services.forecaster.domain.forecast import Predicted
from services.forecaster.domain.series import Floats
from services.forecaster.runtimes import models

log = logging.getLogger(__name__)


class ModelPool:
    """One worker process, started in the background; made again when it dies."""

    name = "models"

    def __init__(self, *, timeout_s: float = 60.0, max_waiting: int = 32) -> None:
        self._timeout_s, self._max_waiting = timeout_s, max_waiting
        self._waiting = 0
        self._turns = ThreadPoolExecutor(1, thread_name_prefix="models")
        self._worker: _Worker | None = None
        self._stopped = False
        self._warming: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Return at once; the import goes on behind, and the first forecast waits for it."""
        self._warming = asyncio.create_task(self._warm(), name="models-warm")

    async def stop(self) -> None:
        """End the process; forecasts under way fail."""
        if self._warming is not None:
            self._warming.cancel()
            await asyncio.gather(self._warming, return_exceptions=True)
        self._stopped = True
        if self._worker is not None:
            self._worker.kill()
        await asyncio.to_thread(self._turns.shutdown, cancel_futures=True)

    async def predict(self, values: Floats, *, horizon: int, season: int, level: float) -> tuple[Predicted, float]:
        """As `models.predict`. ResourceExhausted when too many wait, DeadlineExceeded after the timeout."""
        if self._waiting >= self._max_waiting:
            raise ResourceExhausted(f"{self._waiting} forecasts wait already", reason="BUSY")
        self._waiting += 1
        try:
            asked = self._turns.submit(self._ask, models.predict, values, horizon=horizon, season=season, level=level)
            answer: tuple[Predicted, float] = await asyncio.wait_for(asyncio.wrap_future(asked), self._timeout_s)
            return answer
        except TimeoutError:
            raise DeadlineExceeded(f"no forecast within {self._timeout_s:g} s", reason="TIMED_OUT") from None
        finally:
            self._waiting -= 1

    async def _warm(self) -> None:
        with contextlib.suppress(Unavailable):
            await asyncio.wrap_future(self._turns.submit(self._ask, models.warm))
            log.info("the models are loaded")

    def _ask(self, function: Callable[..., Any], *args: Any, **named: Any) -> Any:
        """One after the other, in the thread for it."""
        if self._stopped:
            raise Unavailable("the service stops", reason="MODEL_PROCESS")
        worker = self._worker = self._worker or _Worker()
        try:
            return worker.ask(function, args, named)
        except (EOFError, OSError):
            worker.kill()
            self._worker = None
            if not self._stopped:
                log.error("the model process died")
            raise Unavailable("the model process died; it is started again", reason="MODEL_PROCESS") from None


class _Worker:
    """A process at the other end of a pipe. No executor of processes: their semaphores outlive a kill, in /dev/shm."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")  # fork and threads do not go together
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), name="models", daemon=True)
        self._process.start()
        theirs.close()

    def ask(self, function: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Its answer, or the error that it raised. EOFError or OSError: it has died."""
        self._pipe.send((function, args, named))
        answer, error = self._pipe.recv()
        if error is not None:
            raise error
        return answer

    def kill(self) -> None:
        """At once: it holds no state; its work is only computing."""
        self._process.kill()
        self._process.join()


def _serve(pipe: Any) -> None:
    _follow_parent()
    with contextlib.suppress(EOFError, OSError):
        while True:
            function, args, named = pipe.recv()
            try:
                pipe.send((function(*args, **named), None))
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
