"""What lies between measured configurations."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls

from recmesh.plugins.planning import Floats
from services.brain.domain.throughput.hull import TOLERANCE, Hull


def exactly(point: Floats, points: Floats) -> bool:
    _, left = nnls(np.vstack([points.T, np.ones(len(points))]), np.append(point, 1.0))
    return bool(left < TOLERANCE)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 14), st.integers(1, 4))
def test_what_is_far_in_some_direction_is_ruled_out_and_nothing_else(seed: int, many: int, varied: int) -> None:
    rng = np.random.default_rng(seed)
    points = np.zeros((many, 4))
    points[:, :varied] = np.log(rng.integers(1, 9, (many, varied)))
    asked = np.vstack([points, points.mean(axis=0), np.log(rng.integers(1, 9, (8, 4)))])
    # Close to the border, too: on both sides of what is tolerated.
    asked = np.vstack([asked, points[0] + rng.normal(0.0, 2 * TOLERANCE, (8, 4))])
    held = Hull(points).holds(asked)
    assert held.tolist() == [exactly(point, points) for point in asked]
    assert held[: many + 1].all()


def test_between_two_ends_but_off_their_line_is_outside() -> None:
    hull = Hull(np.array([[0.0, 0.0], [2.0, 2.0]]))
    assert hull.holds(np.array([[1.0, 1.0], [1.0, 0.9], [2.0, 0.0], [2.1, 2.1]])).tolist() == [
        True,
        False,
        False,
        False,
    ]
