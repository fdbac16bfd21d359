"""What happened to requests: totals, rates, percentiles, the last ones. In memory, since the start."""

from collections import Counter, deque
from collections.abc import Sequence

from recmesh.runtime import telemetry
from recmesh.runtime.clock import Clock
from recmesh.runtime.errors import MeshError
from services.gateway.app.ports import TellRates
from services.gateway.domain.scaling import Phases
from services.gateway.domain.statistics import PHASES, ModelStatistics, Outcome, RateCounter

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


class _Meters:
    """A version's series: to find them by their labels takes longer than to count."""

    def __init__(self, model: str, version: str) -> None:
        self.phases = {phase: _phases.labels(model, version, phase) for phase in PHASES}
        self.seconds = _seconds.labels(model, "ok")
        self.samples = _samples.labels(model)


def series_of(model: str) -> str:
    """The name under which a model's request rate is forecast."""
    return f"model/{model}"


class Observation:
    """Counts outcomes; tells rates on the bus."""

    def __init__(self, *, clock: Clock, rate_step_s: float, tell_rates: TellRates) -> None:
        self._clock = clock
        self.step_s = rate_step_s
        self._tell_rates = tell_rates
        self.statistics: dict[tuple[str, str], ModelStatistics] = {}
        self.rates: dict[str, RateCounter] = {}
        self._meters: dict[tuple[str, str], _Meters] = {}
        self.recent: deque[Outcome] = deque(maxlen=RECENT)
        self.came: Counter[tuple[str, str]] = Counter()
        """Requests by model and version that came to be answered, whatever becomes of them; copies for shadows are
        none."""

    def now(self) -> float:
        """Unix seconds of the clock that outcomes are stamped by."""
        return self._clock.now()

    def watch(self, model: str) -> None:
        """Count this model's rate from now on: no requests are zeros, which a forecast must see too."""
        if model not in self.rates:
            self.rates[model] = RateCounter(self.step_s)
            self.rates[model].advance(self._clock.now())

    def forget(self, model: str) -> None:
        """Tell this model's rate no more."""
        self.rates.pop(model, None)

    def came_of(self, model: str) -> dict[str, int]:
        """By version, since the start."""
        return {version: count for (name, version), count in self.came.items() if name == model}

    def phases(self, model: str) -> dict[str, Phases]:
        """By version, since the start."""
        return {
            version: Phases(
                item.success.count,
                (item.queue.ns, item.compute_input.ns, item.compute_infer.ns, item.compute_output.ns),
            )
            for (name, version), item in self.statistics.items() if name == model
        }

    def add(self, outcome: Outcome) -> None:
        """Count one request."""
        key = (outcome.model, outcome.version)
        self.statistics.setdefault(key, ModelStatistics()).add(outcome)
        meters = self._meters.get(key) or self._meters.setdefault(key, _Meters(*key))
        if outcome.error:
            _failures.labels(*key, outcome.reason).inc()
        elif outcome.times is not None:
            for phase, taken_ns in outcome.times.phases.items():
                meters.phases[phase].observe(taken_ns / 1e9)
        if outcome.copy:
            return      # nobody asked for it: it is no part of the traffic
        self.watch(outcome.model)
        self.rates[outcome.model].add(outcome.at)
        self.recent.append(outcome)
        if outcome.error:
            _seconds.labels(outcome.model, "error").observe(outcome.total_s)
        else:
            meters.seconds.observe(outcome.total_s)
            meters.samples.inc(outcome.samples)

    async def tell(self) -> float:
        """Publish the windows that ended; answers when the next one ends. What cannot be told is kept."""
        now = self._clock.now()
        taken = {model: counter.take(now) for model, counter in self.rates.items()}
        rates = {series_of(model): points for model, points in taken.items() if points}
        if rates:
            try:
                await self._tell_rates(self.step_s, rates)
            except MeshError as error:
                for model, points in taken.items():
                    if model in self.rates:
                        self.rates[model].unsent.extendleft(reversed(points))
                _log.warning("rates of %d models cannot be told: %s", len(rates), error)
        return self.step_s - now % self.step_s + 0.05

    def chart(self) -> dict[str, Sequence[tuple[float, float]]]:
        """Requests per second of each model over the last hour."""
        now = self._clock.now()
        for counter in self.rates.values():
            counter.advance(now)
        return {model: list(counter.closed) for model, counter in self.rates.items()}
