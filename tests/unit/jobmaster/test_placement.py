"""Plans of moves: every slot has one owner afterwards, and none moves that need not."""

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.jobmaster.domain.placement import (
    SLOTS,
    Owners,
    applied,
    bitmap,
    counts_of,
    decode,
    encode,
    even,
    plan_moves,
    slots_of,
)

servers = st.lists(st.integers(0, 40), min_size=1, max_size=8, unique=True).map(sorted)


@st.composite
def placements(draw: st.DrawFn) -> Owners:
    """Any map: ranges of any lengths."""
    owners = draw(servers)
    ends = sorted(draw(st.lists(st.integers(0, SLOTS), min_size=len(owners), max_size=12)))
    result = np.full(SLOTS, owners[0], dtype=np.uint16)
    for number, (lo, hi) in enumerate(pairwise(ends)):
        result[lo:hi] = owners[number % len(owners)]
    return result


@given(owners=placements(), members=servers)
@settings(max_examples=150, deadline=None)
def test_a_plan_balances_within_one_slot_and_moves_no_slot_without_need(owners: Owners, members: list[int]) -> None:
    shifts = plan_moves(owners, members)
    moved = [slot for shift in shifts for slot in shift.slots]
    assert len(moved) == len(set(moved))
    for shift in shifts:
        assert shift.source != shift.target and shift.target in members
        assert all(owners[slot] == shift.source for slot in shift.slots)
    after, before = counts_of(applied(owners, shifts)), counts_of(owners)
    assert set(after) == set(members)
    assert max(after.values()) - min(after.values()) <= 1
    # The least: what members lack of a fair share, where those that have most keep the larger shares.
    share, extra = divmod(SLOTS, len(members))
    largest = sorted(members, key=lambda ps: -before.get(ps, 0))
    least = sum(
        max(0, share + (place < extra) - before.get(ps, 0)) for place, ps in enumerate(largest)
    )
    assert len(moved) == least
    assert plan_moves(applied(owners, shifts), members) == []
    assert plan_moves(owners.copy(), list(members)) == shifts


@given(members=servers, weights=st.dictionaries(st.integers(0, 40), st.floats(0.0, 4.0), max_size=8))
@settings(max_examples=100, deadline=None)
def test_with_weights_each_member_owns_its_share_within_one_slot(
    members: list[int], weights: Mapping[int, float]
) -> None:
    given_weights = [weights.get(ps, 1.0) for ps in members]
    if sum(given_weights) < 1e-3:
        given_weights = [1.0] * len(members)
    owners = even(members)
    shifts = plan_moves(owners, members, weights=dict(zip(members, given_weights, strict=True)))
    after = counts_of(applied(owners, shifts))
    for ps, weight in zip(members, given_weights, strict=True):
        ideal = SLOTS * weight / sum(given_weights)
        assert abs(after.get(ps, 0) - ideal) < 1 + 1e-6


@pytest.mark.parametrize("count", range(1, 9))
def test_scaling_in_empties_the_leaving_server_and_takes_nothing_from_others(count: int) -> None:
    members = list(range(count + 1))
    shifts = plan_moves(even(members), members[:-1])
    assert {shift.source for shift in shifts} == {count}
    assert sum(len(shift.slots) for shift in shifts) == counts_of(even(members))[count]


@pytest.mark.parametrize("count", range(1, 9))
def test_scaling_out_moves_the_newcomers_share_and_no_more(count: int) -> None:
    members = list(range(count + 1))
    shifts = plan_moves(even(members[:-1]), members)
    assert {shift.target for shift in shifts} == {count}
    assert sum(len(shift.slots) for shift in shifts) == SLOTS // (count + 1)


def test_a_weight_of_zero_empties_a_member_and_without_any_weight_all_are_equal() -> None:
    assert counts_of(applied(even([0, 1]), plan_moves(even([0, 1]), [0, 1], weights={1: 0.0}))) == {0: SLOTS}
    assert plan_moves(even([0, 1]), [0, 1], weights={0: 0.0, 1: 0.0}) == []


def test_a_first_map_gives_each_server_a_contiguous_range_of_equal_size() -> None:
    owners = even([0, 2, 5])
    assert counts_of(owners) == {0: 1366, 2: 1365, 5: 1365}
    assert bool(np.all(np.diff(owners.astype(int)) >= 0))


@given(slots=st.sets(st.integers(0, SLOTS - 1), max_size=50))
def test_maps_and_bitmaps_come_back_as_they_were_written(slots: set[int]) -> None:
    assert slots_of(bitmap(slots)) == tuple(sorted(slots))
    owners = even([3, 9])
    assert np.array_equal(decode(encode(owners)), owners)
