"""How far predictions are believed."""

from dataclasses import replace

import numpy as np
import pytest

from recmesh.plugins.planning import Allocation, Bounds, Shapes
from services.brain.domain.planning.grid import axes, enumerated
from services.brain.domain.planning.trust import one_step, reach
from tests.support.planning import WIDE, Flat, Paper, job

NOW = Allocation(8, 2, 4.0, 4.0)


def test_what_nothing_doubts_is_all_within_reach() -> None:
    one = job(now=NOW, bounds=WIDE)
    assert reach(one, axes(WIDE, NOW)).axes(axes(WIDE, NOW)) == axes(WIDE, NOW)


def test_the_believed_end_at_the_first_doubt() -> None:
    known = Bounds((1, 21), (1, 15), (1.0, 8.0), (1.0, 8.0))
    near = reach(job(now=NOW, bounds=WIDE, throughput=Paper(known=known)), axes(WIDE, NOW))
    assert near.axes(axes(WIDE, NOW)).workers == tuple(map(float, range(1, 22)))


def test_a_step_is_twice_as_much_or_half() -> None:
    near = reach(job(now=NOW, bounds=WIDE, throughput=Flat(doubts="no")), axes(WIDE, NOW))
    assert near.believed is None
    assert near.step == ((4.0, 16.0), (1.0, 4.0), (2.0, 8.0), (2.0, 8.0))
    assert near.axes(axes(WIDE, NOW)).workers == (4.0, 7.0, 8.0, 9.0, 16.0)
    assert [one_step(count) for count in (0, 1, 2, 8)] == [1, 1, 2, 8]


@pytest.mark.parametrize(("log_sd", "reached"), [(0.1, 30.0), (0.9, 16.0)])
def test_unsure_predictions_are_believed_within_a_step_only(log_sd: float, reached: float) -> None:
    of = axes(WIDE, NOW)
    shapes = enumerated(of).shapes
    mask = reach(job(now=NOW, bounds=WIDE), of).mask(shapes, np.full(len(shapes), log_sd), 0.35)
    assert shapes.workers[mask].max() == reached


def test_what_was_measured_is_known_wherever_it_lies() -> None:
    had = Allocation(29, 13, 2.0, 2.0)
    of = axes(WIDE, NOW)
    near = reach(replace(job(now=NOW, bounds=WIDE, throughput=Flat(doubts="no")), measured=(had,)), of)
    assert 29.0 in near.axes(of).workers
    shapes = Shapes.of([had, replace(had, workers=28)])
    assert near.mask(shapes, np.full(2, 9.0), 0.35).tolist() == [True, False]
