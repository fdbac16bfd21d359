"""Places in shared memory."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recmesh.serving.transport.places import ALIGN, Places

SIZE = 64 * ALIGN


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 20 * ALIGN), st.integers(0, 1 << 30)), max_size=60))
def test_no_two_places_that_are_held_overlap(steps: list[tuple[bool, int, int]]) -> None:
    places, held = Places(SIZE), dict[int, int]()
    for takes, size, which in steps:
        if takes:
            at = places.take(size)
            if at is None:
                assert held, "empty memory has room for what is smaller than it"
                continue
            assert at % ALIGN == 0 and 0 <= at and at + size <= SIZE
            assert all(at + size <= other or other + length <= at for other, length in held.items())
            held[at] = max(size, 1)
        elif held:
            at = sorted(held)[which % len(held)]
            places.give_back(at)
            del held[at]
    assert places.held == len(held)


def test_what_nobody_holds_cannot_be_given_back() -> None:
    places = Places(SIZE)
    at = places.take(10)
    assert at is not None
    places.give_back(at)
    with pytest.raises(KeyError):
        places.give_back(at)


def test_the_lowest_free_place_is_given() -> None:
    places = Places(SIZE)
    for _ in range(3):
        at = places.take(SIZE)
        assert at == 0
        assert places.take(1) is None
        places.give_back(at)
