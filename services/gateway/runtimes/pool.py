"""One set of processes for each framework and way of running in use."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from recmesh.runtime.errors import Unavailable
from recmesh.serving import halves
from recmesh.serving.settings import ServingSettings
from recmesh.serving.tensors import Tensor
from services.gateway.domain.statistics import Times
from services.gateway.runtimes.process import Limits, ModelServer
from services.gateway.runtimes.split import HN_MODULE, SplitServer

LostFrom = Callable[[str, str, str], None]
"""Told of a framework's model that could not be brought back after a crash: framework, key, and why."""
Lane = tuple[str, str]
"""Framework, and `whole` or `split`."""


@dataclass(frozen=True, slots=True)
class RuntimeStatus:
    """What people want to know of a model server."""

    framework: str
    version: str
    pid: int
    restarts: int
    queued: int
    models: tuple[str, ...]


class _Server(Protocol):
    """Processes that run models of one framework in one way."""

    @property
    def models(self) -> list[str]: ...
    @property
    def processes(self) -> Sequence[ModelServer]: ...
    def serves(self, key: str) -> bool: ...
    async def load(self, key: str, folder: Path, *, settings: ServingSettings, timeout_s: float) -> None: ...
    async def unload(self, key: str) -> None: ...
    async def infer(
        self, key: str, inputs: Sequence[Tensor], outputs: Sequence[str], *, timeout_s: float, priority: int
    ) -> tuple[list[Tensor], Times]: ...
    async def stop(self) -> None: ...


class WholeServer(ModelServer):
    """An HN process that runs whole models, for the gateway alone."""

    @property
    def processes(self) -> Sequence[ModelServer]:
        """This one."""
        return (self,)

    async def load(
        self, key: str, folder: Path, *, settings: ServingSettings, timeout_s: float, part: str = "whole"
    ) -> None:
        """Load and warm up; returns when the model can serve."""
        await super().load(key, folder, settings=settings, part=part, timeout_s=timeout_s)


class Runtimes:
    """Starts a framework's processes with the first model that needs them, and ends them with the last.

    A framework may be asked for under several names, `torch` and `torch#shadow`: each has processes of its own.
    """

    name = "model runtimes"

    def __init__(
        self,
        *,
        environment: Mapping[str, str],
        limits: Limits,
        log: Callable[[str], None],
        lost: LostFrom | None = None,
    ) -> None:
        self._environment = environment
        self._limits = limits
        self._log = log
        self.lost: LostFrom = lost or (lambda _framework, _key, _reason: None)
        self._servers: dict[Lane, _Server] = {}
        self._lanes: dict[tuple[str, str], Lane] = {}
        """Of each loaded model, by framework and key."""
        self._loading: dict[Lane, int] = {}
        self._stopping: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Nothing runs until a model is loaded."""

    async def stop(self) -> None:
        """End all processes."""
        servers = list(self._servers.values())
        self._servers.clear()
        await asyncio.gather(*(server.stop() for server in servers), *self._stopping)

    def serves(self, framework: str, key: str) -> bool:
        """True when a request for the model would be run now."""
        server = self._of(framework, key)
        return server is not None and server.serves(key)

    async def load(
        self, framework: str, key: str, folder: Path, *, settings: ServingSettings, timeout_s: float
    ) -> None:
        """Load a model, in halves or whole as its settings and folder say; returns when it can serve."""
        split = await asyncio.to_thread(halves.is_split, folder, settings)
        lane = (framework, "split" if split else "whole")
        before = self._lanes.get((framework, key))
        server = self._servers.get(lane)
        if server is None:
            server = self._servers[lane] = self._made(lane)
        self._loading[lane] = self._loading.get(lane, 0) + 1
        try:
            await server.load(key, folder, settings=settings, timeout_s=timeout_s)
            self._lanes[framework, key] = lane
            if before is not None and before != lane:
                await self._drop(before, key)
        finally:
            self._loading[lane] -= 1
            self._end_when_idle(lane)

    async def unload(self, framework: str, key: str) -> None:
        """Forget a model."""
        lane = self._lanes.pop((framework, key), None)
        if lane is not None:
            await self._drop(lane, key)

    async def infer(
        self,
        framework: str,
        key: str,
        inputs: Sequence[Tensor],
        outputs: Sequence[str],
        *,
        timeout_s: float,
        priority: int,
    ) -> tuple[list[Tensor], Times]:
        """Run a model."""
        server = self._of(framework, key)
        if server is None:
            raise Unavailable(f"no {framework} model server runs {key}", reason="RUNTIME_DOWN")
        return await server.infer(key, inputs, outputs, timeout_s=timeout_s, priority=priority)

    def status(self) -> list[RuntimeStatus]:
        """All processes."""
        return [
            RuntimeStatus(
                item.framework, item.version, item.pid, item.restarts, item.queued, tuple(item.models)
            )
            for server in self._servers.values()
            for item in server.processes
        ]

    def _of(self, framework: str, key: str) -> _Server | None:
        lane = self._lanes.get((framework, key))
        return None if lane is None else self._servers.get(lane)

    def _made(self, lane: Lane) -> _Server:
        name, way = lane
        framework = name.partition("#")[0]

        def lost(key: str, reason: str) -> None:
            if self._lanes.get((name, key)) == lane:     # else it is served in the other way by now
                del self._lanes[name, key]
                self.lost(name, key, reason)

        if way == "split":
            return SplitServer(
                framework, environment=self._environment, limits=self._limits, lost=lost, log=self._log
            )
        return WholeServer(
            framework, command=[HN_MODULE, "--framework", framework], environment=self._environment,
            limits=self._limits, lost=lost, log=self._log,
        )  # fmt: skip

    async def _drop(self, lane: Lane, key: str) -> None:
        server = self._servers.get(lane)
        if server is not None:
            await server.unload(key)
            self._end_when_idle(lane)

    def _end_when_idle(self, lane: Lane) -> None:
        server = self._servers.get(lane)
        if server is not None and not server.models and not self._loading.get(lane):
            del self._servers[lane]
            task = asyncio.create_task(server.stop(), name=f"stop-{'-'.join(lane)}")
            self._stopping.add(task)
            task.add_done_callback(self._stopping.discard)
