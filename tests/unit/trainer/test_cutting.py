"""What of a lease is still to be trained, and how far leases are."""

from hypothesis import given
from hypothesis import strategies as st

from recmesh.trainer.ports import AppliedSets, Lease, LeaseProgress, Piece
from recmesh.trainer.worker.cutting import cut_at, missing_batches
from recmesh.trainer.worker.leases import LeaseBook


def applied(*pairs: tuple[int, int]) -> AppliedSets:
    pieces = tuple(Piece(0, lo, hi) for lo, hi in pairs)
    return AppliedSets(pieces, pieces)


def test_a_fresh_lease_is_cut_on_its_own_grid() -> None:
    assert missing_batches(Piece(0, 8, 18), [applied()], 4) == [Piece(0, 8, 12), Piece(0, 12, 16), Piece(0, 16, 18)]


def test_what_every_server_has_is_left_out() -> None:
    assert missing_batches(Piece(0, 0, 8), [applied((0, 4)), applied((0, 6))], 4) == [
        Piece(0, 4, 6), Piece(0, 6, 8)
    ]


def test_another_lines_positions_do_not_count() -> None:
    other = AppliedSets((Piece(1, 0, 8),), (Piece(1, 0, 8),))
    assert missing_batches(Piece(0, 0, 8), [other], 8) == [Piece(0, 0, 8)]


intervals = st.lists(st.integers(0, 30), max_size=6, unique=True).map(
    lambda edges: [(a, b) for a, b in zip(sorted(edges)[::2], sorted(edges)[1::2], strict=False)]
)


@given(st.lists(intervals, min_size=1, max_size=3), st.integers(1, 7))
def test_batches_are_inside_or_outside_each_ledger_and_cover_what_some_server_lacks(
    ledgers: list[list[tuple[int, int]]], size: int
) -> None:
    batches = missing_batches(Piece(0, 0, 30), [applied(*pairs) for pairs in ledgers], size)
    held: list[set[int]] = [{p for lo, hi in pairs for p in range(lo, hi)} for pairs in ledgers]
    trained = [set(range(batch.lo, batch.hi)) for batch in batches]
    for batch in trained:
        assert len(batch) <= size
        assert all(batch <= ledger or not batch & ledger for ledger in held)
    together: set[int] = set().union(*trained)
    assert sum(map(len, trained)) == len(together)
    assert together == {p for p in range(30) if not all(p in ledger for ledger in held)}


def test_cuts_split_a_batch_at_each_of_their_borders_inside_it() -> None:
    assert cut_at(Piece(0, 0, 10), [Piece(0, 0, 3), Piece(0, 7, 12)]) == [
        Piece(0, 0, 3), Piece(0, 3, 7), Piece(0, 7, 10)
    ]


def lease(lo: int, hi: int, epoch: int = 1) -> Lease:
    return Lease(epoch, Piece(0, lo, hi), ())


def test_progress_stops_at_the_first_batch_that_is_not_everywhere() -> None:
    book = LeaseBook()
    book.take(lease(0, 12), [Piece(0, 0, 4), Piece(0, 4, 8), Piece(0, 8, 12)])
    book.applied(1, Piece(0, 4, 8))
    assert book.progress() == [LeaseProgress(1, 0, False, 12)]
    book.applied(1, Piece(0, 0, 4))
    assert book.progress() == [LeaseProgress(1, 8, False, 12)]
    assert book.applied(1, Piece(0, 8, 12))
    assert book.progress() == [LeaseProgress(1, 12, True, 12)]


def test_a_recut_batch_holds_the_lease_open_until_all_its_parts_are_applied() -> None:
    book = LeaseBook()
    book.take(lease(0, 4), [Piece(0, 0, 4)])
    book.recut(1, Piece(0, 0, 4), [Piece(0, 0, 1), Piece(0, 1, 4)])
    assert not book.applied(1, Piece(0, 1, 4))
    assert book.progress() == [LeaseProgress(1, 0, False, 4)]
    assert book.applied(1, Piece(0, 0, 1))


def test_a_lost_lease_takes_no_more_progress() -> None:
    book = LeaseBook()
    book.take(lease(0, 4), [Piece(0, 0, 4)])
    book.forget([1])
    assert not book.applied(1, Piece(0, 0, 4))
    assert not book.recut(1, Piece(0, 0, 4), [])
    assert book.empty


def test_what_is_cut_from_a_lease_is_no_longer_wanted_and_a_cut_to_what_is_done_completes_it() -> None:
    book = LeaseBook()
    batches = [Piece(0, lo, lo + 10) for lo in range(0, 40, 10)]
    book.take(Lease(7, Piece(0, 0, 40), ()), batches)
    assert not book.cut(7, 20)
    assert [book.wants(7, piece) for piece in batches] == [True, True, False, False]
    assert not book.applied(7, batches[0])
    [progress] = book.progress()
    assert (progress.done_to, progress.hi, progress.complete) == (10, 20, False)
    assert not book.cut(7, 40), "a lease never grows again"
    assert book.cut(7, 10), "nothing is left of it"
    [progress] = book.progress()
    assert (progress.done_to, progress.hi, progress.complete) == (10, 10, True)
    assert not book.cut(8, 10) and not book.wants(8, batches[0])


@given(intervals, st.lists(st.integers(0, 30), max_size=4), st.integers(1, 7))
def test_no_batch_goes_on_over_a_border_of_kinds(
    ledger: list[tuple[int, int]], borders: list[int], size: int
) -> None:
    def cut(lo: int) -> list[Piece]:
        return missing_batches(Piece(0, lo, 30), [applied(*ledger)], size, between=borders)

    held = {p for lo, hi in ledger for p in range(lo, hi)}
    batches = cut(0)
    assert sorted(p for batch in batches for p in range(batch.lo, batch.hi)) == sorted(set(range(30)) - held)
    for batch in batches:
        assert batch.hi - batch.lo <= size and not any(batch.lo < border < batch.hi for border in borders)
    for border in borders:      # what is leased again from a border on is cut as before
        assert cut(border) == [batch for batch in batches if batch.lo >= border] or border == 30
