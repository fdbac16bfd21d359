"""What jobs of a model know together, and what a job makes of it."""

from collections.abc import Sequence

import numpy as np
import pytest

from recmesh.plugins.planning import Allocation, Prediction, Shapes, Throughput
from services.brain.domain.throughput.observations import Observation
from services.brain.simulator.learning import Foretold, Remembered, learn
from services.brain.simulator.pool import Pool
from tests.unit.brain.simulator.worlds import FACTS


class Linear:
    """Ten samples a second per worker; doubts more than four workers."""

    def __init__(self) -> None:
        self.asked = 0

    def predict(self, shapes: Shapes) -> Prediction:
        self.asked += 1
        return Prediction(10.0 * shapes.workers, np.full(len(shapes), 0.1))

    def doubt(self, allocation: Allocation) -> str:
        return "more than was measured" if allocation.workers > 4 else ""


def seen(workers: int, rate: float) -> Observation:
    return Observation(workers, 1, rate, 2.0, 1.0, batch=100.0 / workers, windows=4)


def test_a_job_is_related_by_the_first_size_it_shares() -> None:
    kept: list[Sequence[Observation]] = []

    def fit(found: Sequence[Observation], now: float) -> Throughput | None:
        kept.append(found)
        return None

    pool = Pool(FACTS, fit)
    one, two = (1, 1, 2.0, 1.0), (2, 1, 2.0, 1.0)
    assert pool.add(1, one, log=np.log(100.0), windows=4, at=1.0, factor=None) is None
    assert pool.add(1, one, log=np.log(100.0), windows=4, at=1.5, factor=None) is None     # not with itself
    factor = pool.add(2, one, log=np.log(200.0), windows=4, at=2.0, factor=None)
    assert factor == pytest.approx(np.log(2.0))
    assert pool.add(2, two, log=np.log(300.0), windows=4, at=3.0, factor=factor) == factor
    pool.model(4.0)
    assert {each.workers: each.samples_per_s for each in kept[-1]} == pytest.approx({1: 100.0, 2: 150.0})


def test_a_pool_is_fitted_anew_only_when_there_is_news() -> None:
    fits: list[int] = []
    pool = Pool(FACTS, lambda found, now: fits.append(len(found)))
    for beats in (1, 1, 1, 4):
        pool.add(1, (1, 1, 2.0, 1.0), log=0.0, windows=beats, at=0.0, factor=None)
        pool.model(0.0)
        pool.model(0.0)
    assert fits == [1, 1, 1]  # at 1, 2 and 7 heartbeats


def test_what_a_prior_foretold_up_to_a_factor_teaches_nothing() -> None:
    prior = Linear()
    found = learn([seen(1, 5.0), seen(3, 15.2)], now=0.0, shared_batch=True, prior=prior)
    assert isinstance(found, Foretold) and found.factor == pytest.approx(0.5, rel=0.02)
    assert found.predict(Shapes.of([Allocation(2, 1, 2.0, 1.0)])).rate[0] == pytest.approx(10.0, rel=0.02)
    assert found.doubt(Allocation(9, 1, 2.0, 1.0)) == "more than was measured"


@pytest.mark.parametrize("others", [[seen(1, 10.0), seen(3, 60.0)], [seen(8, 80.0)]])
def test_a_surprise_or_a_doubt_is_learned_from(others: list[Observation]) -> None:
    found = learn(others, now=0.0, shared_batch=True, prior=Linear())
    assert not isinstance(found, Foretold)


def test_too_little_without_a_prior_is_no_model() -> None:
    assert learn([seen(1, 10.0)], now=0.0, shared_batch=True, prior=None) is None


def test_the_same_question_is_answered_once() -> None:
    model = Linear()
    remembered = Remembered(model)
    shapes = Shapes.of([Allocation(w, 1, 2.0, 1.0) for w in (1, 2)])
    first = remembered.predict(shapes)
    again = remembered.predict(Shapes.of([Allocation(w, 1, 2.0, 1.0) for w in (1, 2)]))
    assert model.asked == 1 and again is first
    assert remembered.predict(Shapes.of([Allocation(3, 1, 2.0, 1.0)])).rate[0] == 30.0
