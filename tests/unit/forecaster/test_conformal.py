import numpy as np
import pytest

from services.forecaster.domain.conformal import ENOUGH, adapted, offsets, scale_of, unseen, weighted_quantile


def covered(truth: "np.ndarray", level: float, *, power_of_noise: float, seed: int) -> float:
    rng = np.random.default_rng(seed)
    predicted = rng.uniform(10, 200, 2000)
    errors = rng.gamma(2.0, 1.0, 2000) - 2.0  # skewed
    came = predicted + errors * predicted**power_of_noise
    old = slice(0, 400)
    power, sides = offsets(predicted[old, None], came[old, None], np.ones(400), np.ones(1), level=level, floor=1.0)
    scale = scale_of(predicted[400:], power=power, floor=1.0)
    low, high = (predicted[400:] + scale * side[0] for side in sides)
    return float(np.mean((came[400:] >= low) & (came[400:] <= high)))


@pytest.mark.parametrize("level", [0.5, 0.8, 0.95])
@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
def test_intervals_hold_what_they_promise_for_skewed_errors_that_grow_with_the_rate(level: float, power: float) -> None:
    found = [covered(np.zeros(0), level, power_of_noise=power, seed=seed) for seed in range(5)]
    assert np.mean(found) == pytest.approx(level, abs=0.04)


def test_the_quantile_is_conformal_and_weighted() -> None:
    values = np.arange(1.0, 10.0)
    assert weighted_quantile(values, np.ones(9), 0.9) == 9  # ceil(.9 · 10) = the 9th of 9
    assert weighted_quantile(values, np.ones(9), 0.5) == 5
    assert weighted_quantile(values, np.r_[np.zeros(8), 1.0], 0.1) == 9


def test_misses_widen_and_hits_narrow() -> None:
    rng = np.random.default_rng(0)
    calm, wild = rng.normal(0, 1, 100), rng.normal(0, 4, 100)
    wider = adapted(np.r_[calm, wild], 0.1)
    narrower = adapted(np.r_[wild, calm], 0.1)
    assert all(share < 0.08 for share in wider)
    assert all(share > 0.12 for share in narrower)


def test_chance_alone_moves_the_level_little() -> None:
    shares = [adapted(np.random.default_rng(seed).normal(0, 1, 400), 0.1) for seed in range(50)]
    assert np.mean(shares) == pytest.approx(0.1, abs=0.01)
    assert np.std(shares) < 0.02, "a level that follows chance makes intervals worse than none that adapts"


def test_few_errors_are_not_all_that_may_come() -> None:
    one = np.array([2.0])
    more, wide = unseen(one, np.ones(1), 0.1, alike=1.0)
    assert more > 0.9 and wide == pytest.approx(3.078 * 2.0 * np.sqrt(2), rel=0.01)   # t of one degree, at .9
    many = np.random.default_rng(0).normal(0, 1, 4 * int(ENOUGH))
    assert unseen(many, np.ones(len(many)), 0.1, alike=1.0) == (0.0, 0.0)
    assert unseen(many, np.ones(len(many)), 0.1, alike=len(many) / 2)[0] > 0.9, "that overlap are hardly more than two"
    fading = np.exp(-np.arange(len(many), dtype=np.float64))
    assert unseen(many, fading, 0.1, alike=1.0)[0] > 0.9, "nor are those that hardly count"


@pytest.mark.parametrize("overlap", [1, 4])
def test_intervals_from_ten_errors_hold_what_they_promise(overlap: int) -> None:
    inside = []
    for seed in range(400):
        steps = np.random.default_rng(seed).normal(0, 5, 10 + 2 * overlap)
        errors = np.convolve(steps, np.ones(overlap), mode="valid")     # of a walk, `overlap` steps ahead
        known, came = errors[:10], errors[9 + overlap]
        said = np.full((10, 1), 100.0)
        power, sides = offsets(
            said, said + known[:, None], np.ones(10), np.array([float(overlap)]), level=0.8, floor=1.0
        )
        scale = float(scale_of(np.full(1, 100.0), power=power, floor=1.0)[0])
        inside.append(sides[0, 0] * scale <= came <= sides[1, 0] * scale)
    assert 0.75 <= np.mean(inside) <= 0.92
