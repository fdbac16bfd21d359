"""Copies of requests to a version whose answers nobody gets."""

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import Context
from dataclasses import replace

from recmesh.runtime import telemetry
from recmesh.runtime.errors import MeshError
from services.gateway.domain.inference import InferRequest
from services.gateway.domain.traffic import Traffic

IN_FLIGHT = 8
"""Copies under way; more are dropped, for a shadow that is slower than the traffic must not pile it up."""
LAST_PRIORITY = 1 << 30

_metrics = telemetry.Metrics("gateway")
_copies = _metrics.counter(
    "shadow_requests", "Copies of requests to shadow versions", labels=("model", "version", "outcome")
)

Run = Callable[[InferRequest, str], Awaitable[bool]]
"""Run a request on a version; False when it is not loaded."""


class Shadow:
    """Sends copies after the answer is there, so that the request itself waits for nothing."""

    def __init__(self, run: Run, *, draw: Callable[[], float]) -> None:
        self._run = run
        self._draw = draw
        self.tasks: set[asyncio.Task[None]] = set()

    def offer(self, request: InferRequest, rules: Traffic) -> None:
        """Copy this request, if its turn is in the rules' share, and there is room."""
        if self._draw() >= rules.shadow_share:
            return
        if len(self.tasks) >= IN_FLIGHT:
            _copies.labels(request.model, rules.shadow, "dropped").inc()
            return
        parameters = {"priority": LAST_PRIORITY}
        copied = replace(request, version=rules.shadow, outputs=(), parameters=parameters)
        task = asyncio.create_task(self._send(copied, rules.shadow), name="shadow", context=Context())
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _send(self, request: InferRequest, version: str) -> None:
        try:
            outcome = "ok" if await self._run(request, version) else "not_ready"
        except MeshError:
            outcome = "error"
        _copies.labels(request.model, version, outcome).inc()

    async def stop(self) -> None:
        """End copies that are under way."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
