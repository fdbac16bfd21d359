"""Which versions serve, and requests to them. Nothing here is stored: the registry is what lasts."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from recmesh.runtime.clock import Clock
from recmesh.runtime.errors import MeshError
from services.gateway.app.observation import Observation
from services.gateway.app.ports import Runtimes
from services.gateway.domain import inference
from services.gateway.domain.card import ModelCard
from services.gateway.domain.inference import InferRequest, InferResponse
from services.gateway.domain.models import ModelVersion
from services.gateway.domain.statistics import Outcome, Times


@dataclass(slots=True, eq=False)
class Served:
    """A loaded version and the requests in it."""

    record: ModelVersion
    card: ModelCard
    in_flight: int = 0
    idle: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.idle.set()

    @contextmanager
    def busy(self) -> Iterator[None]:
        """While a request is in it, the version is not taken away."""
        self.in_flight += 1
        self.idle.clear()
        try:
            yield
        finally:
            self.in_flight -= 1
            if not self.in_flight:
                self.idle.set()


@dataclass(frozen=True, slots=True)
class ServingLimits:
    """Bounds on the time of requests and loads."""

    infer_timeout_s: float = 30.0
    max_infer_timeout_s: float = 300.0
    load_timeout_s: float = 300.0
    retire_s: float = 30.0
    """How long a replaced version may finish what is in it."""


class Serving:
    """At most one version of a name serves; another takes its place in one step, when it is ready."""

    def __init__(
        self, runtimes: Runtimes, observation: Observation, *, clock: Clock, limits: ServingLimits
    ) -> None:
        self._runtimes = runtimes
        self._observation = observation
        self._clock = clock
        self._limits = limits
        self._current: dict[str, Served] = {}

    def current(self, name: str) -> Served | None:
        """The version of that name that serves."""
        return self._current.get(name)

    def find(self, name: str, version: str = "") -> Served | None:
        """The named version if it serves; with no version, the one that does."""
        served = self._current.get(name)
        return served if served is not None and version in ("", served.record.version) else None

    def is_ready(self, name: str, version: str = "") -> bool:
        """True when a request would be run now."""
        served = self.find(name, version)
        return served is not None and self._runtimes.serves(served.record.framework, served.record.key)

    def swap_in(self, record: ModelVersion, card: ModelCard) -> Served | None:
        """Serve this version from now on; answers with the one that it replaces."""
        before = self._current.get(record.name)
        self._current[record.name] = Served(record, card)
        return before

    def take_out(self, name: str) -> Served | None:
        """Serve no version of the name any more."""
        return self._current.pop(name, None)

    async def retire(self, served: Served) -> None:
        """Free a version that serves no more, once the requests in it are answered."""
        try:
            async with asyncio.timeout(self._limits.retire_s):
                await served.idle.wait()
        except TimeoutError:
            pass  # whoever still waits is answered NOT_LOADED
        current = self._current.get(served.record.name)
        if current is None or current.record.version != served.record.version:
            await self._runtimes.unload(served.record.framework, served.record.key)

    async def infer(
        self, served: Served, request: InferRequest, *, budget_s: float | None = None
    ) -> InferResponse:
        """Check the request against the model, run it, count it."""
        started = self._clock.monotonic()
        samples, times, error = 0, None, ""
        try:
            with served.busy():
                samples = inference.check_inputs(served.card, request.inputs)
                response, times = await self._run(served, request, budget_s)
                return response
        except MeshError as failure:
            error = f"{failure.reason}: {failure}"
            raise
        except asyncio.CancelledError:
            error = "CANCELLED: the caller went away"
            raise
        finally:
            self._observation.add(
                Outcome(
                    self._clock.now(), served.record.name, served.record.version, samples,
                    self._clock.monotonic() - started, times, error,
                )
            )  # fmt: skip

    async def _run(
        self, served: Served, request: InferRequest, budget_s: float | None
    ) -> tuple[InferResponse, Times]:
        outputs = inference.chosen_outputs(served.card, request)
        limit_s = inference.timeout_s(
            request.parameters, default_s=self._limits.infer_timeout_s, max_s=self._limits.max_infer_timeout_s
        )
        limit_s = limit_s if budget_s is None else min(limit_s, budget_s)
        priority = inference.priority(request.parameters)
        tensors, times = await self._runtimes.infer(
            served.record.framework,
            served.record.key,
            request.inputs,
            outputs,
            timeout_s=limit_s,
            priority=priority,
        )
        return InferResponse(served.record.name, served.record.version, tuple(tensors), request.id), times
