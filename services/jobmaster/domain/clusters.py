"""Which of several clusters a new job goes to. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from services.jobmaster.domain.job import Capacity

PREFIX = "cluster."
"""Labels of a job that begin so must be the cluster's own: `cluster.region: eu`, `cluster.name: east`."""
ANY = "gpu"


@dataclass(frozen=True, slots=True)
class Needs:
    """What a job begins with."""

    cpu: float = 0.0
    memory_bytes: int = 0
    gpus: Mapping[str, float] = field(default_factory=dict)
    """By kind; `gpu` is any."""


def together(amounts: Iterable[tuple[int, float, int, float, str]]) -> Needs:
    """Of (processes, cores, bytes, GPUs, kind of GPU) each."""
    cpu, memory_bytes, gpus = 0.0, 0, dict[str, float]()
    for count, cores, size, gpu, kind in amounts:
        cpu += count * cores
        memory_bytes += count * size
        if gpu and count:
            gpus[kind or ANY] = gpus.get(kind or ANY, 0.0) + count * gpu
    return Needs(cpu, memory_bytes, gpus)


def is_allowed(asked: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    """A cluster with these labels is one that a job with these may run in."""
    return all(
        labels.get(name.removeprefix(PREFIX)) == value for name, value in asked.items() if name.startswith(PREFIX)
    )


def best(needs: Needs, free: Mapping[str, Capacity]) -> str:
    """The cluster in which the scarcest of what the job needs is most plentiful: that with the largest least ratio of
    free to needed. Equals by their order; of clusters without GPUs that are needed, one only where all are."""
    return max(free, key=lambda name: (_has_gpus(needs, free[name]), _ratio(needs, free[name])))


def _has_gpus(needs: Needs, free: Capacity) -> bool:
    return all(free.gpus.get(kind, 0.0) >= count for kind, count in needs.gpus.items())


def _ratio(needs: Needs, free: Capacity) -> float:
    pairs = [
        (free.cpu, needs.cpu or 1.0), (float(free.memory_bytes), float(needs.memory_bytes or 1 << 30)),
        *((free.gpus.get(kind, 0.0), count) for kind, count in needs.gpus.items()),
    ]
    return min(have / need for have, need in pairs)
