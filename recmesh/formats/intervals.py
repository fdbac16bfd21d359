"""Sets of sample positions: `IntervalSet` on one line, `Ledger` on all lines of a job."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from typing import Self

Pair = tuple[int, int]
"""[lo, hi)"""
Triple = tuple[int, int, int]
"""(line, lo, hi)"""


class IntervalSet:
    """A set of integers as disjoint, non-adjacent, ascending intervals [lo, hi).

    Training fills a line from the left, so the set has about as many intervals as there are live leases,
    however many positions it holds: every operation is a bisection plus what it changes.
    """

    __slots__ = ("_his", "_los")

    def __init__(self, pairs: Iterable[Pair] = ()) -> None:
        self._los: list[int] = []
        self._his: list[int] = []
        for lo, hi in pairs:
            self.add(lo, hi)

    def add(self, lo: int, hi: int) -> None:
        """Enter [lo, hi); positions that are in already stay in."""
        if lo >= hi:
            return
        first = bisect_left(self._his, lo)            # the first interval that touches [lo, hi) or lies right
        last = bisect_right(self._los, hi)            # one past the last interval that touches it
        if first < last:
            lo = min(lo, self._los[first])
            hi = max(hi, self._his[last - 1])
        self._los[first:last] = [lo]
        self._his[first:last] = [hi]

    def remove(self, lo: int, hi: int) -> None:
        """Take [lo, hi) out; positions that are not in are ignored."""
        if lo >= hi:
            return
        first, last = bisect_right(self._his, lo), bisect_left(self._los, hi)
        rest = [p for a, b in zip(self._los[first:last], self._his[first:last], strict=True)
                for p in ((a, lo), (hi, b)) if p[0] < p[1]]
        self._los[first:last] = [a for a, _ in rest]
        self._his[first:last] = [b for _, b in rest]

    def covers(self, lo: int, hi: int) -> bool:
        """Whether every position of [lo, hi) is in."""
        if lo >= hi:
            return True
        i = bisect_right(self._los, lo) - 1
        return i >= 0 and hi <= self._his[i]

    def disjoint(self, lo: int, hi: int) -> bool:
        """Whether no position of [lo, hi) is in."""
        if lo >= hi:
            return True
        i = bisect_right(self._his, lo)
        return i == len(self._los) or hi <= self._los[i]

    def within(self, lo: int, hi: int) -> list[Pair]:
        """The part of the set inside [lo, hi)."""
        if lo >= hi:
            return []
        first, last = bisect_right(self._his, lo), bisect_left(self._los, hi)
        return [(max(a, lo), min(b, hi))
                for a, b in zip(self._los[first:last], self._his[first:last], strict=True)]

    def missing_within(self, lo: int, hi: int) -> list[Pair]:
        """The part of [lo, hi) that is not in the set."""
        missing: list[Pair] = []
        for a, b in self.within(lo, hi):
            if lo < a:
                missing.append((lo, a))
            lo = b
        if lo < hi:
            missing.append((lo, hi))
        return missing

    def union(self, other: "IntervalSet") -> "IntervalSet":
        """What is in either."""
        joined = self.copy()
        for lo, hi in other:
            joined.add(lo, hi)
        return joined

    def intersect(self, other: "IntervalSet") -> "IntervalSet":
        """What is in both."""
        return IntervalSet(pair for lo, hi in self for pair in other.within(lo, hi))

    def difference(self, other: "IntervalSet") -> "IntervalSet":
        """What is in this set and not in the other."""
        return IntervalSet(pair for lo, hi in self for pair in other.missing_within(lo, hi))

    def copy(self) -> "IntervalSet":
        """An equal set that changes on its own."""
        twin = IntervalSet()
        twin._los, twin._his = self._los.copy(), self._his.copy()
        return twin

    def pairs(self) -> list[Pair]:
        """The intervals in ascending order."""
        return list(zip(self._los, self._his, strict=True))

    @property
    def size(self) -> int:
        """How many positions are in."""
        return sum(self._his) - sum(self._los)

    def __iter__(self) -> Iterator[Pair]:
        return zip(self._los, self._his, strict=True)

    def __len__(self) -> int:
        """How many intervals there are (`size` counts positions)."""
        return len(self._los)

    def __contains__(self, position: int) -> bool:
        return self.covers(position, position + 1)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IntervalSet) and self._los == other._los and self._his == other._his

    __hash__ = None  # type: ignore[assignment]  # mutable, so never a key

    def __repr__(self) -> str:
        return f"IntervalSet({self.pairs()})"


class Ledger:
    """Positions applied, on every line: state = the sum of one part of every batch in the ledger."""

    __slots__ = ("_lines",)

    def __init__(self, triples: Iterable[Triple] = ()) -> None:
        self._lines: dict[int, IntervalSet] = {}
        for line, lo, hi in triples:
            self.add(line, lo, hi)

    @classmethod
    def from_triples(cls, triples: Iterable[Iterable[int]]) -> Self:
        """The ledger of (line, lo, hi), in any order; they may touch or overlap."""
        return cls((line, lo, hi) for line, lo, hi in triples)

    def triples(self) -> list[Triple]:
        """(line, lo, hi), ascending: equal ledgers give equal lists."""
        return [(line, lo, hi) for line in sorted(self._lines) for lo, hi in self._lines[line]]

    def line(self, line: int) -> IntervalSet:
        """The positions on one line; the caller does not change the set."""
        return self._lines.get(line, _EMPTY)

    def lines(self) -> Mapping[int, IntervalSet]:
        """Every line that has a position; the caller does not change the sets."""
        return self._lines

    def add(self, line: int, lo: int, hi: int) -> None:
        """Enter [lo, hi) of the line."""
        if lo < hi:
            self._lines.setdefault(line, IntervalSet()).add(lo, hi)

    def remove(self, line: int, lo: int, hi: int) -> None:
        """Take [lo, hi) of the line out."""
        if line in self._lines:
            self._lines[line].remove(lo, hi)
            if not self._lines[line]:
                del self._lines[line]

    def covers(self, line: int, lo: int, hi: int) -> bool:
        """Whether every position of the piece is in."""
        return self.line(line).covers(lo, hi)

    def disjoint(self, line: int, lo: int, hi: int) -> bool:
        """Whether no position of the piece is in."""
        return self.line(line).disjoint(lo, hi)

    def within(self, line: int, lo: int, hi: int) -> list[Pair]:
        """The part of the ledger inside the piece."""
        return self.line(line).within(lo, hi)

    def missing_within(self, line: int, lo: int, hi: int) -> list[Pair]:
        """The part of the piece that is not in the ledger."""
        return self.line(line).missing_within(lo, hi)

    def union(self, other: "Ledger") -> "Ledger":
        """What is in either."""
        return Ledger([*self.triples(), *other.triples()])

    def intersect(self, other: "Ledger") -> "Ledger":
        """What is in both."""
        return Ledger((line, lo, hi) for line, ours in self._lines.items()
                      for lo, hi in ours.intersect(other.line(line)))

    def difference(self, other: "Ledger") -> "Ledger":
        """What is in this ledger and not in the other."""
        return Ledger((line, lo, hi) for line, ours in self._lines.items()
                      for lo, hi in ours.difference(other.line(line)))

    def copy(self) -> "Ledger":
        """An equal ledger that changes on its own."""
        twin = Ledger()
        twin._lines = {line: positions.copy() for line, positions in self._lines.items()}
        return twin

    @property
    def size(self) -> int:
        """How many positions are in."""
        return sum(positions.size for positions in self._lines.values())

    def __bool__(self) -> bool:
        return bool(self._lines)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ledger) and self._lines == other._lines

    __hash__ = None  # type: ignore[assignment]  # mutable, so never a key

    def __repr__(self) -> str:
        return f"Ledger({self.triples()})"


_EMPTY = IntervalSet()
