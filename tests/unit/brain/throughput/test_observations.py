"""Configurations out of profiles."""

import pytest

from services.brain.domain.model import Profile
from services.brain.domain.throughput.observations import Mode, Observation, merged, observations


def window(at: float, workers: int, speed: float, *, cpu: float = 2.0, busy: float = 0.0) -> Profile:
    return Profile(
        "job",
        at,
        workers,
        1,
        worker_cpu=cpu,
        ps_cpu=1.0,
        batch_size=100,
        samples_per_s=speed,
        data_s=0.1,
        pull_s=0.2,
        compute_s=0.5,
        push_s=0.2,
        ps_busy_share=busy,
    )


def test_windows_of_one_configuration_are_one_observation() -> None:
    found = observations([window(t, 2, 100.0) for t in range(5)])
    assert [(each.workers, each.windows, each.at) for each in found] == [(2, 4, 4)]
    assert found[0].step_s == pytest.approx(2 * 100 / 100)


def test_windows_around_a_change_are_left_out() -> None:
    before = [window(t, 2, speed) for t, speed in enumerate((5.0, 100.0, 100.0, 7.0))]
    after = [window(10 + t, 4, speed) for t, speed in enumerate((9.0, 200.0, 200.0))]
    found = observations(before + after)
    assert [each.workers for each in found] == [2, 4]
    assert [each.samples_per_s for each in found] == pytest.approx([100, 200])


def test_other_cores_are_another_configuration() -> None:
    found = observations([window(t, 2, 100.0, cpu=2.0 if t < 4 else 4.0) for t in range(8)])
    assert [each.worker_cpu for each in found] == [2.0, 4.0]


def test_a_configuration_that_comes_back_is_observed_again() -> None:
    profiles = [window(t, 2 if t < 4 or t >= 8 else 3, 100.0) for t in range(12)]
    assert [each.workers for each in observations(profiles)] == [2, 3, 2]


def test_a_long_run_is_cut_so_that_a_change_in_it_shows() -> None:
    found = observations([window(t, 2, 100.0 if t < 9 else 50.0) for t in range(17)], merged_windows=8)
    assert [each.samples_per_s for each in found] == pytest.approx([100, 50])


def test_windows_in_which_nothing_was_trained_say_nothing() -> None:
    assert observations([window(t, 2, 0.0) for t in range(5)]) == []


def test_profiles_may_come_in_any_order() -> None:
    profiles = [window(t, 2 if t < 4 else 3, 100.0 + t) for t in range(8)]
    assert observations(profiles[::-1]) == observations(profiles)


def test_the_mean_speed_is_geometric_and_weighted() -> None:
    mean = merged([Observation(1, 1, 100.0, windows=3), Observation(1, 1, 1600.0, windows=1)])
    assert mean.samples_per_s == pytest.approx(200)
    assert mean.windows == 4


def test_the_time_of_the_ps_lies_within_pull_and_push() -> None:
    half, all_of_it = (
        observations([window(t, 1, 100.0, busy=busy) for t in range(3)])[0].breakdown for busy in (0.3, 1.0)
    )
    assert half is not None and all_of_it is not None
    assert half.ps_busy_s == pytest.approx(0.3)
    assert all_of_it.ps_busy_s == pytest.approx(0.4)
    assert half.total_s == pytest.approx(1.0)


def test_mode_and_hardware_are_those_of_the_job() -> None:
    found = observations([window(t, 2, 100.0) for t in range(3)], mode=Mode.SYNC, hardware="A10")[0]
    assert (found.mode, found.hardware, found.allocation.gpu_kind) == (Mode.SYNC, "A10", "A10")
