"""Each sample once, with the labels that count by event time, in whatever order and at whatever speed all came."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recmesh.join.domain import (
    MOST_LABELS,
    Effect,
    Empty,
    Ended,
    Event,
    Fate,
    Forgotten,
    Full,
    Join,
    Joined,
    Known,
    Label,
    Late,
    Position,
    Rules,
    Sample,
    Settled,
    Tick,
    Unreadable,
)

W = 10.0
RULES = Rules(window_s=W, early_s=W)


def sample(key: str, time: float, *, n: int = 0, partition: int = 0) -> Sample:
    return Sample(Position("samples", partition, n), time, key, key.encode())


def label(key: str, time: float, value: float = 1.0, *, n: int = 0, partition: int = 0) -> Label:
    return Label(Position("labels", partition, n), time, key, value, b"")


def run(events: list[Event], rules: Rules = RULES, *, now: float = 0.0) -> list[Effect]:
    join = Join(rules, samples=1, labels=1)
    return [effect for event in events for effect in join.handle(event, now)]


def fates(effects: list[Effect]) -> Counter[str]:
    """Of every message."""
    found: Counter[str] = Counter()
    for effect in effects:
        match effect:
            case Joined(fate=fate, labels=labels):
                found[fate] += 1
                found[Fate.JOINED] += len(labels)
            case Late():
                found[Fate.LATE] += 1
            case Settled(fate=fate):
                found[fate] += 1
    return +found


def joined(effects: list[Effect]) -> list[tuple[str, float]]:
    return [(effect.sample.key, effect.label) for effect in effects if isinstance(effect, Joined)]


def test_a_sample_waits_until_no_label_that_counts_can_come() -> None:
    events: list[Event] = [sample("a", 0.0), label("a", 4.0), label("x", W)]
    assert joined(run(events)) == []
    assert joined(run([*events, label("y", W + 0.1)])) == [("a", 1.0)]


def test_without_a_label_it_gets_the_default_or_is_dropped() -> None:
    events: list[Event] = [sample("a", 0.0), label("x", 20.0)]
    assert joined(run(events)) == [("a", 0.0)]
    effects = run(events, Rules(window_s=W, early_s=W, default_label=None))
    assert joined(effects) == [] and fates(effects) == {Fate.DROPPED: 1}


@pytest.mark.parametrize(("several", "expected"), [("last", 2.0), ("first", 5.0), ("max", 7.0)])
def test_of_several_labels_one_counts_by_the_rule(several: Any, expected: float) -> None:
    labels = [label("a", 3.0, 7.0, n=1), label("a", 1.0, 5.0, n=2), label("a", 4.0, 2.0, n=3)]
    for before, after in ((labels, []), ([], labels), (labels[1:], labels[:1]), (labels[::-1], [])):
        events: list[Event] = [*before, sample("a", 0.0), *after, Ended()]
        effects = run(events, Rules(window_s=W, early_s=W, several=several, disorder_s=(9.0, 9.0)))
        assert joined(effects) == [("a", expected)]
        assert fates(effects) == {Fate.LABELLED: 1, Fate.JOINED: 3}


def test_a_sample_holds_few_labels_however_many_come() -> None:
    count = MOST_LABELS + 10
    effects = run([sample("a", 0.0), *(label("a", 1.0, float(n), n=n) for n in range(count)), Ended()])
    assert joined(effects) == [("a", count - 1.0)]
    assert [len(effect.labels) for effect in effects if isinstance(effect, Joined)] == [MOST_LABELS + 1]
    assert fates(effects) == {Fate.LABELLED: 1, Fate.JOINED: count}


def test_a_label_before_its_sample_counts_as_long_as_it_is_not_too_early() -> None:
    effects = run([label("a", 0.0), label("b", 0.0, n=1), sample("a", W), sample("b", W + 1, n=1), Ended()])
    assert dict(joined(effects)) == {"a": 1.0, "b": 0.0}
    assert fates(effects) == {Fate.LABELLED: 1, Fate.JOINED: 1, Fate.DEFAULTED: 1, Fate.ORPHAN: 1}


def test_late_labels_are_late_before_and_after_their_sample_went_out() -> None:
    effects = run([sample("a", 0.0), label("a", W + 1), label("a", W + 2, n=1), Ended()])
    assert joined(effects) == [("a", 0.0)] and fates(effects)[Fate.LATE] == 2


def test_a_second_sample_of_an_id_is_a_duplicate_until_it_is_forgotten() -> None:
    effects = run([
        sample("a", 0.0), sample("a", 1.0, n=1), label("x", 11.0), sample("a", 12.0, n=2), label("y", 21.0, n=1),
        sample("a", 22.0, n=3), Ended(),
    ])
    assert [effect.sample.at.sequence for effect in effects if isinstance(effect, Joined)] == [0, 3]
    assert fates(effects)[Fate.DUPLICATE] == 2


def test_more_than_may_be_remembered_is_forgotten_first() -> None:
    rules = Rules(window_s=W, early_s=W, remembered=1)
    effects = run([sample("a", 0.0), sample("b", 1.0, n=1), label("x", 15.0), label("a", 16.0, n=1), Ended()], rules)
    assert [effect.at.sequence for effect in effects if isinstance(effect, Forgotten)][:1] == [0]


def test_a_partition_that_tells_nothing_holds_up_all_unless_it_is_idle() -> None:
    for idle_s, expected in ((0.0, []), (5.0, [("a", 0.0)])):
        join = Join(Rules(window_s=W, early_s=W, idle_s=idle_s), samples=1, labels=2)
        events: list[Event] = [Empty("labels", 1), sample("a", 0.0), label("x", 50.0)]
        found = [effect for event in events for effect in join.handle(event, 0.0)]
        assert joined(found) == []
        assert joined(join.handle(Tick(), 4.9)) == []
        # Both topics' messages are read as they come; partition 1 is known to be empty.
        assert joined(join.handle(Tick(), 5.1)) == expected


def test_a_partition_whose_messages_wait_to_be_read_is_not_idle() -> None:
    join = Join(Rules(window_s=W, early_s=W, idle_s=5.0), samples=1, labels=2)
    events: list[Event] = [Empty("labels", 1), sample("a", 0.0), label("x", 50.0)]
    for event in events:
        join.handle(event, 0.0)
    assert joined(join.handle(Tick((("labels", 1),)), 5.1)) == []
    assert joined(join.handle(Tick(), 60.0)) == []


def test_when_nobody_sends_event_time_goes_on_with_the_clock() -> None:
    join = Join(Rules(window_s=W, early_s=W, idle_s=5.0), samples=1, labels=1)
    last = Sample(Position("samples", 0, 0), 0.0, "a", b"", is_read=True)
    join.handle(Empty("labels", 0), 100.0)
    join.handle(last, 100.0)
    assert joined(join.handle(Tick(), 114.0)) == []
    assert joined(join.handle(Tick(), 116.0)) == [("a", 0.0)]


def test_what_cannot_be_read_is_settled_and_tells_the_time() -> None:
    effects = run([sample("a", 0.0), Unreadable(Position("labels", 0, 0), 11.0, "no")])
    assert fates(effects) == {Fate.UNREADABLE: 1, Fate.DEFAULTED: 1}


def test_a_sample_that_went_out_in_another_life_makes_labels_late() -> None:
    known = Known(Position("samples", 0, 0), 0.0, "a")
    late = label("a", 4.0)
    assert fates(run([known, late, Ended()])) == fates(run([late, known, Ended()])) == {Fate.LATE: 1}


def test_when_too_many_wait_and_labels_are_silent_the_oldest_samples_go_out() -> None:
    rules = Rules(window_s=W, early_s=W, idle_s=5.0)
    for heard, expected in ((True, []), (False, ["a", "b"])):
        join = Join(rules, samples=1, labels=1)
        join.handle(Empty("labels", 0), 0.0)
        for n in range(40):
            join.handle(sample("ab"[n] if n < 2 else f"s{n}", n / 100, n=n), 10.0)
        if heard:
            join.handle(Tick((("labels", 0),)), 10.0)
        found = [effect.sample.key for effect in join.handle(Full(), 12.0) if isinstance(effect, Joined)]
        assert found[:2] == expected and len(found) == (0 if heard else 3)


TIMES = st.integers(0, 60).map(float)
KEYS = st.sampled_from("abcdef")


@st.composite
def histories(draw: st.DrawFn) -> list[Event]:
    """Samples of different ids and labels, each partition in order of time."""
    times = draw(st.dictionaries(KEYS, TIMES))
    samples = sorted(times.items(), key=lambda item: item[1])
    labels = sorted(draw(st.lists(st.tuples(KEYS, TIMES), max_size=12)), key=lambda item: item[1])
    made: list[Event] = [sample(key, time, n=n) for n, (key, time) in enumerate(samples)]
    return [*made, *(label(key, time, float(n), n=n) for n, (key, time) in enumerate(labels))]


def expected(events: list[Event]) -> tuple[dict[str, float], Counter[str]]:
    """By the definition, without any order of arrival."""
    samples = {event.key: event.time for event in events if isinstance(event, Sample)}
    chosen = dict.fromkeys(samples, 0.0)
    count: Counter[str] = Counter()
    for event in events:
        if isinstance(event, Label):
            time = samples.get(event.key)
            if time is None or event.time < time - W:
                count[Fate.ORPHAN] += 1
            elif event.time > time + W:
                count["late or orphan"] += 1
            else:
                count[Fate.JOINED] += 1
                chosen[event.key] = event.value   # the newest is the last one in its partition
    return chosen, count


@settings(deadline=None)
@given(st.data())
def test_the_order_of_arrival_between_topics_changes_nothing(data: st.DataObject) -> None:
    events = data.draw(histories())
    chosen, count = expected(events)
    waiting = {
        side: [event for event in events if isinstance(event, kind)]
        for side, kind in (("samples", Sample), ("labels", Label))
    }
    arrived: list[Event] = []
    while left := [side for side in waiting if waiting[side]]:
        arrived.append(waiting[data.draw(st.sampled_from(left))].pop(0))
    effects = run([*arrived, Ended()])
    found = joined(effects)
    assert dict(found) == chosen and len(found) == len(chosen)
    told = fates(effects)
    assert told[Fate.JOINED] == count[Fate.JOINED]
    # Labels of after the window are late, or, once their sample is forgotten, without one.
    assert told[Fate.LATE] + told[Fate.ORPHAN] == count["late or orphan"] + count[Fate.ORPHAN]
    assert told[Fate.LATE] <= count["late or orphan"]
    assert sum(told.values()) == len(events)


@settings(deadline=None)
@given(histories(), st.randoms(use_true_random=False))
def test_within_their_disorder_messages_may_come_in_any_order(events: list[Event], random: Any) -> None:
    chosen, _ = expected(events)
    random.shuffle(events)
    rules = Rules(window_s=W, early_s=W, disorder_s=(60.0, 60.0))
    found = dict(joined(run([*events, Ended()], rules)))
    assert found.keys() == chosen.keys()
    assert {key: value > 0 for key, value in found.items()}.keys() == chosen.keys()
    by_time: dict[str, list[Label]] = {event.key: [] for event in events if isinstance(event, Sample)}
    for event in events:
        if isinstance(event, Label) and event.key in by_time:
            by_time[event.key].append(event)
    for key, value in found.items():
        counting = [event for event in by_time[key] if abs(event.time - times(events)[key]) <= W]
        newest = max(counting, key=lambda event: (event.time, event.at), default=None)
        assert value == (newest.value if newest else 0.0)


def times(events: list[Event]) -> dict[str, float]:
    return {event.key: event.time for event in events if isinstance(event, Sample)}
