"""What Prometheus sees of single jobs: those that live, and those that ended within the last hour."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

SHOWN_AFTER_END_S = 3600.0
"""Long enough for an alert to name a job that failed; then its series end."""
PREFIX = "recmesh_jobmaster_job_"


@dataclass(frozen=True, slots=True)
class RoleFigures:
    """All processes of a role of one job."""

    live: int = 0
    wanted: int = 0
    memory_bytes: int = 0
    """Of the largest process."""
    memory_limit_bytes: int = 0
    """0: none."""


@dataclass(frozen=True, slots=True)
class JobFigures:
    """One job, now."""

    job_id: str
    owner: str
    phase: str
    samples: int
    expected: int
    """0: not known yet."""
    samples_per_s: float
    failures: int
    rollbacks: int
    snapshot_at: float
    """Unix seconds of the newest snapshot; 0: none yet."""
    snapshot_every_s: float
    lag_s: float | None = None
    """None: it reads no topic."""
    roles: Mapping[str, RoleFigures] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)


_GAUGES: Mapping[str, tuple[str, Callable[[JobFigures], float | None]]] = {
    "samples": ("Samples of the job that are trained", lambda job: job.samples),
    "expected_samples": ("Samples that are to be trained, as far as is known", lambda job: job.expected),
    "samples_per_second": ("Samples that the job trains per second", lambda job: job.samples_per_s),
    "snapshot_timestamp_seconds": (
        "When the job's newest snapshot was committed", lambda job: job.snapshot_at or None
    ),
    "snapshot_every_seconds": ("Between snapshots, as the job asks for", lambda job: job.snapshot_every_s),
    "lag_seconds": ("Age of the oldest message of its topics that the job has not trained", lambda job: job.lag_s),
}  # fmt: skip
_COUNTERS: Mapping[str, tuple[str, Callable[[JobFigures], float]]] = {
    "failures": ("Processes of the job that ended without being told to", lambda job: job.failures),
    "rollbacks": ("Returns of the job to a snapshot", lambda job: job.rollbacks),
}
_ROLES: Mapping[str, tuple[str, Callable[[RoleFigures], float | None]]] = {
    "role_processes": ("Processes of a role that live", lambda role: role.live),
    "role_wanted": ("Processes of a role that the job is to have", lambda role: role.wanted),
    "role_memory_bytes": ("Memory of the largest process of a role", lambda role: role.memory_bytes or None),
    "role_memory_limit_bytes": ("Most memory of one process of a role", lambda role: role.memory_limit_bytes or None),
}


class JobCollector(Collector):
    """Asked anew at each scrape, so that what a job no longer has ends with it."""

    def __init__(self, figures: Callable[[], Iterable[JobFigures]]) -> None:
        self._figures = figures

    def describe(self) -> Iterable[Metric]:
        """Names without values: a registry need not ask for figures to know them."""
        return self._families([])

    def collect(self) -> Iterable[Metric]:
        """All families; those of a job carry its id, bounded by `max_live_jobs`."""
        return self._families(list(self._figures()))

    def _families(self, jobs: list[JobFigures]) -> Iterable[Metric]:
        labels = ["job_id", "owner", "phase"]
        phases = GaugeMetricFamily(f"{PREFIX}phase", "1 for the job's present phase", labels=labels)
        for job in jobs:
            phases.add_metric([job.job_id, job.owner, job.phase], 1.0)
        yield phases
        for name, (about, value) in _GAUGES.items():
            gauge = GaugeMetricFamily(PREFIX + name, about, labels=["job_id"])
            for job in jobs:
                if (found := value(job)) is not None:
                    gauge.add_metric([job.job_id], found)
            yield gauge
        for name, (about, count) in _COUNTERS.items():
            counter = CounterMetricFamily(PREFIX + name, about, labels=["job_id"])
            for job in jobs:
                counter.add_metric([job.job_id], count(job))
            yield counter
        for name, (about, part) in _ROLES.items():
            gauge = GaugeMetricFamily(PREFIX + name, about, labels=["job_id", "role"])
            for job in jobs:
                for role, figures in job.roles.items():
                    if (of_role := part(figures)) is not None:
                        gauge.add_metric([job.job_id, role], of_role)
            yield gauge
        about = "Loss, AUC and what else a job measures"
        learned = GaugeMetricFamily(f"{PREFIX}metric", about, labels=["job_id", "name"])
        for job in jobs:
            for name, found in job.metrics.items():
                learned.add_metric([job.job_id, name], found)
        yield learned


_registered: WeakKeyDictionary[CollectorRegistry, JobCollector] = WeakKeyDictionary()


def register(figures: Callable[[], Iterable[JobFigures]], *, registry: CollectorRegistry = REGISTRY) -> None:
    """Calling again replaces, as an app may be built twice."""
    if (old := _registered.pop(registry, None)) is not None:
        registry.unregister(old)
    made = _registered[registry] = JobCollector(figures)
    registry.register(made)
