"""The process that transforms raw columns; started with the first request that has some, ended with the last model."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context
from pathlib import Path

from recmesh.runtime.errors import DeadlineExceeded
from recmesh.serving.settings import ServingSettings
from recmesh.serving.tensors import Tensor
from services.gateway.domain.statistics import Times
from services.gateway.runtimes.process import Limits, ModelServer

MODULE = "recmesh.serving.raw"
LOAD_S = 30.0
AT_ONCE = 64
"""Requests in the process, whose threads take them in turn: others wait before it, by priority and deadline."""


class Features:
    """Transforms of models, each loaded when it is first asked for."""

    name = "feature transforms"

    def __init__(
        self, *, environment: Mapping[str, str], limits: Limits, functions: Path | None, log: Callable[[str], None]
    ) -> None:
        self._environment = environment
        self._limits = limits
        self._command = [MODULE, *(["--functions", str(functions)] if functions else [])]
        self._log = log
        self._server: ModelServer | None = None
        self._loading: dict[str, asyncio.Task[None]] = {}
        self._unwanted: set[str] = set()
        """Models that went while they were loaded."""
        self._stopping: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Nothing runs until it is asked for."""

    async def stop(self) -> None:
        """End the process."""
        if self._server is not None:
            self._end(self._server)
        await asyncio.gather(*self._loading.values(), *self._stopping, return_exceptions=True)

    async def transform(
        self, key: str, folder: Path, form: str, columns: Sequence[Tensor], *, timeout_s: float, priority: int
    ) -> tuple[list[Tensor], Times]:
        """The model's inputs; InvalidArgument names columns that are wrong, FailedPrecondition why there can be none.

        `key`: of the model version as it was registered, so that another one of its name has another key.
        """
        server = self._server
        if server is None:
            server = self._server = ModelServer(
                "feature", command=self._command, environment=self._environment, limits=self._limits,
                lost=lambda key, reason: self._log(f"the transform of {key} is gone: {reason}"), log=self._log,
            )  # fmt: skip
        if not server.serves(key):
            asked = time.monotonic()
            await self._loaded(server, key, folder, timeout_s)
            timeout_s = max(0.0, timeout_s - (time.monotonic() - asked))
        return await server.infer(key, columns, [form], timeout_s=timeout_s, priority=priority)

    def forget(self, key: str) -> None:
        """The model is gone; with the last one the process ends."""
        server = self._server
        if key in self._loading:
            self._unwanted.add(key)
        elif server is not None:
            server.forget(key)
            if not server.models and not self._loading:
                self._end(server)

    async def _loaded(self, server: ModelServer, key: str, folder: Path, timeout_s: float) -> None:
        """Once, however many requests wait for it; each of them until its own deadline."""
        self._unwanted.discard(key)
        task = self._loading.get(key)
        if task is None:
            task = self._loading[key] = asyncio.create_task(
                server.load(key, folder, settings=ServingSettings(), part="raw", timeout_s=LOAD_S),
                name=f"transform of {key}", context=Context(),     # the deadline of who asked first is not its own
            )
            task.add_done_callback(lambda done: self._load_ended(key))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(task)
        except TimeoutError:
            raise DeadlineExceeded(
                "the deadline was over before the transform was loaded", reason="DEADLINE_IN_LOAD"
            ) from None

    def _load_ended(self, key: str) -> None:
        self._loading.pop(key, None)
        if key in self._unwanted:
            self._unwanted.discard(key)
            self.forget(key)

    def _end(self, server: ModelServer) -> None:
        self._server = None
        task = asyncio.create_task(server.stop(), name="stop-features")
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)
