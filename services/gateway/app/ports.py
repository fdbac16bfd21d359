"""What the use cases need from the outside, so that tests bring their own."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from recmesh.serving.settings import ServingSettings
from services.gateway.domain.models import ModelVersion
from services.gateway.domain.statistics import Times
from services.gateway.domain.tensors import Tensor

Fact = Literal["registered", "ready", "failed", "unloaded"]

TellModel = Callable[[Fact, ModelVersion], Awaitable[None]]
"""Publish `model.<fact>`."""

Lost = Callable[[str, str, str], None]
"""Told of a model that a runtime could not bring back after a crash: the runtime, the model's key, and why."""

TellRates = Callable[[float, Mapping[str, Sequence[tuple[float, float]]]], Awaitable[None]]
"""Publish `rates.observed`: step in seconds, points (start of the step, mean per second) by series."""


class Runtimes(Protocol):
    """Where models run."""

    lost: Lost

    def serves(self, framework: str, key: str) -> bool:
        """True when a request for the model would be run now."""
        ...

    async def load(
        self, framework: str, key: str, folder: Path, *, settings: ServingSettings, timeout_s: float
    ) -> None:
        """Returns when the model can serve, in halves or whole as its settings and folder say."""
        ...

    async def unload(self, framework: str, key: str) -> None:
        """Forget a model."""
        ...

    async def infer(
        self, framework: str, key: str, inputs: Sequence[Tensor], outputs: Sequence[str],
        *, timeout_s: float, priority: int,
    ) -> tuple[list[Tensor], Times]:  # fmt: skip
        """Run a model."""
        ...


Document = dict[str, Any]
"""A JSON object of the REST API."""


class JobEvents(Protocol):
    """The facts about a job, in the order of the bus."""

    async def history(self, job_id: str, *, after: int, limit: int) -> list[Document]:
        """Those with a sequence above `after`, oldest first: `sequence`, `type`, `time`, `id`, `data`."""
        ...

    def live(self, job_id: str, *, after: int) -> AsyncGenerator[Document | None, None]:
        """The same, then new ones as they come; None now and then while none comes."""
        ...
