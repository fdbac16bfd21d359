"""What admission believes of the link, and how the window follows it."""

import random

import pytest

from recmesh.serving.admission.domain.bandwidth import Bandwidth
from recmesh.serving.admission.domain.delay import Delays
from recmesh.serving.admission.domain.durations import Durations
from recmesh.serving.admission.domain.window import Bounds, Window

MIB = 1 << 20
BOUNDS = Bounds(start_bytes=4 * MIB, min_bytes=MIB, max_bytes=16 * MIB, high=1.25, low=0.25)


def one_by_one(bandwidth: Bandwidth, count: int, size: int, rate: float, *, base_s: float, now: float = 0.0) -> float:
    for _ in range(count):
        bandwidth.began(now)
        took_s = base_s + size / rate
        now += took_s
        bandwidth.arrived(now, size, took_s=took_s, last=True, window_bytes=MIB)
    return now


def test_a_link_is_measured_whatever_was_assumed_and_latency_is_no_part_of_it() -> None:
    bandwidth = Bandwidth(1e9)
    now = one_by_one(bandwidth, 5, 100, 1e7, base_s=0.01)
    one_by_one(bandwidth, 20, MIB, 1e7, base_s=0.01, now=now)
    assert bandwidth.base_s == pytest.approx(0.01, rel=0.01)
    assert bandwidth.bytes_per_s == pytest.approx(1e7, rel=0.02)


def test_messages_that_share_the_link_measure_all_of_it() -> None:
    bandwidth = Bandwidth(1e9)
    bandwidth.began(0.0)
    for step in range(1, 101):                  # four at a time, one arrives every 0.1 s
        bandwidth.arrived(0.1 * step, MIB, took_s=0.4, last=False, window_bytes=4 * MIB)
    assert bandwidth.bytes_per_s == pytest.approx(10 * MIB, rel=0.05)


def test_one_sample_that_is_far_off_changes_little() -> None:
    bandwidth = Bandwidth(1e9)
    now = one_by_one(bandwidth, 10, MIB, 1e7, base_s=0.0)
    now = one_by_one(bandwidth, 1, MIB, 1e9, base_s=0.0, now=now)
    one_by_one(bandwidth, 1, MIB, 1e5, base_s=0.0, now=now)
    assert bandwidth.bytes_per_s == pytest.approx(1e7, rel=0.01)


def test_a_link_that_became_slower_is_believed_soon() -> None:
    bandwidth = Bandwidth(1e7)
    now = one_by_one(bandwidth, 16, MIB, 1e7, base_s=0.0)
    one_by_one(bandwidth, 10, MIB, 2e6, base_s=0.0, now=now)
    assert bandwidth.bytes_per_s == pytest.approx(2e6, rel=0.01)


def test_waiting_for_what_never_came_is_no_slowness() -> None:
    bandwidth = Bandwidth(1e7)
    bandwidth.began(0.0)
    bandwidth.forget(50.0, last=True)
    one_by_one(bandwidth, 3, MIB, 1e7, base_s=0.0, now=60.0)
    assert bandwidth.bytes_per_s == pytest.approx(1e7, rel=0.01)


def jittered(rng: random.Random) -> float:
    """A round trip on a busy machine: mostly .3 ms, now and then several."""
    return 0.0002 + rng.expovariate(1 / 0.0003) + (0.02 if rng.random() < 0.01 else 0.0)


def test_small_messages_lower_no_estimate_of_the_link_whose_time_is_all_latency() -> None:
    rng, bandwidth, now = random.Random(1), Bandwidth(1e9), 0.0
    for _ in range(3000):
        now = one_by_one(bandwidth, 1, 1700, 1e9, base_s=jittered(rng), now=now)
    assert bandwidth.bytes_per_s == 1e9
    assert 0.0002 <= bandwidth.base_s < 0.0003


def test_small_messages_that_are_always_under_way_lower_it_neither() -> None:
    bandwidth = Bandwidth(1e9)
    bandwidth.began(0.0)
    for step in range(1, 5001):                 # what an HN can take up of them, whatever the link could carry
        bandwidth.arrived(step / 3000, 1700, took_s=0.03, last=False, window_bytes=MIB)
    assert bandwidth.bytes_per_s == 1e9


def test_a_large_message_between_many_small_ones_is_what_counts() -> None:
    rng, bandwidth, now = random.Random(1), Bandwidth(1e9), 0.0
    for _ in range(12):
        for _ in range(100):
            now = one_by_one(bandwidth, 1, 1700, 1e8, base_s=jittered(rng), now=now)
        now = one_by_one(bandwidth, 1, 4 * MIB, 1e8, base_s=jittered(rng), now=now)
    assert bandwidth.bytes_per_s == pytest.approx(1e8, rel=0.05)


