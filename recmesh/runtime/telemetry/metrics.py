"""Prometheus metrics of one service, named `recmesh_<service>_<name>`."""

from collections.abc import Mapping, Sequence
from typing import TypeVar
from weakref import WeakKeyDictionary

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics import MetricWrapperBase

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Buckets from a local call to a slow restore."""

BYTES = tuple(float(4**power) for power in range(5, 17))
"""1 KiB to 4 GiB."""

M = TypeVar("M", bound=MetricWrapperBase)
_made: WeakKeyDictionary[CollectorRegistry, dict[str, MetricWrapperBase]] = WeakKeyDictionary()
_series: dict[str, frozenset[str]] = {}


def series() -> Mapping[str, frozenset[str]]:
    """Labels by name, as on the wire, of all that was asked for in this process: also of what has no value yet."""
    return dict(_series)


class Metrics:
    """Factory; asking twice for one name gives the same metric, so that an app may be built twice."""

    def __init__(self, service: str, *, registry: CollectorRegistry = REGISTRY) -> None:
        self._prefix = f"recmesh_{service.replace('-', '_')}_" if service else "recmesh_"
        self._registry = registry

    def counter(self, name: str, about: str, *, labels: Sequence[str] = ()) -> Counter:
        """A count that only grows; its name ends in `_total` on the wire."""
        return self._once(Counter, name, about, labels)

    def gauge(self, name: str, about: str, *, labels: Sequence[str] = ()) -> Gauge:
        """A value that goes up and down."""
        return self._once(Gauge, name, about, labels)

    def histogram(
        self, name: str, about: str, *, labels: Sequence[str] = (), buckets: Sequence[float] = SECONDS
    ) -> Histogram:
        """A distribution; seconds by default."""
        full = self._prefix + name
        there = _made.setdefault(self._registry, {})
        if full not in there:
            there[full] = Histogram(full, about, labels, buckets=buckets, registry=self._registry)
            _series[f"{full}_bucket"] = frozenset({*labels, "le"})
            _series[f"{full}_count"] = _series[f"{full}_sum"] = frozenset(labels)
        made = there[full]
        if not isinstance(made, Histogram):
            raise TypeError(f"{full} is already a {type(made).__name__}")
        return made

    def _once(self, kind: type[M], name: str, about: str, labels: Sequence[str]) -> M:
        full = self._prefix + name
        there = _made.setdefault(self._registry, {})
        if full not in there:
            there[full] = kind(full, about, labels, registry=self._registry)
            _series[f"{full}_total" if kind is Counter else full] = frozenset(labels)
        made = there[full]
        if not isinstance(made, kind):
            raise TypeError(f"{full} is already a {type(made).__name__}")
        return made
