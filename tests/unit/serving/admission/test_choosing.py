"""Which HN is asked, who is left alone, when a second one is asked."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recmesh.serving.admission.domain.choice import Choice
from recmesh.serving.admission.domain.ejection import Cause, Ejection, Rules
from recmesh.serving.admission.domain.hedging import HedgeRules, Hedging

NAMES = ["a", "b", "c", "d"]


def choice_of(seconds: dict[str, float]) -> Choice:
    choice = Choice()
    choice.update(seconds)
    for name, each in seconds.items():
        choice.began(name)
        choice.ended(name, 0.0, seconds=each)
    return choice


def picked(choice: Choice, count: int = 1000, *, now: float = 0.0) -> Counter[str]:
    rng = random.Random(1)
    return Counter(str(choice.pick(now, rng)) for _ in range(count))


def test_the_slowest_is_never_the_better_of_two_and_no_other_is_left_out() -> None:
    counts = picked(choice_of({"a": 0.01, "b": 0.01, "c": 0.01, "d": 1.0}))
    assert counts["d"] == 0
    assert min(counts[name] for name in "abc") > 150


def test_what_is_under_way_counts() -> None:
    choice = choice_of({"a": 0.01, "b": 0.01})
    for _ in range(3):
        choice.began("a")
    assert picked(choice) == {"b": 1000}


def test_a_slow_answer_counts_at_once_and_is_forgotten_by_time() -> None:
    choice = choice_of({"a": 0.01, "b": 0.02})
    choice.began("a")
    choice.ended("a", 1.0, seconds=1.0)
    assert picked(choice, now=1.0) == {"b": 1000}
    choice.began("b")
    choice.ended("b", 20.0, seconds=0.02)
    assert picked(choice, now=20.0) == {"a": 1000}


def test_who_was_not_waited_for_took_so_long_at_least() -> None:
    choice = choice_of({"a": 0.05, "b": 0.06})
    choice.began("b")
    choice.ended("b", 1.0, seconds=0.001, is_whole=False)
    assert picked(choice, now=1.0) == {"a": 1000}
    choice.began("a")
    choice.ended("a", 1.0, seconds=0.5, is_whole=False)
    assert picked(choice, now=1.0) == {"b": 1000}


def test_the_busy_are_asked_only_when_all_are() -> None:
    choice = choice_of({"a": 0.01, "b": 0.02})
    choice.busy("a", 5.0)
    assert picked(choice, now=1.0) == {"b": 1000}
    choice.busy("b", 5.0)
    assert picked(choice, now=1.0) == {"a": 1000}


def test_nobody_is_left_when_all_were_asked() -> None:
    assert choice_of({"a": 0.01}).pick(0.0, random.Random(1), without={"a"}) is None


@given(
    st.integers(1, 8), st.lists(st.tuples(st.integers(0, 7), st.booleans(), st.floats(0, 2)), max_size=200),
    st.floats(0.1, 1.0),
)
def test_never_more_are_out_than_may_and_never_all(
    count: int, events: list[tuple[int, bool, float]], share: float
) -> None:
    ejection = Ejection(Rules(failures=1, slow_samples=2, most_share=share))
    ejection.update(f"hn{number}" for number in range(count))
    now = 0.0
    for number, is_failure, seconds in events:
        now += seconds / 10
        if is_failure:
            ejection.failed(f"hn{number}", now)
        else:
            ejection.answered(f"hn{number}", seconds, now)
        assert len(ejection.out(now)) <= min(count - 1, share * count)


def test_failures_in_a_row_eject_and_one_answer_between_them_does_not() -> None:
    ejection = Ejection(Rules(failures=3))
    ejection.update(NAMES)
    for _ in range(2):
        ejection.failed("a", 0.0)
    ejection.answered("a", 0.01, 0.0)
    for _ in range(2):
        assert ejection.failed("a", 0.0) is None
    assert ejection.failed("a", 0.0) is Cause.FAILURES
    assert ejection.out(0.5) == {"a"}
    assert ejection.out(1.0) == frozenset()


def test_each_ejection_lasts_longer_until_it_did_well_for_as_long() -> None:
    ejection = Ejection(Rules(failures=1, longest_s=4.0))
    ejection.update(NAMES)
    lasted, now = [], 0.0
    for _ in range(4):
        ejection.failed("a", now)
        began = now
        while "a" in ejection.out(now):
            now += 0.25
        lasted.append(now - began)
    assert lasted == [1.0, 2.0, 4.0, 4.0]
    for _ in range(40):
        now += 1.0
        ejection.answered("a", 0.001, now)
    ejection.failed("a", now)
    assert "a" not in ejection.out(now + 1.0)


def test_one_far_slower_than_its_peers_is_ejected_and_all_slow_together_are_not() -> None:
    ejection = Ejection(Rules())
    ejection.update(NAMES)
    causes = [
        (name, ejection.answered(name, 0.1 if name == "a" else 0.01, 0.0)) for _ in range(20) for name in NAMES
    ]
    assert [each for each in causes if each[1]] == [("a", Cause.SLOW)]
    together = Ejection(Rules())
    together.update(NAMES)
    assert not any(together.answered(name, 0.01 * step, 0.0) for step in range(1, 30) for name in NAMES)


def test_one_that_stays_slow_is_left_alone_for_longer_each_time_however_rarely_it_is_asked() -> None:
    ejection = Ejection(Rules(longest_s=8.0))
    ejection.update(NAMES)
    lasted, now = [], 0.0
    for _ in range(4):
        while "a" not in ejection.out(now):
            now += 0.25
            for name in NAMES:
                ejection.answered(name, 0.1 if name == "a" else 0.01, now)
        began = now
        while "a" in ejection.out(now):
            now += 0.25
        lasted.append(now - began)
    assert lasted == [1.0, 2.0, 4.0, 8.0]


def test_hedges_are_a_share_of_calls_however_slow_all_are() -> None:
    hedging = Hedging(HedgeRules(share=0.05, saved_most=3.0))
    for _ in range(100):
        hedging.answered(0.01)
    spent = 0
    for _ in range(1000):
        assert hedging.began() == pytest.approx(0.01)
        spent += hedging.spend()
    assert spent <= 50


def test_saved_hedges_are_bounded_and_unknown_latency_gives_none() -> None:
    hedging = Hedging(HedgeRules(share=0.5, saved_most=3.0))
    assert hedging.began() is None
    for _ in range(100):
        hedging.began()
    assert [hedging.spend() for _ in range(4)] == [True, True, True, False]
