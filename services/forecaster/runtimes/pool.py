"""The process that models run in."""

import asyncio
import contextlib
import logging
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

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
        self._pool = self._new()
        self._warming: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Return at once; the import goes on behind, and the first forecast waits for it."""
        self._warming = asyncio.create_task(self._warm(), name="models-warm")

    async def stop(self) -> None:
        """End the process; forecasts under way fail."""
        if self._warming is not None:
            self._warming.cancel()
            await asyncio.gather(self._warming, return_exceptions=True)
        await asyncio.to_thread(self._end, self._pool)

    async def predict(self, values: Floats, *, horizon: int, season: int, level: float) -> tuple[Predicted, float]:
        """As `models.predict`. ResourceExhausted when too many wait, DeadlineExceeded after the timeout."""
        if self._waiting >= self._max_waiting:
            raise ResourceExhausted(f"{self._waiting} forecasts wait already", reason="BUSY")
        self._waiting += 1
        pool = self._pool
        try:
            future = pool.submit(models.predict, values, horizon=horizon, season=season, level=level)
            return await asyncio.wait_for(asyncio.wrap_future(future), self._timeout_s)
        except BrokenProcessPool:
            self._replace(pool)
            raise Unavailable("the model process died; it is started again", reason="MODEL_PROCESS") from None
        except TimeoutError:
            raise DeadlineExceeded(f"no forecast within {self._timeout_s:g} s", reason="TIMED_OUT") from None
        finally:
            self._waiting -= 1

    async def _warm(self) -> None:
        try:
            await asyncio.wrap_future(self._pool.submit(models.warm))
            log.info("the models are loaded")
        except BrokenProcessPool:
            self._replace(self._pool)

    def _replace(self, broken: ProcessPoolExecutor) -> None:
        if self._pool is broken:
            log.error("the model process died")
            self._pool = self._new()

    @staticmethod
    def _new() -> ProcessPoolExecutor:
        context = multiprocessing.get_context("spawn")  # fork and threads do not go together
        return ProcessPoolExecutor(max_workers=1, mp_context=context, initializer=_follow_parent)

    @staticmethod
    def _end(pool: ProcessPoolExecutor) -> None:
        processes = list((pool._processes or {}).values())
        for process in processes:
            process.kill()  # it holds no state; its work is only computing
        pool.shutdown(wait=True, cancel_futures=True)


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
