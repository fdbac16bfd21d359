"""Fronts and their hypervolume."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from services.brain.domain.planning.front import hypervolume, pareto, thinned, worth

points = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=40)


@given(points)
def test_the_front_is_what_nothing_dominates(rows: list[tuple[int, int]]) -> None:
    cost, gain = np.array(rows, dtype=float).T
    front = pareto(cost, gain)
    on_front = {(cost[k], gain[k]) for k in front}
    assert (np.diff(cost[front]) > 0).all()
    assert (np.diff(gain[front]) > 0).all()
    for c, g in zip(cost, gain, strict=True):
        dominated = ((cost <= c) & (gain >= g) & ((cost < c) | (gain > g))).any()
        assert ((c, g) in on_front) == (not dominated)


def test_bins_change_nothing_of_a_large_front() -> None:
    rng = np.random.default_rng(0)
    cost, gain = rng.random(20_000), rng.random(20_000)
    order = np.lexsort((-gain, cost))
    best = np.maximum.accumulate(gain[order])
    literal = order[np.append(True, best[1:] > best[:-1])]
    assert pareto(cost, gain).tolist() == literal.tolist()


def test_bins_stand_points_of_one_cost() -> None:
    gain = np.arange(5_000.0)
    assert pareto(np.ones(5_000), gain).tolist() == [4_999]


def test_a_thinned_front_keeps_its_ends() -> None:
    gain = np.arange(100.0) ** 2
    front = np.arange(100)
    kept = thinned(front, gain, 10)
    assert len(kept) <= 10
    assert kept[0] == 0
    assert kept[-1] == 99
    assert thinned(front[:5], gain, 10).tolist() == [0, 1, 2, 3, 4]


def test_hypervolume_is_the_area_up_to_the_reference() -> None:
    cost, gain = np.array([1.0, 3.0]), np.array([2.0, 5.0])
    assert hypervolume(cost, gain, worst_cost=4.0, worst_gain=0.0) == 2.0 * 2.0 + 1.0 * 5.0
    assert hypervolume(cost, gain, worst_cost=3.0, worst_gain=1.0) == 2.0 * 1.0
    assert hypervolume(cost, gain, worst_cost=0.5, worst_gain=0.0) == 0.0


def test_what_is_worth_its_cost_stands_out_from_what_came_before() -> None:
    cost, rate = np.array([1.0, 2.0, 3.0, 12.0]), np.array([10.0, 15.0, 15.2, 17.0])
    assert worth(cost, rate, 0.02, np.zeros(4)).tolist() == [0, 1, 3]
    assert worth(cost, rate, 0.05, np.zeros(4)).tolist() == [0, 1], "five times the cost for 13 %"
    assert worth(cost, rate, 0.02, np.full(4, 0.2)).tolist() == [0, 1], "13 % is within the noise"
    assert worth(cost[:0], rate[:0], 0.02, np.zeros(0)).tolist() == []
