"""What Prometheus sees of forecasts and their errors: a bounded number of label sets, none of them stale."""

from collections import OrderedDict
from collections.abc import Iterable

from prometheus_client import Gauge

from recmesh.runtime.telemetry import Metrics
from services.forecaster.domain.forecast import Forecast
from services.forecaster.domain.scaling import highest
from services.forecaster.domain.scoring import PastError

MAX_SETS = 20_000
"""Label sets of one gauge; the one that was set least lately makes room."""
_metrics = Metrics("forecaster")
_rate = _metrics.gauge(
    "rate_forecast", "Largest rate that is expected from now to `horizon` seconds ahead",
    labels=("series", "horizon", "quantile"),
)
_wape = _metrics.gauge(
    "past_wape", "Error of forecasts made `lead` seconds before, a share", labels=("series", "lead")
)
_coverage = _metrics.gauge(
    "past_coverage", "Share of truths within the interval that was said `lead` seconds before",
    labels=("series", "lead"),
)


class BoundedGauge:
    """A gauge whose label sets come and go."""

    def __init__(self, gauge: Gauge, *, max_sets: int = MAX_SETS) -> None:
        self._gauge, self._max_sets = gauge, max_sets
        self._set_at: OrderedDict[tuple[str, ...], float] = OrderedDict()

    def set(self, labels: tuple[str, ...], value: float, *, at: float) -> None:
        """It holds until `expire` is called with a later moment."""
        self._gauge.labels(*labels).set(value)
        self._set_at[labels] = at
        self._set_at.move_to_end(labels)
        if len(self._set_at) > self._max_sets:
            self._remove()

    def expire(self, *, before: float) -> None:
        """Forget what was not set since then."""
        while self._set_at and next(iter(self._set_at.values())) < before:
            self._remove()

    def _remove(self) -> None:
        labels, _ = self._set_at.popitem(last=False)
        self._gauge.remove(*labels)


class Gauges:
    """All three."""

    def __init__(self, *, max_sets: int = MAX_SETS) -> None:
        self._rate = BoundedGauge(_rate, max_sets=max_sets)
        self._wape, self._coverage = (BoundedGauge(each, max_sets=max_sets) for each in (_wape, _coverage))

    def expected(self, made: Forecast, horizons_s: Iterable[float], *, now: float, at: float) -> None:
        """The mean, and the upper end of the interval, as far as the forecast goes."""
        reach_s = made.points[-1].at + made.step_s - now if made.points else 0.0
        upper = (1 + made.level) / 2
        for horizon_s in [each for each in horizons_s if each <= reach_s]:
            for quantile in (0.5, upper):
                value = highest(made, since=now, until=now + horizon_s, quantile=quantile)
                if value is not None:
                    self.asked(made.series, horizon_s, quantile, value, at=at)

    def asked(self, series: str, horizon_s: float, quantile: float, value: float, *, at: float) -> None:
        """What somebody scales by."""
        self._rate.set((series, f"{horizon_s:g}", f"{quantile:.4g}"), value, at=at)

    def errors(self, series: str, past: Iterable[PastError], *, at: float) -> None:
        """Of forecasts of a watched series."""
        for each in past:
            labels = (series, f"{each.lead_s:g}")
            self._wape.set(labels, each.wape, at=at)
            self._coverage.set(labels, each.coverage, at=at)

    def expire(self, *, before: float) -> None:
        """Forget what was not set since then."""
        for gauge in (self._rate, self._wape, self._coverage):
            gauge.expire(before=before)
