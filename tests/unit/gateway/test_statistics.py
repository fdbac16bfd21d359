"""Rates and percentiles."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.domain.statistics import GROWTH, Histogram, ModelStatistics, Outcome, RateCounter, Times


@given(st.lists(st.floats(1e-4, 100.0), min_size=1, max_size=200), st.sampled_from([0.5, 0.9, 0.99]))
def test_a_percentile_is_right_within_a_bucket(latencies: list[float], share: float) -> None:
    histogram = Histogram()
    for value in latencies:
        histogram.add(value)
    exact = sorted(latencies)[max(0, -(-len(latencies) * int(share * 100) // 100) - 1)]
    assert exact <= histogram.quantile(share) * 1.0001
    assert histogram.quantile(share) <= exact * GROWTH * 1.0001


def test_no_requests_have_no_percentile() -> None:
    assert Histogram().quantile(0.99) == 0.0


@given(st.lists(st.floats(0.0, 500.0), max_size=100))
def test_every_request_is_in_exactly_one_window(times: list[float]) -> None:
    counter = RateCounter(10.0)
    counter.advance(0.0)
    for at in sorted(times):
        counter.add(at)
    points = counter.take(1000.0)
    assert sum(rate * 10.0 for _, rate in points) == len(times)
    assert [start for start, _ in points] == [10.0 * index for index in range(100)]


def test_windows_are_told_once_and_quiet_ones_are_zero() -> None:
    counter = RateCounter(10.0)
    counter.advance(0.0)
    assert counter.take(20.0) == [(0.0, 0.0), (10.0, 0.0)]
    counter.add(25.0)
    assert counter.take(29.0) == []
    assert counter.take(30.0) == [(20.0, 0.1)]


def test_a_long_sleep_does_not_fill_the_memory() -> None:
    counter = RateCounter(1.0)
    counter.add(0.0)
    assert len(counter.take(1e9)) == 360


def test_a_failed_request_counts_as_failed_only() -> None:
    statistics = ModelStatistics()
    statistics.add(Outcome(1.0, "m", "1", 4, 0.5, error="BAD"))
    statistics.add(Outcome(2.0, "m", "1", 4, 0.5, Times(1, 2, 3, 4)))
    assert (statistics.fail.count, statistics.success.count, statistics.samples) == (1, 1, 4)
    assert (statistics.queue.ns, statistics.compute_infer.ns, statistics.last_at) == (1, 3, 2.0)


def test_phases_and_reasons_are_metrics() -> None:
    from prometheus_client import REGISTRY

    from services.gateway.app.observation import Observation
    from tests.support.gateway import Facts, FakeClock

    observation = Observation(clock=FakeClock(), rate_step_s=10.0, tell_rates=Facts().rates_of)
    times = Times(queue_ns=1_000_000, input_ns=0, compute_ns=2_000_000, output_ns=0)
    observation.add(Outcome(1000.0, "phases", "1", 1, 0.004, times))
    observation.add(Outcome(1000.0, "phases", "1", 0, 0.004, None, "QUEUE_FULL: too many"))
    observation.add(Outcome(1000.0, "phases", "1", 1, 0.004, times, copy=True))
    labels = {"model": "phases", "version": "1"}
    name = "recmesh_gateway_infer_phase_seconds_sum"
    assert REGISTRY.get_sample_value(name, {**labels, "phase": "queue"}) == pytest.approx(0.002)
    assert REGISTRY.get_sample_value(name, {**labels, "phase": "infer"}) == pytest.approx(0.004)
    failures = "recmesh_gateway_infer_failures_total"
    assert REGISTRY.get_sample_value(failures, {**labels, "reason": "QUEUE_FULL"}) == 1
    assert len(observation.recent) == 2         # the copy is no part of the traffic
