"""What the use cases need from the outside, so that tests bring their own."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from recmesh.serving.settings import ServingSettings
from services.gateway.domain.load import Load
from services.gateway.domain.models import ModelVersion
from services.gateway.domain.predictions import Prediction
from services.gateway.domain.scaling import Own
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

    def waits(self, framework: str, key: str) -> str:
        """What a load of the model that is under way waits for, where that is known; else empty."""
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

    async def freshen(
        self, framework: str, key: str, act: str, version: int, *, settings: ServingSettings, timeout_s: float
    ) -> "Document":
        """Of a model that follows a job: `status` and `versions`, after `act` (status | rollback | resume)."""
        ...


class Features(Protocol):
    """Where raw columns become inputs."""

    async def transform(
        self, key: str, folder: Path, form: str, columns: Sequence[Tensor], *, timeout_s: float, priority: int
    ) -> tuple[list[Tensor], Times]:
        """The model's inputs; InvalidArgument names columns that are wrong."""
        ...

    def forget(self, key: str) -> None:
        """The model is gone."""
        ...


Inspect = Callable[[str, Path], Awaitable[dict[str, Any]]]
"""Framework and program to its `model.json`; InvalidArgument says why there can be none."""

LogPrediction = Callable[[Prediction], object]
"""Takes a prediction to be logged; returns at once."""


class Fleets(Protocol):
    """Processes of models that share theirs with no others; where versions have them in several ways, each apart."""

    def scaled(self) -> Mapping[str, Own]:
        """Those whose number may change, by a key of theirs."""
        ...

    async def measured(self, key: str) -> Mapping[str, Load]:
        """By kind (`cn`, `hn`), what they did since this was last asked. NotFound."""
        ...

    async def grow(self, key: str, kind: str) -> None:
        """One process more; returns when it takes requests. NotFound, or why it cannot be started."""
        ...

    async def shrink(self, key: str, kind: str) -> None:
        """One less; returns when it gets no more requests, and leaves it to finish what is in it. NotFound."""
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
