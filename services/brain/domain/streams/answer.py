"""A planner's answer from an array of counts."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from recmesh.plugins.planning import Floats
from recmesh.plugins.streams import Schedule, StreamView


def answered(stream: StreamView, workers: NDArray[np.int64], reasons: Sequence[str], demand: Floats) -> Schedule:
    """With parameter servers at the fixed ratio, p = ceil(w/r), and the steps whose demand no allowed count meets."""
    best = float(np.max(stream.rates(np.arange(stream.least, stream.most + 1, dtype=np.float64))))
    ratio = stream.workers_per_ps
    return Schedule(
        workers=tuple(int(count) for count in workers),
        reasons=tuple(reasons),
        unmet=tuple(bool(load > 0 and best <= load) for load in demand),
        ps=tuple(math.ceil(int(count) / ratio) for count in workers) if ratio > 0 else (),
    )


def held(stream: StreamView, count: int, why: str) -> Schedule:
    """One count for all steps: the answer of those who do not look ahead."""
    count = min(max(count, stream.least), stream.most)
    steps = len(stream.demand)
    return answered(stream, np.full(steps, count, dtype=np.int64), (why,) * steps, stream.demand)
