"""Metrics of the CN and HN processes that this gateway has started, which have no port of their own.

Pods have one (`--metrics`), and are scraped there.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from recmesh.serving.metrics import families
from services.gateway.runtimes.pool import RuntimeStatus

PROCESS = "process"
"""The label: its pid."""
PATIENCE_S = 6.0
"""Scrapes wait for ten seconds; what does not answer by then is left out."""
Ask = Callable[[], Awaitable[Sequence[tuple[RuntimeStatus, Mapping[str, Any]]]]]


class Relay(Collector):
    """What processes said when they were asked last."""

    def __init__(self, ask: Ask | None) -> None:
        """ask: None where they are pods."""
        self._ask = ask
        self._states: Sequence[tuple[Mapping[str, str], Mapping[str, Any]]] = ()
        self.registry = CollectorRegistry()
        self.registry.register(self)

    async def look(self) -> None:
        """Ask them; one that is silent is left out, and none of them can keep the gateway's own metrics back."""
        if self._ask is None:
            return
        try:
            async with asyncio.timeout(PATIENCE_S):
                told = await self._ask()
        except TimeoutError:
            told = ()
        self._states = [
            ({PROCESS: str(item.pid)}, said["status"])
            for item, said in told if item.pid and "role" in (said.get("status") or {})
        ]

    def collect(self) -> Iterable[Metric]:
        """As of the last look."""
        return families(self._states, labels=[PROCESS])
