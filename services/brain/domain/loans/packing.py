"""How many nodes of a kind a peak borrows: when HN slices alone move, and when whole models do (Prism, MATH §4)."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Host:
    """A node that is lent whole."""

    cpu: float
    gpus: int
    slices_per_gpu: int = 1
    """HNs that share one GPU, by its MIG profile."""


@dataclass(frozen=True, slots=True)
class Whole:
    """A model that is served whole, on CPU and GPU of one node."""

    cpu: float
    gpus: float = 1.0


def for_slices(count: int, host: Host) -> int:
    """Nodes that `count` HNs need."""
    return math.ceil(count / (host.gpus * host.slices_per_gpu))


def for_whole(count: int, host: Host, model: Whole) -> int:
    """Nodes that `count` whole models need. ValueError where not even one fits."""
    fits = min(math.floor(host.cpu / model.cpu), math.floor(host.gpus / model.gpus))
    if fits < 1:
        raise ValueError(f"a node of {host.cpu:g} cores and {host.gpus} GPUs has no room for the model")
    return math.ceil(count / fits)


def saved(count: int, host: Host, model: Whole) -> float:
    """The share of borrowed GPUs that is not borrowed when slices move; 0 of nothing."""
    whole = for_whole(count, host, model)
    return 1.0 - for_slices(count, host) / whole if whole else 0.0
