"""Ledgers as the jobmaster sees them: intersections over groups, and whether a line is full."""

from collections.abc import Iterable, Sequence

Interval = tuple[int, int, int]
"""(line, lo, hi): positions [lo, hi) of a line."""
Ledger = tuple[Interval, ...]
"""Disjoint, non-adjacent, ascending."""


def normal(intervals: Iterable[Interval]) -> Ledger:
    """The same positions as disjoint, non-adjacent intervals in ascending order."""
    result: list[Interval] = []
    for line, lo, hi in sorted(i for i in intervals if i[1] < i[2]):
        if result and result[-1][0] == line and lo <= result[-1][2]:
            result[-1] = (line, result[-1][1], max(hi, result[-1][2]))
        else:
            result.append((line, lo, hi))
    return tuple(result)


def intersect(a: Ledger, b: Ledger) -> Ledger:
    """Positions in both."""
    result: list[Interval] = []
    i = j = 0
    while i < len(a) and j < len(b):
        (line_a, lo_a, hi_a), (line_b, lo_b, hi_b) = a[i], b[j]
        if line_a == line_b and max(lo_a, lo_b) < min(hi_a, hi_b):
            result.append((line_a, max(lo_a, lo_b), min(hi_a, hi_b)))
        if (line_a, hi_a) < (line_b, hi_b):
            i += 1
        else:
            j += 1
    return tuple(result)


def intersection(ledgers: Sequence[Ledger]) -> Ledger:
    """Positions in every one; empty when there are none."""
    if not ledgers:
        return ()
    result = ledgers[0]
    for ledger in ledgers[1:]:
        result = intersect(result, ledger)
    return result


def size(ledger: Ledger) -> int:
    """How many positions."""
    return sum(hi - lo for _, lo, hi in ledger)


def trained(done: Ledger, *, voids: Iterable[Interval]) -> int:
    """How many positions were trained: those set aside are in every ledger, and were not."""
    return size(done) - size(intersect(done, normal(voids)))


def is_full(ledger: Ledger, *, total: int) -> bool:
    """Line 0 is [0, total), exactly, and nothing else is there."""
    return ledger == (((0, 0, total),) if total else ())
