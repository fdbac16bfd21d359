"""Batches that wait to be read."""

import threading
from collections.abc import Sequence

import pytest

from recmesh.trainer.patience import NoLongerWanted
from recmesh.trainer.ports import Lease, Piece
from recmesh.trainer.worker.pending import Item, Pending


def item(number: int) -> Item:
    return Lease(1, Piece(0, 0, 100), ()), Piece(0, number, number + 1)


def first(waiting: Sequence[Item]) -> int | None:
    return 0


def offer(pending: Pending, *numbers: int, most: int = 64) -> None:
    for number in numbers:
        pending.offer(item(number), most=lambda: most, gone=threading.Event())


def test_batches_come_in_order_and_those_to_be_read_again_before_all_others() -> None:
    pending = Pending()
    offer(pending, 1, 2, 3)
    pending.again([item(8), item(9)])
    assert len(pending) == 5
    assert [pending.take(first, timeout_s=0) for _ in range(5)] == [item(n) for n in (8, 9, 1, 2, 3)]
    assert pending.take(first, timeout_s=0) is None


def test_the_one_that_is_chosen_is_taken_and_the_others_stay_in_order() -> None:
    pending = Pending()
    offer(pending, 1, 2, 3)
    pending.again([item(9)])
    assert pending.take(lambda waiting: 2, timeout_s=0) == item(2)
    assert pending.take(lambda waiting: None, timeout_s=0) is None
    assert [pending.take(first, timeout_s=0) for _ in range(3)] == [item(n) for n in (9, 1, 3)]


def test_an_offer_waits_for_room_and_ends_when_nobody_wants_it_any_more() -> None:
    pending, gone = Pending(), threading.Event()
    offer(pending, 1)
    adding = threading.Thread(target=lambda: offer(pending, 2, most=1))
    adding.start()
    assert pending.take(first, timeout_s=10) == item(1)
    adding.join(timeout=10)
    assert pending.take(first, timeout_s=10) == item(2)
    offer(pending, 3)
    gone.set()
    with pytest.raises(NoLongerWanted):
        pending.offer(item(4), most=lambda: 1, gone=gone)


def test_what_could_not_be_chosen_is_looked_at_again() -> None:
    pending, ready, found = Pending(), threading.Event(), list[Item | None]()
    offer(pending, 1)
    taking = threading.Thread(
        target=lambda: found.append(pending.take(lambda _: 0 if ready.is_set() else None, timeout_s=10))
    )
    taking.start()
    ready.set()
    pending.look_again()
    taking.join(timeout=10)
    assert found == [item(1)]
