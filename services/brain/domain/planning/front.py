"""What is not worse than another in both cost and gain."""

import numpy as np
from numpy.typing import NDArray

from recmesh.plugins.planning import Floats

Rows = NDArray[np.intp]

_BINS = 512


def pareto(cost: Floats, gain: Floats) -> Rows:
    """Rows of the front, by rising cost and strictly rising gain; of equals the first."""
    rows: Rows = np.arange(len(cost)) if len(cost) < 4 * _BINS else _undominated_by_bins(cost, gain)
    order = rows[np.lexsort((-gain[rows], cost[rows]))]
    best = np.maximum.accumulate(gain[order])
    leads = np.ones(len(order), dtype=bool)
    leads[1:] = best[1:] > best[:-1]
    front: Rows = order[leads]
    return front


def _undominated_by_bins(cost: Floats, gain: Floats) -> Rows:
    """Most rows are worse than the best of a cheaper bin of costs; sorting the few others takes a tenth of the time."""
    low, high = cost.min(), cost.max()
    bins = ((cost - low) * ((_BINS - 1) / max(high - low, 1e-12))).astype(np.intp)
    best = np.full(_BINS, -np.inf)
    np.maximum.at(best, bins, gain)
    cheaper = np.append(-np.inf, np.maximum.accumulate(best)[:-1])
    rows: Rows = np.flatnonzero(gain > cheaper[bins])
    return rows


def thinned(front: Rows, gain: Floats, most: int) -> Rows:
    """At most `most` of a front's rows: its two ends, and the cheapest that reaches each of evenly spaced gains."""
    if len(front) <= most:
        return front
    levels = np.linspace(gain[front[0]], gain[front[-1]], most)
    reached = np.searchsorted(gain[front], levels - 1e-12).clip(0, len(front) - 1)
    kept: Rows = front[np.unique(reached)]
    return kept


def worth(cost: Floats, gain: Floats, epsilon: float, noise: Floats) -> Rows:
    """Of a front by rising cost those that gain more than ε, than ε times the share of cost that they add, and than
    their noise (a share of their gain), over the last one that did."""
    kept = [0] if len(cost) else []
    for row in range(1, len(cost)):
        added = (cost[row] - cost[kept[-1]]) / max(float(cost[kept[-1]]), 1e-12)
        if gain[row] - gain[kept[-1]] > gain[kept[-1]] * max(epsilon, epsilon * added, float(noise[row])):
            kept.append(row)
    return np.array(kept, dtype=np.intp)


def hypervolume(cost: Floats, gain: Floats, worst_cost: float, worst_gain: float) -> float:
    """The area that the points dominate, up to the reference (worst_cost, worst_gain): larger is better."""
    inside = (cost <= worst_cost) & (gain >= worst_gain)
    cost, gain = cost[inside], gain[inside]
    front = pareto(cost, gain)
    widths = np.diff(np.append(cost[front], worst_cost))
    return float(np.sum(widths * (gain[front] - worst_gain)))
