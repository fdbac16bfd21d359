"""How many replicas a forecast asks for: what a KEDA ScaledObject says in its metadata, and what it is answered."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist

from recmesh.runtime.errors import InvalidArgument, Violation
from recmesh.spec.quantity import seconds
from services.forecaster.domain.forecast import MIN_LEVEL, Forecast, ForecastPoint

DEFAULT_LEAD_S, DEFAULT_WINDOW_S, DEFAULT_QUANTILE = 300.0, 60.0, 0.8
MAX_AHEAD_S = 7 * 86_400.0
MAX_STEPS = 240
"""Of one ask: a longer time is forecast on coarser steps."""
FALLBACK_STEPS = 3
"""Where nothing can be forecast: the largest of so many measured rates."""
OURS = frozenset({"series", "leadTime", "window", "quantile", "targetPerReplica", "activation", "fallback"})


@dataclass(frozen=True, slots=True)
class Scaling:
    """What one trigger asks for. Rates are per second."""

    series: str
    per_replica: float
    lead_s: float = DEFAULT_LEAD_S
    """A replica that is asked for now works so much later."""
    window_s: float = DEFAULT_WINDOW_S
    """And from then on it must be enough for so long."""
    quantile: float = DEFAULT_QUANTILE
    activation: float = 0.0
    """Active above this rate."""
    falls_back: bool = True
    """Without a forecast the rate as it was measured last is the answer; else an error."""

    @property
    def ahead_s(self) -> float:
        """How far it looks."""
        return self.lead_s + self.window_s

    @property
    def level(self) -> float:
        """Of the interval whose upper end is the quantile, as far as intervals go down."""
        return max(2 * self.quantile - 1, MIN_LEVEL)

    @property
    def metric_name(self) -> str:
        """A name that Kubernetes takes in a path."""
        return "recmesh-" + re.sub(r"[^a-z0-9]+", "-", self.series.lower()).strip("-")[:200]

    def step_s(self, own_step_s: float) -> float:
        """The multiple of the series' step on which it is forecast."""
        return own_step_s * max(1, math.ceil(self.ahead_s / own_step_s / MAX_STEPS - 1e-9))


def scaling(metadata: Mapping[str, str]) -> Scaling:
    """Of a trigger's metadata; InvalidArgument names each wrong field. Fields of KEDA's own are left alone."""
    wrong: list[Violation] = []

    def number(name: str, default: float | None, *, least: float, most: float, above: bool = False) -> float:
        text = metadata.get(name, "").strip()
        if not text:
            if default is None:
                wrong.append(Violation(name, "is not set, and has no default"))
            return default or 0.0
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (least < value <= most if above else least <= value <= most):
            span = f"above {least:g} up to {most:g}" if above else f"{least:g} to {most:g}"
            wrong.append(Violation(name, f"{text!r} is not a number of {span}"))
            return default or 0.0
        return value

    def duration(name: str, default: float) -> float:
        text = metadata.get(name, "").strip()
        if not text:
            return default
        try:
            value = float(seconds(float(text) if text.replace(".", "", 1).isdigit() else text))
        except ValueError as error:
            wrong.append(Violation(name, f"{text!r} is no time such as 5m: {error}"))
            return default
        if not 0 <= value <= MAX_AHEAD_S:
            wrong.append(Violation(name, f"{text!r} is not within 0 to {MAX_AHEAD_S / 86_400:g} days"))
            return default
        return value

    series = metadata.get("series", "").strip()
    if not series or len(series) > 200:
        wrong.append(Violation("series", "is not set" if not series else "is longer than 200 characters"))
    fallback = metadata.get("fallback", "last").strip() or "last"
    if fallback not in ("last", "none"):
        wrong.append(Violation("fallback", f"{fallback!r} is neither last nor none"))
    made = Scaling(
        series,
        per_replica=number("targetPerReplica", None, least=0, most=1e12, above=True),
        lead_s=duration("leadTime", DEFAULT_LEAD_S),
        window_s=duration("window", DEFAULT_WINDOW_S),
        quantile=number("quantile", DEFAULT_QUANTILE, least=0.5, most=0.999),
        activation=number("activation", 0.0, least=0, most=1e15),
        falls_back=fallback == "last",
    )
    near = {name.lower(): name for name in OURS}
    wrong += [
        Violation(name, f"is not known here; {near[name.lower()]} is")
        for name in metadata if name not in OURS and name.lower() in near
    ]  # fmt: skip
    if wrong:
        raise InvalidArgument("the trigger's metadata are wrong", violations=wrong)
    return made


def high_quantile(point: ForecastPoint, *, level: float, quantile: float) -> float:
    """Of 0.5 and more. The upper end of the interval is that of (1 + level) / 2; others lie as a normal error's do."""
    end = (1 + level) / 2
    if quantile <= 0.5:
        return point.mean
    if point.high <= point.mean and quantile <= end + 1e-9:
        return point.high       # mostly zeros: no quantile up to the interval's end is above it
    share = 1.0 if abs(quantile - end) < 1e-9 else NormalDist().inv_cdf(quantile) / NormalDist().inv_cdf(end)
    return point.mean + share * (point.high - point.mean)


def highest(made: Forecast, *, since: float, until: float, quantile: float) -> float | None:
    """Of all steps that reach into [since, until); None when the forecast has none there."""
    found = [
        high_quantile(point, level=made.level, quantile=quantile)
        for point in made.points if point.at < max(until, since + 1e-9) and point.at + made.step_s > since
    ]
    return max(found) if found else None
