"""IntervalSet and Ledger against Python's set."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from recmesh.formats import IntervalSet, Ledger

_Pair = tuple[int, int]
_pair = st.tuples(st.integers(0, 40), st.integers(0, 12)).map(lambda p: (p[0], p[0] + p[1]))
_changes = st.lists(st.tuples(st.booleans(), _pair), max_size=25)


def _positions(pairs: list[_Pair]) -> set[int]:
    return {x for lo, hi in pairs for x in range(lo, hi)}


def _build(changes: list[tuple[bool, _Pair]]) -> tuple[IntervalSet, set[int]]:
    ours, truth = IntervalSet(), set[int]()
    for enter, (lo, hi) in changes:
        if enter:
            ours.add(lo, hi)
            truth |= set(range(lo, hi))
        else:
            ours.remove(lo, hi)
            truth -= set(range(lo, hi))
    return ours, truth


@given(_changes)
def test_an_interval_set_holds_what_a_set_holds(changes: list[tuple[bool, _Pair]]) -> None:
    ours, truth = _build(changes)
    assert _positions(ours.pairs()) == truth
    assert ours.size == len(truth)
    assert all((x in ours) == (x in truth) for x in range(60))


@given(_changes)
def test_intervals_are_ascending_disjoint_and_not_adjacent(changes: list[tuple[bool, _Pair]]) -> None:
    pairs = _build(changes)[0].pairs()
    assert all(lo < hi for lo, hi in pairs)
    assert all(a[1] < b[0] for a, b in pairwise(pairs))


@given(_changes, _pair)
def test_questions_about_a_range_are_answered_like_a_set(
    changes: list[tuple[bool, _Pair]], pair: _Pair
) -> None:
    ours, truth = _build(changes)
    asked = set(range(*pair))
    assert ours.covers(*pair) == (asked <= truth)
    assert ours.disjoint(*pair) == (not asked & truth)
    assert _positions(ours.within(*pair)) == asked & truth
    assert _positions(ours.missing_within(*pair)) == asked - truth


@given(_changes, _changes)
def test_algebra_is_that_of_sets(a: list[tuple[bool, _Pair]], b: list[tuple[bool, _Pair]]) -> None:
    (x, tx), (y, ty) = _build(a), _build(b)
    assert _positions(x.union(y).pairs()) == tx | ty
    assert _positions(x.intersect(y).pairs()) == tx & ty
    assert _positions(x.difference(y).pairs()) == tx - ty
    assert (x == y) == (tx == ty)


def test_a_line_filled_from_the_left_stays_one_interval() -> None:
    done = IntervalSet()
    for lo in range(0, 100_000, 64):
        done.add(lo, lo + 64)
    assert done.pairs() == [(0, 100_032)] and len(done) == 1


def test_a_copy_changes_on_its_own() -> None:
    ledger = Ledger([(0, 0, 5)])
    twin = ledger.copy()
    twin.add(0, 5, 9)
    twin.add(1, 0, 1)
    assert ledger.triples() == [(0, 0, 5)] and twin.triples() == [(0, 0, 9), (1, 0, 1)]


def test_a_ledger_keeps_lines_apart() -> None:
    ledger = Ledger([(2, 0, 10), (0, 5, 8)])
    assert ledger.triples() == [(0, 5, 8), (2, 0, 10)]
    assert ledger.covers(2, 3, 10) and not ledger.covers(0, 3, 8) and ledger.disjoint(1, 0, 99)
    assert ledger.missing_within(0, 0, 10) == [(0, 5), (8, 10)]
    assert ledger.size == 13
    ledger.remove(0, 0, 99)
    assert ledger == Ledger([(2, 0, 10)]) and list(ledger.lines()) == [2]
    ledger.remove(2, 0, 99)
    assert not ledger


_triples = st.lists(st.tuples(st.integers(0, 2), _pair).map(lambda t: (t[0], *t[1])), max_size=12)


@given(_triples, _triples)
def test_ledger_algebra_is_that_of_sets(a: list[tuple[int, int, int]], b: list[tuple[int, int, int]]) -> None:
    def truth(triples: list[tuple[int, int, int]]) -> set[tuple[int, int]]:
        return {(line, x) for line, lo, hi in triples for x in range(lo, hi)}

    x, y = Ledger(a), Ledger.from_triples(b)
    assert truth(x.union(y).triples()) == truth(a) | truth(b)
    assert truth(x.intersect(y).triples()) == truth(a) & truth(b)
    assert truth(x.difference(y).triples()) == truth(a) - truth(b)
    assert (x == y) == (truth(a) == truth(b))
