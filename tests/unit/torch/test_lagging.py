"""The judgement of `bench online_auc`: what a model may have seen of a flight that it is judged by."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.workloads.lagging import states_of
from bench.workloads.tides import Ride, Tide

MINUTES = st.lists(st.integers(0, 300), min_size=1, max_size=80).map(sorted)


@given(MINUTES, st.integers(0, 200), st.integers(1, 9))
def test_a_flight_is_judged_by_no_model_that_has_seen_it_or_what_came_after_its_lag(
    minutes: list[int], lag: int, batch: int
) -> None:
    at = np.array(minutes)
    states = states_of(at, np.full(at.size, float(lag)), batch=batch)
    for flight, state in enumerate(states):
        trained = at[: state * batch]
        assert flight >= state * batch
        assert lag == 0 or (trained <= at[flight] - lag).all()
        another = at[: (state + 1) * batch]
        assert flight < another.size or not (another <= at[flight] - max(lag, 1)).all(), "it could know more"


def test_a_ride_tells_what_it_cost_and_when_it_stood_still() -> None:
    ride = Ride(
        at=[0, 1, 2, 3, 4, 5, 6, 7, 8, 9], lag_s=[0, 0, 1, 2, 3, 4, 5, 6, 1, 0], waiting=[0, 1, 9, 9, 9, 9, 9, 9, 9, 0],
        trained=[0, 5, 5, 5, 5, 5, 5, 5, 50, 60], workers=[1, 1, 1, 2, 2, 2, 2, 2, 2, 2],
    )
    tide = Tide(day_s=300.0, flown=1, first=1, known=1, worker_per_s=1.0)
    assert tide.slo_s == pytest.approx(25 / 6)
    found = ride.columns(tide.slo_s)
    assert (found["max_lag_s"], found["worker_s"], found["standstill_s"]) == (6, 15, 6)
    assert found["lag_violation_share"] == pytest.approx(2 / 9)
    assert found["accumulated_lag_s2"] == 22
    by_minute = ride.lag_by_minute(tide)
    assert len(by_minute) == 1440 and max(by_minute) == pytest.approx(6 * 288 / 60, rel=0.05)
