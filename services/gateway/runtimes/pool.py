"""One model server for each framework in use."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from recmesh.runtime.errors import Unavailable
from services.gateway.domain.statistics import Times
from services.gateway.domain.tensors import Tensor
from services.gateway.runtimes.process import Limits, Lost, ModelServer


@dataclass(frozen=True, slots=True)
class RuntimeStatus:
    """What people want to know of a model server."""

    framework: str
    version: str
    pid: int
    restarts: int
    queued: int
    models: tuple[str, ...]


class Runtimes:
    """Starts a framework's process with the first model of it, and ends it with the last.

    A framework may be asked for under several names, `torch` and `torch#shadow`: each has a process of its own.
    """

    name = "model runtimes"

    def __init__(
        self,
        *,
        environment: Mapping[str, str],
        limits: Limits,
        log: Callable[[str], None],
        lost: Lost | None = None,
    ) -> None:
        self._environment = environment
        self._limits = limits
        self._log = log
        self.lost: Lost = lost or (lambda _key, _reason: None)
        self._servers: dict[str, ModelServer] = {}
        self._loading: dict[str, int] = {}
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
        server = self._servers.get(framework)
        return server is not None and server.serves(key)

    async def load(self, framework: str, key: str, folder: Path, *, timeout_s: float) -> None:
        """Load a model; returns when it can serve."""
        server = self._servers.get(framework)
        if server is None:
            server = self._servers[framework] = ModelServer(
                framework.partition("#")[0], environment=self._environment, limits=self._limits,
                lost=lambda lost_key, reason: self.lost(lost_key, reason), log=self._log,
            )  # fmt: skip
        self._loading[framework] = self._loading.get(framework, 0) + 1
        try:
            await server.load(key, folder, timeout_s=timeout_s)
        finally:
            self._loading[framework] -= 1
            self._end_when_idle(framework)

    async def unload(self, framework: str, key: str) -> None:
        """Forget a model."""
        server = self._servers.get(framework)
        if server is not None:
            await server.unload(key)
            self._end_when_idle(framework)

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
        server = self._servers.get(framework)
        if server is None:
            raise Unavailable(f"no {framework} model server runs", reason="RUNTIME_DOWN")
        return await server.infer(key, inputs, outputs, timeout_s=timeout_s, priority=priority)

    def status(self) -> list[RuntimeStatus]:
        """All model servers."""
        return [
            RuntimeStatus(
                item.framework, item.version, item.pid, item.restarts, item.queued, tuple(item.models)
            )
            for item in self._servers.values()
        ]

    def _end_when_idle(self, framework: str) -> None:
        server = self._servers.get(framework)
        if server is not None and not server.models and not self._loading[framework]:
            del self._servers[framework]
            task = asyncio.create_task(server.stop(), name=f"stop-{framework}")
            self._stopping.add(task)
            task.add_done_callback(self._stopping.discard)
