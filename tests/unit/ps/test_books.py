"""The rules alone, with neither threads nor rows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recmesh.formats import SLOTS, Ledger
from recmesh.formats.slotmap import from_runs
from recmesh.trainer.ps.epochs import NewestEpochs
from recmesh.trainer.ps.ledger import Books, Cut
from recmesh.trainer.ps.refusals import (
    NoGeneration,
    OldLease,
    Overlap,
    StaleGeneration,
    StaleTerm,
    WrongIncarnation,
    WrongMap,
)

ALL = np.ones(SLOTS, np.bool_)
LOW, HIGH = from_runs([(0, 100)]), from_runs([(100, SLOTS)])


def _books(*cuts: Cut, voids: tuple[tuple[int, int, int], ...] = ()) -> Books:
    books = Books("me")
    books.begin(gen=3, since=7, owned=ALL, cuts=cuts or (Cut(ALL, Ledger(), 0),), voids=voids)
    return books


def _apply(books: Books, *batch: tuple[int, int, int]) -> int:
    claim = books.claim(batch, epoch=0)
    books.commit(claim)
    return len(claim.groups)


def test_without_a_generation_everything_is_refused() -> None:
    books = Books("me")
    for gen in (0, 1):
        with pytest.raises(NoGeneration):
            books.check_generation(gen)


def test_only_messages_of_the_own_generation_act() -> None:
    books = _books()
    books.check_generation(3)
    for gen in (2, 4):
        with pytest.raises(StaleGeneration) as refusal:
            books.check_generation(gen)
        assert refusal.value.gen == 3 and refusal.value.reason == "STALE_GEN"


def test_a_split_by_a_map_older_than_the_slot_set_is_refused() -> None:
    books = _books()
    books.check_map(7)
    books.check_map(9)
    with pytest.raises(WrongMap) as refusal:
        books.check_map(6)
    assert refusal.value.since == 7


def test_a_restore_counts_only_for_this_incarnation_and_a_newer_generation() -> None:
    books = _books()
    books.check_restore(4, incarnation="me")
    with pytest.raises(WrongIncarnation):
        books.check_restore(4, incarnation="somebody else")
    for gen in (3, 2):
        with pytest.raises(StaleGeneration):
            books.check_restore(gen, incarnation="me")


def test_a_failed_restore_may_be_repeated_but_an_older_one_may_not_follow() -> None:
    books = _books()
    books.end(ordered=5)
    books.check_restore(5, incarnation="me")
    with pytest.raises(StaleGeneration):
        books.check_restore(4, incarnation="me")


def test_a_lower_term_is_refused_once_a_higher_one_spoke() -> None:
    books = _books()
    books.accept_term(2)
    books.accept_term(2)
    with pytest.raises(StaleTerm):
        books.accept_term(1)


def test_a_batch_is_claimed_once() -> None:
    books = _books()
    assert _apply(books, (0, 0, 10)) == 1
    assert _apply(books, (0, 0, 10)) == 0
    assert _apply(books, (0, 2, 5)) == 0                       # inside
    assert books.groups[0].step == 1


def test_what_is_being_applied_counts_as_taken_but_not_as_applied() -> None:
    books = _books()
    claim = books.claim(((0, 0, 10),), epoch=0)
    again = books.claim(((0, 0, 10),), epoch=0)
    assert claim.groups and not again.groups
    assert not books.applied(((0, 0, 10),))
    books.commit(claim)
    assert books.applied(((0, 0, 10),))


def test_a_partly_applied_batch_is_refused_whole_with_its_cuts() -> None:
    books = _books()
    _apply(books, (0, 5, 10))
    before = books.cut()
    with pytest.raises(Overlap) as refusal:
        books.claim(((1, 0, 4), (0, 0, 20)), epoch=0)
    assert refusal.value.cuts == ((0, 5, 10),)
    assert books.cut()[0].ledger == before[0].ledger and books.applied(((0, 5, 10),))
    assert _apply(books, (1, 0, 4), (0, 0, 5)) == 1            # nothing of the refused claim stayed


def test_a_batch_with_one_piece_taken_and_one_not_is_an_overlap() -> None:
    books = _books()
    _apply(books, (0, 0, 4))
    with pytest.raises(Overlap) as refusal:
        books.claim(((0, 0, 4), (1, 0, 4)), epoch=0)
    assert refusal.value.cuts == ((0, 0, 4),)


def test_each_group_takes_only_what_it_lacks_and_equal_groups_merge() -> None:
    books = _books(Cut(LOW, Ledger([(0, 0, 10)]), 1), Cut(HIGH, Ledger(), 0))
    claim = books.claim(((0, 0, 10),), epoch=0)
    assert [group.slots is HIGH for group in claim.groups] == [True] and not claim.whole
    books.commit(claim)
    assert len(books.groups) == 1 and books.groups[0].slots.all() and books.groups[0].step == 1


def test_cuts_name_the_ends_of_every_group() -> None:
    books = _books(Cut(LOW, Ledger([(0, 2, 6)]), 1), Cut(HIGH, Ledger([(0, 4, 8)]), 1))
    with pytest.raises(Overlap) as refusal:
        books.claim(((0, 0, 10),), epoch=0)
    assert refusal.value.cuts == ((0, 2, 6), (0, 4, 8))


def test_groups_do_not_merge_while_something_is_under_way() -> None:
    books = _books(Cut(LOW, Ledger(), 0), Cut(HIGH, Ledger([(0, 50, 60)]), 1))
    under_way = books.claim(((0, 0, 10),), epoch=0)
    _apply(books, (0, 50, 60))
    assert len(books.groups) == 2
    books.commit(under_way)
    assert len(books.groups) == 1 and books.groups[0].step == 2


def test_a_void_batch_is_in_every_ledger_and_its_applied_part_is_told_once() -> None:
    books = _books(Cut(LOW, Ledger([(0, 0, 5)]), 1), Cut(HIGH, Ledger(), 0))
    assert books.void([(0, 0, 10)]) == [(0, 0, 5)]
    assert books.void([(0, 0, 10)]) == []
    assert _apply(books, (0, 0, 10)) == 0
    assert books.ledgers(())[0].triples() == [(0, 0, 10)]


def test_voids_are_entered_again_when_a_generation_begins() -> None:
    books = _books(voids=((0, 20, 30),))
    assert _apply(books, (0, 20, 30)) == 0 and _apply(books, (0, 0, 20)) == 1


def test_ledgers_answer_for_all_groups_and_for_any() -> None:
    books = _books(Cut(LOW, Ledger([(0, 0, 10)]), 1), Cut(HIGH, Ledger([(0, 5, 20)]), 1))
    by_all, by_any = books.ledgers(())
    assert by_all.triples() == [(0, 5, 10)] and by_any.triples() == [(0, 0, 20)]
    by_all, by_any = books.ledgers([(0, 8, 12)])
    assert by_all.triples() == [(0, 8, 10)] and by_any.triples() == [(0, 8, 12)]


def test_the_holder_of_an_old_lease_is_stopped_where_a_newer_one_was_seen() -> None:
    books = _books()
    books.claim(((0, 0, 10),), epoch=5)
    with pytest.raises(OldLease):
        books.check_epoch(((0, 9, 12),), 4)
    books.check_epoch(((0, 10, 12),), 4)
    books.check_epoch(((0, 0, 10),), 5)
    assert books.epochs.largest == 5


_steps = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 8), st.integers(1, 4)), max_size=25)


@given(_steps, st.integers(0, 30), st.integers(1, 8))
def test_newest_epochs_remember_the_last_entry_of_each_position(
    steps: list[tuple[int, int, int]], lo: int, size: int
) -> None:
    ours, truth = NewestEpochs(), dict[int, int]()
    for start, length, epoch in steps:
        ours.enter([(0, start, start + length)], epoch)
        truth.update({p: epoch for p in range(start, start + length)})
    assert ours.newest([(0, lo, lo + size)]) == max(truth.get(p, 0) for p in range(lo, lo + size))
    los, his, epochs = ours._lines.get(0, ([], [], []))
    assert all(a < b for a, b in zip(los, his, strict=True))
    assert all(b <= c for b, c in zip(his, los[1:], strict=False))
    assert len(epochs) == len(los)
