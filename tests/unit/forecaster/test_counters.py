import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from services.forecaster.domain.counters import rates_of_counter
from services.forecaster.domain.series import Point


def test_a_counter_that_rises_gives_its_rate() -> None:
    found = rates_of_counter([Point(0, 0), Point(60, 120), Point(120, 180)], step_s=60)
    assert found == [Point(0, 2), Point(60, 1)]


def test_a_reset_counts_what_was_counted_since() -> None:
    found = rates_of_counter([Point(0, 1000), Point(60, 1060), Point(120, 30)], step_s=60)
    assert found == [Point(0, 1), Point(60, 0.5)]


def test_samples_between_steps_are_shared_out_and_half_covered_steps_are_left_out() -> None:
    found = rates_of_counter([Point(30, 0), Point(90, 60), Point(150, 240), Point(190, 240)], step_s=60)
    assert [(point.at, round(point.value, 9)) for point in found] == [(60, 2.0), (120, 1.5)]


def test_steps_in_a_pause_are_left_out() -> None:
    samples = [Point(0, 0), Point(60, 60), Point(600, 900), Point(660, 960)]
    assert [point.at for point in rates_of_counter(samples, step_s=60, max_gap_s=300)] == [0, 600]
    assert len(rates_of_counter(samples, step_s=60)) == 11


def test_one_sample_tells_nothing() -> None:
    assert rates_of_counter([Point(0, 5)], step_s=60) == []


@given(st.lists(st.floats(0, 1e6), min_size=2, max_size=50), st.integers(0, 49))
def test_what_was_counted_is_what_the_rates_add_up_to(increments: list[float], reset: int) -> None:
    shown, total, samples = 0.0, 0.0, []
    for at, more in enumerate(increments):
        before = shown
        if at:
            shown = more if at == reset else shown + more
            total += more
            assume(at != reset or shown < before)  # a restart that shows more than before cannot be seen
        samples.append(Point(at * 10.0, shown))
    found = rates_of_counter(samples, step_s=10)
    assert sum(point.value for point in found) * 10 == pytest.approx(total, abs=1e-3)
    assert all(point.value >= 0 for point in found)
