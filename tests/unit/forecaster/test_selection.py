import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.forecaster.domain.selection import Backtest, bucket_of, choose
from services.forecaster.domain.series import Floats


def backtest(truth: Floats, leads: tuple[int, ...] = (1,), **said: Floats) -> Backtest:
    return Backtest(truth, said, np.ones(len(truth)), leads)


def test_the_model_that_was_right_answers() -> None:
    truth = np.random.default_rng(0).uniform(50, 100, (60, 1))
    choice = choose(backtest(truth, wrong=truth + 20, right=truth + 0.1), step_s=60)
    assert choice.used == ["right"]
    assert choice.wape["wrong"][0] == pytest.approx(20 * 60 / truth.sum())


def test_two_whose_errors_cancel_answer_together() -> None:
    rng = np.random.default_rng(0)
    truth = rng.uniform(50, 100, (200, 1))
    first, second = (truth + rng.normal(0, 10, truth.shape) for _ in range(2))
    choice = choose(backtest(truth, first=first, second=second, bad=truth * 3), step_s=60)
    assert set(choice.used) == {"first", "second"}
    assert choice.weights[:2, 0] == pytest.approx([0.5, 0.5], abs=0.1)


def test_each_horizon_chooses_on_its_own() -> None:
    truth = np.random.default_rng(0).uniform(50, 100, (60, 2))
    near, far = truth.copy(), truth.copy()
    near[:, 1] += 30
    far[:, 0] += 30
    choice = choose(backtest(truth, (1, 120), near=near, far=far), step_s=60)
    assert choice.weights.tolist() == [[1, 0], [0, 1]]


def test_horizons_without_a_truth_take_the_longest_that_has_one() -> None:
    truth = np.column_stack([np.random.default_rng(0).uniform(50, 100, 60), np.full(60, np.nan)])
    choice = choose(backtest(truth, (1, 2000), a=np.zeros((60, 2)), b=np.nan_to_num(truth)), step_s=60)
    assert choice.weights[:, 1].tolist() == [0, 1]


def test_a_series_that_is_mostly_zero_is_not_forecast_as_zero_for_ever() -> None:
    truth = (np.arange(100) % 4 == 0).astype(float)[:, None] * 8
    said = {"zero": np.zeros((100, 1)), "mean": np.full((100, 1), 2.0)}
    assert choose(backtest(truth, (1,), **said), step_s=60).used == ["zero"]
    assert choose(backtest(truth, (1,), **said), step_s=60, squared=True).used == ["mean"]


@given(st.integers(1, 40), st.integers(1, 5), st.integers(0, 1000), st.booleans())
def test_weights_are_shares_whatever_was_said(origins: int, models: int, seed: int, squared: bool) -> None:
    rng = np.random.default_rng(seed)
    truth = np.where(rng.uniform(size=(origins, 3)) < 0.3, np.nan, rng.poisson(2, (origins, 3)))
    said = {str(at): rng.poisson(2, (origins, 3)).astype(float) for at in range(models)}
    choice = choose(backtest(truth, (1, 10, 100), **said), step_s=60, squared=squared)
    assert (choice.weights >= 0).all()
    assert choice.weights.sum(axis=0) == pytest.approx(np.ones(3))


def test_horizons_are_the_next_step_half_an_hour_an_hour_a_day_and_more() -> None:
    assert [bucket_of(lead, 60) for lead in (1, 2, 30, 31, 60, 61, 1440, 1441)] == [0, 1, 1, 2, 2, 3, 3, 4]
