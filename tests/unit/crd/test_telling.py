"""How many Events an object may tell."""

import pytest

from recmesh.crd.telling import EVENTS_BURST, EVENTS_PER_S, Pace, ThingRef


def ref(uid: str) -> ThingRef:
    return ThingRef("ads", "clicks", uid)


def test_an_object_tells_a_burst_and_then_at_its_rate_whatever_others_tell() -> None:
    pace, burst = Pace(), int(EVENTS_BURST)
    assert [pace.lets(ref("a"), now_s=100.0) for _ in range(burst + 2)] == [True] * burst + [False] * 2
    assert pace.lets(ref("b"), now_s=100.0), "another one's, also of the same name"
    assert not pace.lets(ref("a"), now_s=100.0 + 0.9 / EVENTS_PER_S)
    assert pace.lets(ref("a"), now_s=100.0 + 1.1 / EVENTS_PER_S)
    assert not pace.lets(ref("a"), now_s=100.0 + 1.2 / EVENTS_PER_S)


def test_objects_that_tell_nothing_for_long_are_forgotten_and_others_are_not() -> None:
    pace = Pace(per_s=1.0, burst=10.0)
    for number in range(100):
        pace.lets(ref(f"old-{number}"), now_s=0.0)
    for _ in range(10):
        pace.lets(ref("busy"), now_s=9.5)
    assert not pace.lets(ref("busy"), now_s=9.5)
    assert pace.lets(ref("new"), now_s=10.0)
    assert set(pace._buckets) == {"busy", "new"}
    assert not pace.lets(ref("busy"), now_s=10.0)


@pytest.mark.parametrize("later_s", [9.9, 10.0, 1000.0])
def test_a_bucket_that_was_forgotten_was_full(later_s: float) -> None:
    pace = Pace(per_s=1.0, burst=10.0)
    for _ in range(10):
        assert pace.lets(ref("a"), now_s=0.0)
    pace.lets(ref("other"), now_s=later_s)
    assert sum(pace.lets(ref("a"), now_s=later_s) for _ in range(20)) == min(10, int(later_s))
