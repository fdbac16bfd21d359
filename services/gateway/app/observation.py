"""What happened to requests: totals, rates, percentiles, the last ones. In memory, since the start."""

from collections import deque
from collections.abc import Sequence

from recmesh.runtime import telemetry
from recmesh.runtime.clock import Clock
from recmesh.runtime.errors import MeshError
from services.gateway.app.ports import TellRates
from services.gateway.domain.statistics import ModelStatistics, Outcome, RateCounter

RECENT = 200

_log = telemetry.get_logger(__name__)
_metrics = telemetry.Metrics("gateway")
_seconds = _metrics.histogram(
    "infer_seconds", "Time to answer inference requests, without the wire", labels=("model", "outcome")
)
PHASE_SECONDS = (0.00005, 0.0001, 0.00025, 0.0005, *telemetry.SECONDS)
"""A small model's phases are far below a millisecond."""
_phases = _metrics.histogram(
    "infer_phase_seconds", "Where the time of answered requests went: queue, input, infer, output",
    labels=("model", "version", "phase"), buckets=PHASE_SECONDS,
)  # fmt: skip
_failures = _metrics.counter(
    "infer_failures", "Requests that were not answered, by reason", labels=("model", "version", "reason")
)
_samples = _metrics.counter("infer_samples", "Samples that models were run on", labels=("model",))


def series_of(model: str) -> str:
    """The name under which a model's request rate is forecast."""
    return f"model/{model}"


class Observation:
    """Counts outcomes; tells rates on the bus."""

    def __init__(self, *, clock: Clock, rate_step_s: float, tell_rates: TellRates) -> None:
        self._clock = clock
        self._step_s = rate_step_s
        self._tell_rates = tell_rates
        self.statistics: dict[tuple[str, str], ModelStatistics] = {}
        self.rates: dict[str, RateCounter] = {}
        self.recent: deque[Outcome] = deque(maxlen=RECENT)

    def now(self) -> float:
        """Unix seconds of the clock that outcomes are stamped by."""
        return self._clock.now()

    def watch(self, model: str) -> None:
        """Count this model's rate from now on: no requests are zeros, which a forecast must see too."""
        if model not in self.rates:
            self.rates[model] = RateCounter(self._step_s)
            self.rates[model].advance(self._clock.now())

    def forget(self, model: str) -> None:
        """Tell this model's rate no more."""
        self.rates.pop(model, None)

    def add(self, outcome: Outcome) -> None:
        """Count one request."""
        key = (outcome.model, outcome.version)
        self.statistics.setdefault(key, ModelStatistics()).add(outcome)
        if outcome.error:
            _failures.labels(*key, outcome.error.partition(":")[0]).inc()
        elif outcome.times is not None:
            for phase, taken_ns in outcome.times.phases.items():
                _phases.labels(*key, phase).observe(taken_ns / 1e9)
        if outcome.copy:
            return      # nobody asked for it: it is no part of the traffic
        self.watch(outcome.model)
        self.rates[outcome.model].add(outcome.at)
        self.recent.append(outcome)
        _seconds.labels(outcome.model, "error" if outcome.error else "ok").observe(outcome.total_s)
        if not outcome.error:
            _samples.labels(outcome.model).inc(outcome.samples)

    async def tell(self) -> float:
        """Publish the windows that ended; answers when the next one ends. What cannot be told is kept."""
        now = self._clock.now()
        taken = {model: counter.take(now) for model, counter in self.rates.items()}
        rates = {series_of(model): points for model, points in taken.items() if points}
        if rates:
            try:
                await self._tell_rates(self._step_s, rates)
            except MeshError as error:
                for model, points in taken.items():
                    if model in self.rates:
                        self.rates[model].unsent.extendleft(reversed(points))
                _log.warning("rates of %d models cannot be told: %s", len(rates), error)
        return self._step_s - now % self._step_s + 0.05

    def chart(self) -> dict[str, Sequence[tuple[float, float]]]:
        """Requests per second of each model over the last hour."""
        now = self._clock.now()
        for counter in self.rates.values():
            counter.advance(now)
        return {model: list(counter.closed) for model, counter in self.rates.items()}
