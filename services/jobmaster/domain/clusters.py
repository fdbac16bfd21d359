"""Which of several clusters a new job goes to. Pure."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from services.jobmaster.domain.job import Capacity

PREFIX = "cluster."
"""Labels of a job that begin so must be the cluster's own: `cluster.region: eu`, `cluster.name: east`."""
ANY = "gpu"
SETTLE_S = 15.0
"""A process that has begun may be missing for so long in what its cluster says is free: it measures every 10 s."""
UNUSED_S = 120.0
"""A choice of which no process was asked for in so long is of a job that does not start; one whose processes have all
begun so long ago, of a job that needs less than was thought."""
LEAST = 1e-6
"""Cores and GPUs below this are what is left of a sum of fractions."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What a job begins with."""

    cpu: float = 0.0
    memory_bytes: int = 0
    gpus: Mapping[str, float] = field(default_factory=dict)
    """By kind; `gpu` is any."""
    most_cpu: float = 0.0
    """Of one of its processes."""
    most_memory_bytes: int = 0

    def less(self, other: "Needs") -> "Needs":
        """What is left of it without the other, nothing below 0."""
        gpus = {kind: count - other.gpus.get(kind, 0.0) for kind, count in self.gpus.items()}
        return replace(
            self, cpu=max(0.0, self.cpu - other.cpu), memory_bytes=max(0, self.memory_bytes - other.memory_bytes),
            gpus={kind: count for kind, count in gpus.items() if count > LEAST},
        )

    @property
    def is_nothing(self) -> bool:
        """Nothing is left of it."""
        return self.cpu <= LEAST and not self.memory_bytes and not self.gpus


def together(amounts: Iterable[tuple[int, float, int, float, str]]) -> Needs:
    """Of (processes, cores, bytes, GPUs, kind of GPU) each."""
    cpu, memory_bytes, gpus, most_cpu, most_bytes = 0.0, 0, dict[str, float](), 0.0, 0
    for count, cores, size, gpu, kind in amounts:
        if not count:
            continue
        cpu += count * cores
        memory_bytes += count * size
        most_cpu, most_bytes = max(most_cpu, cores), max(most_bytes, size)
        if gpu:
            gpus[kind or ANY] = gpus.get(kind or ANY, 0.0) + count * gpu
    return Needs(cpu, memory_bytes, gpus, most_cpu, most_bytes)


def is_allowed(asked: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    """A cluster with these labels is one that a job with these may run in."""
    return all(
        labels.get(name.removeprefix(PREFIX)) == value for name, value in asked.items() if name.startswith(PREFIX)
    )


def best(needs: Needs, free: Mapping[str, Capacity]) -> str:
    """The cluster in which the scarcest of what the job needs is most plentiful: that with the largest least ratio of
    free to needed. Equals by their order; of clusters without GPUs that are needed, one only where all are; so of those
    without a node that is large enough for each process."""
    return max(free, key=lambda name: (_has_gpus(needs, free[name]), _has_node(needs, free[name]),
                                       _ratio(needs, free[name])))


def _has_gpus(needs: Needs, free: Capacity) -> bool:
    return all(free.gpus.get(kind, 0.0) >= count for kind, count in needs.gpus.items())


def _has_node(needs: Needs, free: Capacity) -> bool:
    return free.node_cpu >= needs.most_cpu and free.node_memory_bytes >= needs.most_memory_bytes


def _ratio(needs: Needs, free: Capacity) -> float:
    pairs = [
        (free.cpu, needs.cpu or 1.0), (float(free.memory_bytes), float(needs.memory_bytes or 1 << 30)),
        *((free.gpus.get(kind, 0.0), count) for kind, count in needs.gpus.items()),
    ]
    return min(have / need for have, need in pairs)


@dataclass(slots=True)
class _Booking:
    cluster: str
    needs: Needs
    at: float
    asked: dict[str, Needs] = field(default_factory=dict)
    """Processes that were asked for, by name."""
    begun: dict[str, float] = field(default_factory=dict)
    """Since when they were seen to have begun."""

    def waiting(self, now: float) -> Needs:
        """Of its needs, without what has begun long enough ago for its cluster to count it itself."""
        left = self.needs
        for name, since in self.begun.items():
            if now - since >= SETTLE_S:
                left = left.less(self.asked[name])
        return left

    def is_over(self, now: float, *, lives: bool) -> bool:
        """Nothing more will begin of it."""
        if not self.asked:
            return now - self.at > UNUSED_S
        has_begun = self.asked.keys() <= self.begun.keys() and now - max(self.begun.values()) > UNUSED_S
        return not lives or has_begun or self.waiting(now).is_nothing


class Bookings:
    """Clusters that were chosen for jobs which have not wholly begun there: what these need is not free any more,
    though their cluster says so."""

    def __init__(self) -> None:
        self._by_job: dict[str, _Booking] = {}

    def cluster_of(self, job_id: str) -> str:
        """The one that is booked; empty: none."""
        booking = self._by_job.get(job_id)
        return booking.cluster if booking is not None else ""

    def jobs(self) -> list[tuple[str, str]]:
        """(job, cluster) of all that have not wholly begun."""
        return [(job_id, booking.cluster) for job_id, booking in self._by_job.items()]

    def book(self, job_id: str, cluster: str, needs: Needs, now: float) -> None:
        """It was chosen, in place of what was before."""
        self._by_job[job_id] = _Booking(cluster, needs, now)

    def ask(self, job_id: str, name: str, needs: Needs) -> None:
        """A process of the job is being started there."""
        if job_id in self._by_job:
            self._by_job[job_id].asked[name] = needs

    def see(self, job_id: str, *, living: Collection[str], begun: Collection[str], now: float) -> None:
        """Which of its processes there are, and which of these have a place. A job that was started, and of which none
        lives, is over; one of which none was asked for will not begin."""
        booking = self._by_job.get(job_id)
        if booking is None:
            return
        for name in begun:
            if name in booking.asked:
                booking.begun.setdefault(name, now)
        if booking.is_over(now, lives=bool(living)):
            del self._by_job[job_id]

    def forget(self, job_id: str) -> None:
        """It needs nothing there."""
        self._by_job.pop(job_id, None)

    def left(self, cluster: str, free: Capacity, *, but: str, now: float) -> Capacity:
        """What the cluster has free without what others than `but` are to have there; below 0 where they wait for room
        already, so that the next one goes where fewer wait."""
        cpu, memory_bytes, gpus = free.cpu, free.memory_bytes, dict(free.gpus)
        for job_id, booking in self._by_job.items():
            if booking.cluster != cluster or job_id == but:
                continue
            waiting = booking.waiting(now)
            cpu, memory_bytes = cpu - waiting.cpu, memory_bytes - waiting.memory_bytes
            for kind, count in waiting.gpus.items():
                for each in {kind, ANY} & gpus.keys():
                    gpus[each] -= count
        return replace(free, cpu=cpu, memory_bytes=memory_bytes, gpus=gpus)
