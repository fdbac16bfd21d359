import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recmesh.data.topics import Partition, Span
from recmesh.partitions import series_of
from services.shardsvc.domain.arrivals import LONGEST_GAP_S, STEP_S, Arrivals, Listing


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


@given(st.text("ab.", min_size=1, max_size=260), st.integers(0, 10**9))
def test_names_of_series_are_short_enough_and_a_topic_is_what_its_partitions_begin_with(name: str, number: int) -> None:
    partition, topic = series_of(f"kafka:{name}/{number}")
    assert partition == f"{topic}/{number}" and len(partition) <= 200
    assert topic == f"topic/{name}" if len(name) <= 180 else len(topic) == len("topic/") + 180


def test_long_names_that_begin_alike_are_of_different_series() -> None:
    names = ["x" * 248 + end for end in "abc"] + ["x" * 180]
    assert len({series_of(f"kafka:{name}/0") for name in names}) == 4
    assert series_of(f"jetstream:odd-{'1' * 200}")[0].endswith("/0")


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


@pytest.mark.parametrize(
    ("end", "at", "tag"),
    [
        (5, 1030.0, "another"), (500, 1030.0, "another"),
        (500, 1020.0 + 2 * LONGEST_GAP_S, "made"), (500, 1020.0 - 2 * LONGEST_GAP_S, "made"),
    ],
)
def test_a_topic_made_again_a_long_silence_and_a_clock_that_goes_far_back_begin_anew(
    end: int, at: float, tag: str
) -> None:
    arrivals = Arrivals()
    arrivals.look("s", 100, at=1000.0, tag="made")
    assert arrivals.look("s", 200, at=1020.0, tag="made")
    assert arrivals.look("s", end, at=at, tag=tag) == []
    at = math.ceil(at / STEP_S) * STEP_S + STEP_S
    assert [rate for _, rate in arrivals.look("s", end, at=at, tag=tag)] in ([0.0], [])
    assert [rate for _, rate in arrivals.look("s", end + 50, at=at + STEP_S, tag=tag)] == [5.0]


def test_without_tags_less_than_before_is_a_topic_made_again() -> None:
    arrivals = Arrivals()
    arrivals.look("s", 100, at=1000.0)
    assert arrivals.look("s", 5, at=1010.0) == []
    assert arrivals.look("s", 25, at=1020.0) == [(1010.0, 2.0)]


@pytest.mark.parametrize(("end", "at"), [(150, 1014.0), (150, 1016.0), (300, 1015.0)])
def test_a_look_that_was_overtaken_changes_nothing(end: int, at: float) -> None:
    arrivals = Arrivals()
    arrivals.look("s", 100, at=1000.0, tag="made")
    assert arrivals.look("s", 250, at=1015.0, tag="made") == [(1000.0, 10.0)]
    assert arrivals.look("s", end, at=at, tag="made") == []
    assert arrivals.look("s", 300, at=1020.0, tag="made") == [(1010.0, 10.0)]


def _listing(at: float, server: str = "", pattern: str = "t", **ends: int) -> Listing:
    return Listing(server, pattern, at, [
        Partition(f"kafka:t/{name[1:]}", "made", Span(0, end)) for name, end in ends.items()
    ])


def test_a_topic_is_the_sum_of_its_partitions_and_a_new_partition_is_no_burst() -> None:
    arrivals = Arrivals()
    arrivals.look_at_all([_listing(1000.0, p0=0, p1=0)])
    found = arrivals.look_at_all([_listing(1010.0, p0=10, p1=30)])
    assert found == {"topic/t/0": [(1000.0, 1.0)], "topic/t/1": [(1000.0, 3.0)], "topic/t": [(1000.0, 4.0)]}
    found = arrivals.look_at_all([_listing(1020.0, p0=20, p1=60, p2=10_000)])
    assert found == {"topic/t/0": [(1010.0, 1.0)], "topic/t/1": [(1010.0, 3.0)]}
    found = arrivals.look_at_all([_listing(1030.0, p0=30, p1=90, p2=10_010)])
    assert found["topic/t"] == [(1020.0, 5.0)]


def test_topics_of_one_name_on_two_servers_are_counted_apart_and_one_of_them_is_told() -> None:
    arrivals, told = Arrivals(), []
    for step in range(60):
        at = 1000.0 + 10 * step
        both = [_listing(at + 1, "b", p0=7_000 - 3_000 * (step % 2)), _listing(at, "a", p0=20 * step)]
        found = arrivals.look_at_all(both[: 1 if step > 20 else 2])
        told += found.get("topic/t", [])
        arrivals.forget(before=at - 2 * LONGEST_GAP_S)
    assert told[:20] == [(1000.0 + 10 * step, 2.0) for step in range(20)]
    assert all(rate == 0.0 for _, rate in told[20:]) and len(told) > 20


def test_a_listing_of_fewer_partitions_is_not_told_as_the_whole_topic() -> None:
    arrivals = Arrivals()
    alone = [arrivals.look_at_all([_listing(1000.0 + 10 * step, "", "t-0", p0=10 * step)]) for step in range(3)]
    assert alone[-1]["topic/t"] == [(1010.0, 1.0)]
    together = [
        arrivals.look_at_all([
            _listing(1001.0 + 10 * step, "", "t-0", p0=10 * step + 1),
            _listing(1000.0 + 10 * step, p0=10 * step, p1=30 * step),
        ])
        for step in range(3, 6)
    ]
    assert together[-1] == {"topic/t/0": [(1040.0, 1.0)], "topic/t/1": [(1040.0, 3.0)], "topic/t": [(1040.0, 4.0)]}


def test_series_that_nobody_looks_at_are_forgotten() -> None:
    arrivals = Arrivals()
    arrivals.look("s", 0, at=1000.0)
    arrivals.forget(before=1001.0)
    assert arrivals.look("s", 100, at=1010.0) == []
