"""A supervised model server: a process with any number of models, restarted with backoff when it dies."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from recmesh.runtime.errors import DeadlineExceeded, MeshError, Unavailable
from recmesh.serving.settings import ServingSettings
from recmesh.serving.tensors import Tensor
from services.gateway.domain.inference import NO_PRIORITY
from services.gateway.domain.statistics import Times
from services.gateway.runtimes.gate import Gate
from services.gateway.runtimes.link import SILENT, Link

RELOAD_ATTEMPTS = 2
STABLE_S = 60.0
LOAD_GRACE_S = 1.0
"""For a process to say itself that a load took too long."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a model server."""

    queue: int = 256
    """Requests that may wait; one more is refused."""
    in_flight: int = 64
    """Requests in a process, where they wait in their model's own queue and may be run together."""
    start_s: float = 120.0
    """For the process to import its framework."""
    hang_s: float = 120.0
    """No answer for so long after a call's deadline means that the process hangs; it is killed."""
    backoff_s: tuple[float, ...] = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


Lost = Callable[[str, str], None]
"""Told of a model that could not be brought back after a restart, and why."""


@dataclass(frozen=True, slots=True)
class _Loaded:
    """What is loaded again after a restart."""

    header: Mapping[str, object]
    timeout_s: float


class ModelServer:
    """Keeps a process running, and its models loaded in it. `command`: a module of ours and its arguments."""

    def __init__(
        self,
        framework: str,
        *,
        command: Sequence[str],
        environment: Mapping[str, str],
        limits: Limits,
        lost: Lost,
        log: Callable[[str], None],
    ) -> None:
        self.framework = framework
        self.version = ""
        self.restarts = 0
        self._command = command
        self._environment = environment
        self._limits = limits
        self._lost = lost
        self._log = log
        self._loaded: dict[str, _Loaded] = {}
        self._crashes_on_reload: dict[str, int] = {}
        self._gate = Gate(slots=limits.in_flight, waiting=limits.queue)
        self._link: Link | None = None
        self._up = asyncio.Event()
        self._reason = "it is starting"
        self._supervisor = asyncio.create_task(self._supervise(), name=f"model-server-{framework}")

    @property
    def models(self) -> list[str]:
        """Keys of the loaded models."""
        return list(self._loaded)

    @property
    def queued(self) -> int:
        """Requests that wait."""
        return self._gate.queued

    @property
    def pid(self) -> int:
        """The process; 0 between two runs of it."""
        return self._link.pid if self._link is not None and not self._link.ended.is_set() else 0

    @property
    def reason(self) -> str:
        """Why it is down, when it is."""
        return self._reason

    def forget(self, key: str) -> None:
        """Do not load this model again; where it is loaded, free it in the background."""
        if self._loaded.pop(key, None) is not None and self._link is not None and self._up.is_set():
            self._link.tell({"op": "unload", "model": key})

    def serves(self, key: str) -> bool:
        """True when a request for the model would be run now."""
        return key in self._loaded and self._up.is_set()

    async def load(
        self, key: str, folder: Path, *, settings: ServingSettings, part: str, timeout_s: float
    ) -> None:
        """Load and warm up; returns when the model can serve. Other models go on serving meanwhile."""
        header = {
            "op": "load", "model": key, "folder": str(folder), "part": part, "timeout_s": timeout_s,
            "settings": settings.model_dump(mode="json"),
        }  # fmt: skip
        link = await self._started(timeout_s)
        try:
            await link.call(header, timeout_s=timeout_s + LOAD_GRACE_S)
        except DeadlineExceeded as error:
            if error.reason == SILENT:
                link.kill()  # its loading thread is stuck; the others come back in seconds
            raise
        self._loaded[key] = _Loaded(header, timeout_s)

    async def unload(self, key: str) -> None:
        """Forget the model."""
        if self._loaded.pop(key, None) is not None and self._link is not None and self._up.is_set():
            with contextlib.suppress(MeshError):  # a dead process has forgotten it already
                await self._link.call({"op": "unload", "model": key}, timeout_s=10.0)

    async def infer(
        self, key: str, inputs: Sequence[Tensor], outputs: Sequence[str], *, timeout_s: float, priority: int
    ) -> tuple[list[Tensor], Times]:
        """Run the model. Refusals: queue full, deadline over, process down."""
        arrived = time.monotonic()
        await self._gate.enter(priority=priority, timeout_s=timeout_s)
        link = self._link
        if link is None or not self._up.is_set():
            self._gate.leave()
            raise Unavailable(
                f"the {self.framework} model server is down: {self._reason}", reason="RUNTIME_DOWN"
            )
        waited_s = time.monotonic() - arrived
        left_s = timeout_s - waited_s
        if left_s <= 0:
            self._gate.leave()
            raise DeadlineExceeded("the deadline was over before the model was free", reason="DEADLINE_IN_QUEUE")
        header = {
            "op": "infer", "model": key, "outputs": list(outputs), "budget_ns": int(left_s * 1e9),
            "priority": 0 if priority == NO_PRIORITY else priority,
        }  # fmt: skip
        reply, tensors = await link.call(header, inputs, timeout_s=left_s, answered=self._gate.leave)
        queue_ns = int(waited_s * 1e9) + int(reply["queue_ns"])
        return tensors, Times(
            queue_ns, int(reply["input_ns"]), int(reply["compute_ns"]), int(reply["output_ns"]),
            int(reply["executions"]),
        )  # fmt: skip

    async def stop(self) -> None:
        """End the process; calls in flight fail."""
        self._up.clear()
        self._supervisor.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._supervisor
        if self._link is not None:
            await self._link.stop()

    async def _started(self, timeout_s: float) -> Link:
        try:
            async with asyncio.timeout(timeout_s):
                await self._up.wait()
        except TimeoutError:
            raise Unavailable(
                f"the {self.framework} model server did not start: {self._reason}", reason="RUNTIME_DOWN"
            ) from None
        assert self._link is not None, "up without a process"
        return self._link

    async def _supervise(self) -> None:
        failures = 0
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                await self._run_once()
            except (OSError, MeshError, TimeoutError) as error:
                self._reason = str(error) or type(error).__name__
            self._up.clear()
            if self._link is not None:
                self._link.kill()
                await self._link.ended.wait()
                self._reason = f"{self._reason} ({self._link.exit})"
            failures = 1 if loop.time() - began > STABLE_S else failures + 1
            self.restarts += 1
            delay_s = self._limits.backoff_s[min(failures, len(self._limits.backoff_s)) - 1]
            self._log(
                f"the {self.framework} model server ended: {self._reason}; starting again in {delay_s} s"
            )
            await asyncio.sleep(delay_s)

    async def _run_once(self) -> None:
        """Start, bring the models back, and stay until the process ends."""
        link = self._link = await Link.start(self._command, environment=self._environment)
        self.version = await link.hello(self._limits.start_s)
        for key, loaded in list(self._loaded.items()):
            await self._reload(link, key, loaded)
        self._reason = "it ended"
        self._up.set()
        while not link.ended.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await link.ended.wait()
            if link.overdue_s > self._limits.hang_s:
                self._reason = f"it did not answer until {self._limits.hang_s} s after a call's deadline"
                link.kill()

    async def _reload(self, link: Link, key: str, loaded: _Loaded) -> None:
        try:
            await link.call(dict(loaded.header), timeout_s=loaded.timeout_s + LOAD_GRACE_S)
            self._crashes_on_reload.pop(key, None)
        except Unavailable:
            crashes = self._crashes_on_reload[key] = self._crashes_on_reload.get(key, 0) + 1
            if crashes >= RELOAD_ATTEMPTS:
                self._give_up(key, "its model server dies while loading it")
            raise
        except MeshError as error:
            self._give_up(key, str(error))

    def _give_up(self, key: str, reason: str) -> None:
        self._loaded.pop(key, None)
        self._crashes_on_reload.pop(key, None)
        self._lost(key, reason)