def test_messages_whose_time_is_mostly_overhead_leave_the_estimate_but_for_a_few() -> None:
    rng, bandwidth, now = random.Random(1), Bandwidth(1e9), 0.0
    for _ in range(200):
        now = one_by_one(bandwidth, 4, 1700, 1e9, base_s=jittered(rng), now=now)
        now = one_by_one(bandwidth, 1, 100 << 10, 1e9, base_s=jittered(rng), now=now)
        assert bandwidth.bytes_per_s > 2e8


def test_small_messages_raise_an_estimate_that_they_show_to_be_too_low() -> None:
    bandwidth = Bandwidth(1e5)
    one_by_one(bandwidth, 500, 16_000, 1e9, base_s=0.0005)
    assert bandwidth.bytes_per_s == pytest.approx(16_000 / 0.000516, rel=0.01)


def messages(window: Window, count: int, level: float, *, waits: bool = True, size: int = MIB) -> None:
    for _ in range(count):
        if waits:
            window.in_flight_bytes = window.limit_bytes
            assert not window.fits(size)
            window.in_flight_bytes = 0
        assert window.fits(size)
        window.take(size)
        window.give(size)
        window.learn(window.round, size, took_s=0.1 * (1 + level), expected_s=0.1)


def test_congestion_halves_the_window_and_never_below_its_least() -> None:
    window = Window(BOUNDS)
    messages(window, 4, level=2.0)
    assert window.limit_bytes == 2 * MIB
    messages(window, 2, level=2.0)
    messages(window, 1, level=2.0)
    assert window.limit_bytes == MIB


def test_an_idle_link_adds_one_message_and_never_above_the_most() -> None:
    window = Window(BOUNDS)
    messages(window, 4, level=0.0)
    assert window.limit_bytes == 5 * MIB
    messages(window, 1000, level=0.0)
    assert window.limit_bytes == 16 * MIB


def test_between_the_thresholds_the_window_stays() -> None:
    window = Window(BOUNDS)
    messages(window, 100, level=1.0)
    assert window.limit_bytes == 4 * MIB
    assert window.level == pytest.approx(1.0)


def test_a_window_that_nothing_waits_for_does_not_grow() -> None:
    window = Window(BOUNDS)
    messages(window, 100, level=0.0, waits=False)
    assert window.limit_bytes == 4 * MIB


def test_what_was_granted_before_a_change_does_not_count_again() -> None:
    window = Window(BOUNDS)
    messages(window, 4, level=2.0)
    for _ in range(10):
        window.learn(0, MIB, took_s=1.0, expected_s=0.1)
    assert window.limit_bytes == 2 * MIB


def test_small_messages_behind_a_large_one_are_no_congestion() -> None:
    """The plain mean of t/(bytes/B) − 1 would be 90 here, from ten messages of a hundredth of the bytes."""
    window = Window(BOUNDS)
    for _ in range(5):
        for _ in range(10):
            window.learn(window.round, 1024, took_s=0.1, expected_s=0.001)
        window.learn(window.round, MIB, took_s=0.2, expected_s=1.0)
    assert window.limit_bytes == 4 * MIB
    assert window.level < 1.25


def test_the_way_of_an_ask_is_told_from_the_difference_of_clocks() -> None:
    delays = Delays()
    assert delays.see("cn", 1000.0, 5.0) == 0.0
    assert delays.see("cn", 1001.0, 6.02) == pytest.approx(0.02)
    assert delays.see("other", 0.0, 6.0) == 0.0
    assert delays.see("cn", 1002.0, 6.99) == 0.0
    assert delays.see("cn", 1003.0, 8.0) == pytest.approx(0.01)


def test_a_clock_that_drifts_is_followed() -> None:
    delays = Delays()
    late_s = [delays.see("cn", second * 0.9999, float(second)) for second in range(1000)]
    assert late_s[-1] < 0.01


def test_compute_is_expected_as_it_mostly_is_and_unknown_models_cost_nothing() -> None:
    durations = Durations()
    for step in range(100):
        durations.see("ads", 0.001 * (step % 10 + 1))
    assert durations.expected_s("ads") == pytest.approx(0.009, abs=0.0011)
    assert durations.expected_s("other") == 0.0


def test_models_that_were_not_heard_of_for_long_are_forgotten() -> None:
    durations = Durations()
    for number in range(1100):
        durations.see(f"model-{number}", 1.0)
    assert durations.expected_s("model-0") == 0.0
    assert durations.expected_s("model-1099") == 1.0
