"""Whether points lie between others: convex combinations of them."""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import combinations, product

import numpy as np
from numpy.typing import NDArray

from recmesh.plugins.planning import Floats
from services.brain.domain.throughput.fit import least_squares

TOLERANCE = 1e-3
"""Of distance."""


@dataclass(frozen=True)
class Hull:
    """Of `points` (n, d)."""

    points: Floats

    def holds(self, points: Floats) -> NDArray[np.bool_]:
        """Which of `points` (m, d) are sums of its points with weights ≥ 0 that sum to 1, (m,)."""
        # Exact, but a linear program each; so first what lies beyond every point in some direction, as by far most do.
        # If it does by δ, weights that sum to 1 + e leave at least |(δ − e·farthest, e)| ≥ δ/√(1 + farthest²).
        directions, farthest, slack = self._supports
        inside: NDArray[np.bool_] = np.logical_and.reduce(points @ directions - farthest < slack, axis=1)
        for row in np.flatnonzero(inside).tolist():
            point = np.append(points[row], 1.0)
            left = float(np.linalg.norm(self._columns @ least_squares(self._columns, point) - point))
            inside[row] = left < TOLERANCE
        return inside

    @cached_property
    def _columns(self) -> Floats:
        return np.vstack([self.points.T, np.ones(len(self.points))])

    @cached_property
    def _supports(self) -> tuple[Floats, Floats, Floats]:
        """Directions (d, k), how far the points reach along each, and what beyond that is sure to be outside."""
        directions = _directions(self.points.shape[1])
        farthest = (self.points @ directions).max(axis=0)
        return directions, farthest, TOLERANCE * np.sqrt(1.0 + farthest**2)


@lru_cache
def _directions(d: int) -> Floats:
    """Of every one and two of d axes, both ways: (d, 2·d²)."""
    rows = []
    for axes in (*combinations(range(d), 1), *combinations(range(d), 2)):
        for signs in product((1.0, -1.0), repeat=len(axes)):
            row = np.zeros(d)
            row[list(axes)] = signs
            rows.append(row / np.sqrt(len(axes)))
    return np.ascontiguousarray(np.array(rows).T)
