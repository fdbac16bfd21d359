"""Who has room, and who gets what."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recmesh.trainer.executor.rebalance import Peer, Room, Thresholds, share_out, surplus

BOUNDS = Thresholds(refuse_above=4, accept_below=2)


def test_room_ends_above_the_upper_threshold_and_begins_again_below_the_lower() -> None:
    room = Room(BOUNDS)
    seen = [(queued, room.see(queued), room.accepting) for queued in (3, 4, 5, 4, 2, 1, 2, 4, 5)]
    assert seen == [
        (3, False, True), (4, False, True), (5, True, False), (4, False, False), (2, False, False),
        (1, True, True), (2, False, True), (4, False, True), (5, True, False),
    ]


@given(st.lists(st.integers(0, 12), max_size=100))
def test_between_two_changes_the_queue_crosses_the_whole_gap(queue: list[int]) -> None:
    room, changes = Room(BOUNDS), []
    for queued in queue:
        if room.see(queued):
            changes.append((room.accepting, queued))
    assert [accepting for accepting, _ in changes] == [i % 2 == 1 for i in range(len(changes))]
    assert all(queued < 2 if accepting else queued > 4 for accepting, queued in changes)


@given(st.integers(0, 20), st.integers(0, 20))
def test_what_is_taken_never_fills_the_queue_above_the_upper_threshold(offered: int, queued: int) -> None:
    room = Room(BOUNDS)
    room.see(queued)
    taken = room.takes(offered, queued=queued)
    assert 0 <= taken <= offered
    assert taken == 0 or queued + taken <= 4


def test_a_queue_up_to_the_upper_threshold_has_no_surplus() -> None:
    assert [surplus(queued, BOUNDS) for queued in (0, 4, 5, 9)] == [0, 0, 1, 5]


def test_tasks_go_to_the_peer_with_the_fewest_first() -> None:
    peers = {"a": Peer(True, 2), "b": Peer(True, 0), "c": Peer(False, 0)}
    assert share_out([1, 2, 3, 4, 5, 6, 7], peers, upto=4) == {"b": [1, 2, 4, 6], "a": [3, 5]}


@given(
    st.lists(st.integers(), max_size=30),
    st.dictionaries(st.sampled_from("abcdef"), st.builds(Peer, st.booleans(), st.integers(0, 8)), max_size=6),
)
def test_every_task_is_offered_once_at_most_and_only_where_there_is_room(
    tasks: list[int], peers: dict[str, Peer]
) -> None:
    shared = share_out(list(enumerate(tasks)), peers, upto=4)
    offered = [task for part in shared.values() for task in part]
    assert len(offered) == len(set(offered)) <= len(tasks)
    for address, part in shared.items():
        assert peers[address].accepting
        assert peers[address].queued + len(part) <= 4
    room = sum(max(0, 4 - peer.queued) for peer in peers.values() if peer.accepting)
    assert len(offered) == min(len(tasks), room)


@pytest.mark.parametrize("bounds", [(4, 5), (4, 0)])
def test_thresholds_that_are_none_are_refused(bounds: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="accept_below"):
        Thresholds(*bounds)
