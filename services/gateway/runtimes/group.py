"""Processes that run models of one framework in one way, seen from outside as one model server."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from recmesh.runtime.errors import Unavailable
from recmesh.serving.settings import ServingSettings
from recmesh.serving.tensors import Tensor
from services.gateway.domain.statistics import Times
from services.gateway.runtimes.fleet import Fleet
from services.gateway.runtimes.process import Lost


class Group:
    """One fleet of each kind of process. Requests go to the first kind, which needs the others.

    Each process may die: it is started again with its models, and the others keep their own. Where none of a kind is
    left, requests are refused at once meanwhile.
    """

    fleets: Mapping[str, Fleet]
    """By kind, `cn` or `hn`; who takes requests comes first."""

    def __init__(self, lost: Lost) -> None:
        """`lost` is told of a model that no process of a kind could bring back."""
        self._lost = lost

    @property
    def models(self) -> list[str]:
        """Keys of the loaded models."""
        return self._asked.models

    def serves(self, key: str) -> bool:
        """True when a request for the model would be run now."""
        return all(fleet.serves(key) for fleet in self.fleets.values())

    def waits(self, key: str) -> str:
        """What a load of the model that is under way waits for, where a process says so; else empty."""
        return next((why for fleet in self.fleets.values() if (why := fleet.waits(key))), "")

    async def load(self, key: str, folder: Path, *, settings: ServingSettings, timeout_s: float) -> None:
        """Load and warm up; returns when a request has gone all the way."""
        done: list[Fleet] = []
        try:
            for fleet in reversed(list(self.fleets.values())):
                await fleet.load(key, folder, settings=settings, timeout_s=timeout_s)
                done.append(fleet)
        except BaseException:
            if key not in self.models:           # else it was served before, and still is if its files are the same
                for fleet in done:
                    await fleet.unload(key)
            raise

    async def unload(self, key: str) -> None:
        """Forget the model."""
        for fleet in self.fleets.values():
            await fleet.unload(key)

    async def infer(
        self, key: str, inputs: Sequence[Tensor], outputs: Sequence[str], *, timeout_s: float, priority: int
    ) -> tuple[list[Tensor], Times]:
        """Run the model. Refusals: queue full, deadline over, all processes of a kind down."""
        _, *needed = self.fleets.items()
        for kind, fleet in needed:
            if not fleet.serves(key):
                raise Unavailable(f"no {kind.upper()} runs {key}: {fleet.reason}", reason="RUNTIME_DOWN")
        return await self._asked.infer(key, inputs, outputs, timeout_s=timeout_s, priority=priority)

    async def freshen(
        self, key: str, act: str, version: int, *, settings: ServingSettings, timeout_s: float
    ) -> dict[str, Any]:
        """See ModelServer.freshen; told to all that are asked, and they have their HNs hold what they need."""
        return await self._asked.freshen(key, act, version, settings=settings, timeout_s=timeout_s)

    async def stop(self) -> None:
        """End all; calls in flight fail."""
        for fleet in self.fleets.values():
            await fleet.stop()

    @property
    def _asked(self) -> Fleet:
        return next(iter(self.fleets.values()))

    def _none_left(self, key: str, reason: str) -> None:
        """Of one kind: without it the others are of no use."""
        for fleet in self.fleets.values():
            fleet.forget(key)
        self._lost(key, reason)
