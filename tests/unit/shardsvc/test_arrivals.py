import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recmesh.partitions import series_of
from services.shardsvc.domain.arrivals import LONGEST_GAP_S, STEP_S, Arrivals


@pytest.mark.parametrize(
    ("uri", "partition", "topic"),
    [
        ("jetstream:clicks-3", "topic/clicks/3", "topic/clicks"),
        ("jetstream:a-b-12", "topic/a-b/12", "topic/a-b"),
        ("kafka:clicks.de/0", "topic/clicks.de/0", "topic/clicks.de"),
        ("jetstream:odd", "topic/odd/0", "topic/odd"),
    ],
)
def test_partitions_of_all_brokers_are_named_alike(uri: str, partition: str, topic: str) -> None:
    assert series_of(uri) == (partition, topic)


@given(st.lists(st.tuples(st.floats(0.1, 60), st.integers(0, 10_000)), min_size=1, max_size=40))
def test_no_message_between_the_first_and_the_last_window_is_lost_or_doubled(looks: list[tuple[float, int]]) -> None:
    arrivals, at, end = Arrivals(), 1000.0, 500
    seen = [(at, float(end))]
    arrivals.look("s", end, at=at)
    told = []
    for pause, come in looks:
        at, end = at + pause, end + come
        seen.append((at, float(end)))
        told += arrivals.look("s", end, at=at)
    starts = [start for start, _ in told]
    assert starts == [1000.0 + STEP_S * index for index in range(len(told))]
    assert len(told) == math.floor((at - 1000.0) / STEP_S)
    if told:
        until = starts[-1] + STEP_S
        (before, low), (after, high) = next(
            pair for pair in itertools.pairwise(seen) if pair[0][0] <= until <= pair[1][0]
        )
        arrived = low + (high - low) * (until - before) / (after - before) - 500
        assert sum(rate for _, rate in told) * STEP_S == pytest.approx(arrived, abs=1e-3)


def test_a_window_that_was_not_seen_from_its_start_is_not_told() -> None:
    arrivals = Arrivals()
    assert arrivals.look("s", 100, at=1003.0) == []
    assert arrivals.look("s", 200, at=1013.0) == []
    [(start, rate)] = arrivals.look("s", 300, at=1023.0)
    assert start == 1010.0 and rate == pytest.approx(10.0)


@pytest.mark.parametrize(("end", "at"), [(5, 1030.0), (500, 1020.0 + 2 * LONGEST_GAP_S), (500, 990.0)])
def test_a_topic_made_again_a_long_silence_and_a_clock_that_goes_back_begin_anew(end: int, at: float) -> None:
    arrivals = Arrivals()
    arrivals.look("s", 100, at=1000.0)
    assert arrivals.look("s", 200, at=1020.0)
    assert arrivals.look("s", end, at=at) == []


def test_a_topic_is_the_sum_of_its_partitions_and_a_new_partition_is_no_burst() -> None:
    arrivals = Arrivals()
    arrivals.look_at_all({"kafka:t/0": 0, "kafka:t/1": 0}, at=1000.0)
    found = arrivals.look_at_all({"kafka:t/0": 10, "kafka:t/1": 30}, at=1010.0)
    assert found == {"topic/t/0": [(1000.0, 1.0)], "topic/t/1": [(1000.0, 3.0)], "topic/t": [(1000.0, 4.0)]}
    found = arrivals.look_at_all({"kafka:t/0": 20, "kafka:t/1": 60, "kafka:t/2": 10_000}, at=1020.0)
    assert found == {"topic/t/0": [(1010.0, 1.0)], "topic/t/1": [(1010.0, 3.0)]}
    found = arrivals.look_at_all({"kafka:t/0": 30, "kafka:t/1": 90, "kafka:t/2": 10_010}, at=1030.0)
    assert found["topic/t"] == [(1020.0, 5.0)]


def test_series_that_nobody_looks_at_are_forgotten() -> None:
    arrivals = Arrivals()
    arrivals.look("s", 0, at=1000.0)
    arrivals.forget(before=1001.0)
    assert arrivals.look("s", 100, at=1010.0) == []
