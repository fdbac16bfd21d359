"""Dynamic batching: what is run next, and together."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recmesh.runtime.errors import DeadlineExceeded, InvalidArgument, ResourceExhausted
from recmesh.serving.hn.batching import Batcher
from recmesh.serving.hn.runtimes import RunTimes
from recmesh.serving.settings import ServingSettings

LATE = 1e9


def batcher(max_batch_size: int = 8, **batching: Any) -> Batcher[str]:
    return Batcher(ServingSettings.parse({"max_batch_size": max_batch_size, "dynamic_batching": batching}))


def put(to: Batcher[str], item: str, *, rows: int = 1, now: float = 0.0, signature: Any = "s", **more: Any) -> None:
    to.put(item, **{"rows": rows, "signature": signature, "now": now, "deadline": LATE, **more})


def taken(of: Batcher[str], now: float = 0.0) -> str:
    return "".join(entry.item for entry in of.take(now))


def test_what_waits_is_run_together_up_to_the_largest_batch() -> None:
    made = batcher(max_batch_size=4)
    for item in "abcdef":
        put(made, item)
    assert [taken(made), taken(made), taken(made)] == ["abcd", "ef", ""]


def test_without_a_batch_size_each_is_run_by_itself() -> None:
    made = batcher(max_batch_size=0)
    put(made, "a")
    put(made, "b")
    assert [taken(made), taken(made)] == ["a", "b"]


def test_a_request_larger_than_a_batch_is_run_by_itself() -> None:
    made = batcher(max_batch_size=4)
    put(made, "a", rows=9)
    put(made, "b")
    assert [taken(made), taken(made)] == ["a", "b"]


def test_only_equal_signatures_go_together_and_none_is_overtaken_for_ever() -> None:
    made = batcher()
    for item, signature in (("a", 1), ("b", 2), ("c", 1), ("d", None), ("e", None)):
        put(made, item, signature=signature)
    assert [taken(made) for _ in range(4)] == ["ac", "b", "d", "e"]


def test_requests_are_held_back_for_a_full_batch_but_not_for_longer_than_said() -> None:
    made = batcher(max_batch_size=4, max_queue_delay_microseconds=1_000_000)
    put(made, "a", now=10.0)
    put(made, "b", now=10.5)
    assert taken(made, 10.9) == ""
    assert made.wait_s(10.9) == pytest.approx(0.1)
    assert taken(made, 11.0) == "ab"
    put(made, "c", now=20.0, rows=3)
    put(made, "d", now=20.1)
    assert taken(made, 20.1) == "cd"                 # full


def test_a_preferred_size_is_run_at_once() -> None:
    made = batcher(max_batch_size=8, preferred_batch_size=[2, 4], max_queue_delay_microseconds=1_000_000)
    for item in "abc":
        put(made, item)
    assert taken(made) == "ab"
    assert taken(made) == ""
    assert taken(made, 1.0) == "c"


def test_levels_go_first_to_last() -> None:
    made = batcher(max_batch_size=1, priority_levels=2, default_priority_level=2)
    put(made, "a")
    put(made, "b", priority=2)
    put(made, "c", priority=1)
    put(made, "d", priority=77)
    assert [taken(made) for _ in range(4)] == ["c", "a", "b", "d"]


def test_a_full_line_refuses() -> None:
    made = batcher(default_queue_policy={"max_queue_size": 1})
    put(made, "a")
    with pytest.raises(ResourceExhausted, match="1 requests wait"):
        put(made, "b")


def test_who_waits_too_long_is_refused_or_put_behind_as_the_policy_says() -> None:
    policy = {"default_timeout_microseconds": 1_000_000}
    made = batcher(max_batch_size=1, default_queue_policy=policy)
    put(made, "a")
    [(item, error)] = made.expire(1.0)
    assert item == "a" and isinstance(error, DeadlineExceeded) and len(made) == 0
    made = batcher(max_batch_size=1, default_queue_policy={**policy, "timeout_action": "DELAY"})
    put(made, "a")
    assert made.expire(1.0) == []
    put(made, "b", now=1.0)
    assert [taken(made, 1.0), taken(made, 1.0)] == ["b", "a"]


def test_a_request_may_shorten_its_wait_where_that_is_allowed() -> None:
    for allowed, left in ((True, 0), (False, 1)):
        policy = {"default_timeout_microseconds": 2_000_000, "allow_timeout_override": allowed}
        made = batcher(default_queue_policy=policy)
        put(made, "a", timeout_us=1_000_000)
        made.expire(1.5)
        assert len(made) == left
    made = batcher(default_queue_policy={"default_timeout_microseconds": 1_000_000, "allow_timeout_override": True})
    put(made, "a", timeout_us=9_000_000)
    assert len(made.expire(1.5)) == 1


def test_a_request_past_its_deadline_is_not_run_whatever_the_policy_says() -> None:
    made = batcher(default_queue_policy={"timeout_action": "DELAY", "default_timeout_microseconds": 1})
    put(made, "a", deadline=5.0)
    made.expire(1.0)
    assert [item for item, _ in made.expire(5.0)] == ["a"]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 3), st.integers(0, 3)), max_size=25), st.integers(0, 8))
def test_each_is_taken_once_and_no_batch_is_too_large(requests: list[tuple[int, int, int]], most: int) -> None:
    made = batcher(max_batch_size=most, priority_levels=3, default_priority_level=1)
    for index, (rows, signature, level) in enumerate(requests):
        put(made, str(index), rows=rows, signature=signature, priority=level)
    seen: list[str] = []
    while batch := made.take(0.0):
        assert len(batch) == 1 or sum(entry.rows for entry in batch) <= most
        assert len({entry.signature for entry in batch}) == 1
        seen += [entry.item for entry in batch]
    assert sorted(seen, key=int) == [str(index) for index in range(len(requests))]
    assert len(made) == 0 and made.wait_s(0.0) is None


@pytest.mark.parametrize(
    ("document", "path"),
    [
        ({"split": "maybe"}, "serving.split"),
        ({"max_batch_size": -1}, "serving.max_batch_size"),
        ({"max_batch_size": 2, "dynamic_batching": {"preferred_batch_size": [4]}}, "serving"),
        ({"dynamic_batching": {"priority_levels": 2}}, "serving.dynamic_batching"),
        ({"dynamic_batching": {"default_queue_policy": {"timeout_action": "WAIT"}}},
         "serving.dynamic_batching.default_queue_policy.timeout_action"),
        ({"batch": 3}, "serving.batch"),
    ],
)  # fmt: skip
def test_wrong_settings_are_named(document: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        ServingSettings.parse(document)
    assert path in [item.path for item in refused.value.violations]


def test_what_was_read_is_written_as_it_was_read() -> None:
    document = {"max_batch_size": 8, "dynamic_batching": {"preferred_batch_size": [4], "priority_levels": 1,
                "default_priority_level": 1, "priority_queue_policy": {"1": {"max_queue_size": 3}}}}  # fmt: skip
    read = ServingSettings.parse(document)
    assert ServingSettings.parse(read.model_dump(mode="json")) == read
    assert read.dynamic_batching.policy(1).max_queue_size == 3


def known(seconds: float, *, rows: int = 1) -> RunTimes:
    """Runs of so many rows took so long, at 0."""
    times = RunTimes()
    for _ in range(3):
        times.see(rows, seconds, 0.0)
    return times


def timed(times: RunTimes, *, most_waiting: int = 100, **settings: Any) -> Batcher[str]:
    return Batcher(ServingSettings.parse(settings), times=times, most_waiting=most_waiting)


def test_without_levels_any_priority_counts_and_none_is_as_100() -> None:
    made = batcher(max_batch_size=1)
    for item, priority in (("a", 0), ("b", 101), ("c", 50), ("d", 100), ("e", 1)):
        put(made, item, priority=priority)
    assert [taken(made) for _ in range(5)] == ["e", "c", "a", "d", "b"]


def test_of_a_priority_the_earliest_deadline_goes_first_and_equal_ones_in_turn() -> None:
    for levels in ({}, {"priority_levels": 2, "default_priority_level": 1}):
        made = batcher(max_batch_size=1, **levels)
        for item, priority, deadline in (("a", 2, 5.0), ("b", 1, 9.0), ("c", 1, 7.0), ("d", 1, 9.0)):
            put(made, item, priority=priority, deadline=deadline)
        assert [taken(made) for _ in range(4)] == ["c", "b", "d", "a"]


def test_a_priority_that_is_no_level_is_as_none() -> None:
    made = batcher(max_batch_size=1, priority_levels=3, default_priority_level=2)
    for item, priority in (("a", 3), ("b", 9), ("c", 2), ("d", 1)):
        put(made, item, priority=priority)
    assert [taken(made) for _ in range(4)] == ["d", "b", "c", "a"]


def test_who_would_be_late_behind_what_waits_is_refused_at_once() -> None:
    made = timed(known(1.0))
    for item in "abc":
        put(made, item, deadline=3.0)
    with pytest.raises(ResourceExhausted) as refused:
        put(made, "d", deadline=3.0)
    assert refused.value.reason == "DEADLINE_BEHIND_QUEUE"
    put(made, "e", deadline=4.5)
    with pytest.raises(ResourceExhausted, match="1 of those that wait"):
        put(made, "f", deadline=1.5)                 # in time itself, as it goes first; and e is late by it
    assert "".join(taken(made) for _ in range(4)) == "abce"


def test_what_runs_counts_too() -> None:
    made = timed(known(1.0))
    with pytest.raises(ResourceExhausted):
        put(made, "a", deadline=1.9, free_at=1.0)
    put(made, "a", deadline=2.0, free_at=1.0)


def test_who_could_never_be_in_time_is_told_so_and_a_model_that_was_slow_once_is_tried_again() -> None:
    made = timed(known(1.0))
    with pytest.raises(DeadlineExceeded) as refused:
        put(made, "a", deadline=0.9)
    assert refused.value.reason == "DEADLINE_TOO_SHORT"
    put(made, "a", now=100.0, deadline=100.9)


def test_a_higher_priority_is_not_refused_for_lower_ones_which_leave_when_they_cannot_be_in_time() -> None:
    made = timed(known(1.0))
    put(made, "a", deadline=2.0)
    put(made, "b", deadline=2.0)
    put(made, "c", deadline=2.0, priority=1)
    [(item, error)] = made.expire(0.0)
    assert item == "b" and error.reason == "DEADLINE_BEHIND_QUEUE"
    assert [taken(made), taken(made)] == ["c", "a"]


def test_who_is_lost_anyway_is_no_reason_to_refuse_others() -> None:
    times = RunTimes()
    made = timed(times)
    put(made, "lost", deadline=3.0)
    for _ in range(3):
        times.see(1, 5.0, 0.0)
    put(made, "a", deadline=5.0)
    assert [item for item, _ in made.expire(0.0)] == ["lost"]


def test_requests_that_are_one_batch_take_the_time_of_one_run() -> None:
    made = timed(known(1.0, rows=8), max_batch_size=8)
    for item in "abcdefgh":
        put(made, item, deadline=1.0)
    assert made.expire(0.0) == []
    with pytest.raises(ResourceExhausted):
        put(made, "i", deadline=1.1)


def test_a_full_queue_makes_room_for_a_higher_priority_alone() -> None:
    made = timed(RunTimes(), most_waiting=2)
    put(made, "a")
    put(made, "b")
    with pytest.raises(ResourceExhausted) as refused:
        put(made, "c")
    assert refused.value.reason == "QUEUE_FULL"
    [(item, error)] = made.put("d", rows=1, signature="s", now=0.0, deadline=LATE, priority=1)
    assert item == "b" and error.reason == "SHED_FOR_PRIORITY"
    assert [taken(made), taken(made)] == ["d", "a"] and len(made) == 0


def test_run_times_of_sizes_that_were_not_seen_are_guessed_low() -> None:
    times = known(1.0, rows=16)
    assert times.expected_s(16, 0.0) == 1.0
    assert times.expected_s(100, 0.0) == 1.0
    assert times.expected_s(4, 0.0) == 0.25
    times.see(16, 50.0, 0.0)
    assert times.expected_s(16, 0.0) == 1.0          # one that was held up says nothing
    assert times.expected_s(16, 61.0) == 0.0
    once = RunTimes()
    once.see(1, 9.0, 0.0)
    assert once.expected_s(1, 0.0) == 0.0


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 12), st.integers(0, 4)), max_size=30),
    st.integers(0, 6),
)
def test_who_is_accepted_is_in_time_as_long_as_nobody_of_higher_priority_comes(
    requests: list[tuple[int, int, int, int]], most: int
) -> None:
    """Requests of one priority, each run of one second; a run begins whenever the model is free."""
    times = RunTimes()
    for rows in (1, 2, 4):
        for _ in range(3):
            times.see(rows, 1.0, 0.0)
    made, free_at, now = timed(times, max_batch_size=most), 0.0, 0.0
    deadlines: dict[str, float] = {}

    def run(until: float) -> None:
        nonlocal free_at
        while free_at <= until and len(made):
            assert made.expire(free_at) == []
            batch = made.take(free_at)
            free_at += 1.0
            assert all(free_at <= entry.deadline for entry in batch)

    for index, (rows, _, left, later) in enumerate(requests):
        now += later / 4
        run(now)
        free_at = max(free_at, now)
        try:
            made.put(
                str(index), rows=rows, signature="s", now=now, deadline=now + left, free_at=free_at
            )
            deadlines[str(index)] = now + left
        except (ResourceExhausted, DeadlineExceeded):
            continue
    run(1e9)
    assert len(made) == 0
