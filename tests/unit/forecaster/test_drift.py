import numpy as np

from services.forecaster.domain.drift import Drift, likeness_of, verdict

RNG = np.random.default_rng(0)
BEFORE = RNG.normal(0, 1, 200)


def test_the_same_errors_are_no_drift() -> None:
    for seed in range(50):
        assert verdict(BEFORE, np.random.default_rng(seed).normal(0, 1, 20)) is Drift.NONE


def test_errors_that_point_one_way_are_a_level() -> None:
    assert verdict(BEFORE, RNG.normal(5, 1, 20)) is Drift.LEVEL


def test_errors_of_both_signs_are_a_season_where_days_are_no_longer_alike_else_a_spread() -> None:
    since = RNG.normal(0, 6, 30)
    assert verdict(BEFORE, since, likeness=0.2, likeness_before=0.9) is Drift.SEASON
    assert verdict(BEFORE, since, likeness=0.9, likeness_before=0.9) is Drift.SPREAD


def test_a_few_errors_are_no_verdict() -> None:
    assert verdict(BEFORE, np.full(5, 100.0)) is Drift.NONE


def test_likeness_falls_when_the_shape_moves() -> None:
    wave = np.sin(2 * np.pi * np.arange(24 * 6) / 24)
    now, before = likeness_of(np.r_[wave, np.roll(wave, 12)[:24]], 24)
    assert now < -0.9 and before > 0.99
