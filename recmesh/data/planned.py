"""The tasks of a plan, each found by its number or position, without making those before it.

Their order is the one of `order.generate`. What is held is pages: consecutive tasks of an epoch, some tens of thousands
at most. A shuffled epoch is the order of its slices' words (`formats.permutation`), so a page is the slices whose words
begin with the same bits, found by one look through all, and sorted. Words are spread evenly, so pages are much alike.
"""

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from recmesh.data.order import LINE, order_seed, row_seeds
from recmesh.data.records import TaskRecord
from recmesh.data.slices import Slices, Table
from recmesh.formats.permutation import stream

PAGE = 32_768
"""Tasks of a page, or less; some 60 bytes each."""
KEPT = 2 * PAGE
"""Tasks of pages that are kept, of a plan."""
_PAGE_COSTS = 64
"""Of an empty page, in tasks."""
_KEPT_EPOCHS = 8
Int64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Shape:
    """What, beside the slices, decides a plan's tasks."""

    epochs: int
    seed: int
    shuffle: bool


class _Borders(NamedTuple):
    """Where the pages of an epoch begin, and where the last one ends."""

    ranks: list[int]
    """Counted in tasks, from the epoch's first."""
    bases: list[int]
    """Counted in positions."""


@dataclass(frozen=True, slots=True)
class _Page:
    bases: Int64
    """[n + 1], on the line."""
    seeds: NDArray[np.uint64]
    table: Table

    def __len__(self) -> int:
        return len(self.table)


class PlannedTasks(Sequence[TaskRecord]):
    """All tasks of a plan over slices that do not change, without the one that closes the line. Safe to share between
    threads; whoever needs a page that is not at hand makes it."""

    def __init__(self, slices: Slices, shape: Shape, *, sequence: int = 0) -> None:
        """`sequence`: of the log, for all records."""
        self._slices, self._shape, self._sequence = slices, shape, sequence
        pages = max(1, -(-len(slices) // PAGE))
        if shape.shuffle and pages > 1:         # so that hardly any page is longer: they vary by their root
            pages = 1 << (len(slices) * 5 // (PAGE * 4)).bit_length()
        self._pages = pages
        self._shift = np.uint64(64 - (pages.bit_length() - 1))
        self._kept: OrderedDict[tuple[int, int], _Page] = OrderedDict()
        self._borders: OrderedDict[int, _Borders] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def slices(self) -> Slices:
        """Of an epoch."""
        return self._slices

    @property
    def epochs(self) -> int:
        """All of them."""
        return self._shape.epochs

    @property
    def end(self) -> int:
        """Positions on the line."""
        return self._slices.rows * self._shape.epochs

    def place(self, position: int) -> int:
        """How many tasks begin at the position or before it."""
        if position < 0:
            return 0
        if position >= self.end:
            return len(self)
        epoch, number = self._page_at(position)
        before = epoch * len(self._slices) + self._borders_of(epoch).ranks[number]
        return before + int(np.searchsorted(self._page(epoch, number).bases[:-1], position, "right"))

    def is_at_hand(self, pieces: Iterable[tuple[int, int]]) -> bool:
        """Whether the tasks that pieces [lo, hi) touch are made quickly: their pages are there."""
        for lo, hi in pieces:
            if any(self._known_borders(self._place_of(at)[0]) is None for at in (lo, hi - 1)):
                return False            # to count them is a look through all slices
            (epoch, number), last = self._page_at(lo), self._page_at(hi - 1)
            while (epoch, number) <= last:
                if (epoch, number) not in self._kept:
                    return False
                epoch, number = (epoch, number + 1) if number + 1 < self._pages else (epoch + 1, 0)
        return True

    def __len__(self) -> int:
        return len(self._slices) * self._shape.epochs

    @overload
    def __getitem__(self, at: int) -> TaskRecord: ...

    @overload
    def __getitem__(self, at: slice) -> list[TaskRecord]: ...

    def __getitem__(self, at: int | slice) -> TaskRecord | list[TaskRecord]:
        if isinstance(at, slice):
            lo, hi, step = at.indices(len(self))
            return [*self._between(lo, hi)] if step == 1 else [self[index] for index in range(lo, hi, step)]
        at = range(len(self))[at]
        return next(self._between(at, at + 1))

    # ---- inside

    def _between(self, lo: int, hi: int) -> Iterator[TaskRecord]:
        while lo < hi:
            epoch, rank = divmod(lo, len(self._slices))
            ranks = self._borders_of(epoch).ranks
            number = bisect_right(ranks, rank) - 1
            first, last = rank - ranks[number], min(ranks[number + 1], rank + hi - lo) - ranks[number]
            page = self._page(epoch, number)
            bases, seeds = page.bases[first:last].tolist(), page.seeds[first:last].tolist()
            for base, seed, piece in zip(bases, seeds, self._slices.made(page.table[first:last]), strict=True):
                yield TaskRecord(self._sequence, LINE, base, piece.rows, epoch, seed, piece)
            lo += last - first

    def _page_at(self, position: int) -> tuple[int, int]:
        epoch, inside = self._place_of(position)
        return epoch, bisect_right(self._borders_of(epoch).bases, inside) - 1

    def _place_of(self, position: int) -> tuple[int, int]:
        """Epoch, and position within it."""
        return divmod(min(max(position, 0), self.end - 1), self._slices.rows)

    def _borders_of(self, epoch: int) -> _Borders:
        known = self._known_borders(epoch)
        if known is None:
            known = self._made_borders(epoch)
            with self._lock:
                self._borders[self._borders_key(epoch)] = known
                while len(self._borders) > _KEPT_EPOCHS:
                    self._borders.popitem(last=False)
        return known

    def _known_borders(self, epoch: int) -> _Borders | None:
        with self._lock:
            return self._borders.get(self._borders_key(epoch))

    def _borders_key(self, epoch: int) -> int:
        return epoch if self._shape.shuffle and self._pages > 1 else 0

    def _made_borders(self, epoch: int) -> _Borders:
        counts, rows = np.zeros(self._pages, np.int64), np.zeros(self._pages, np.int64)
        if self._pages == 1:
            counts[0], rows[0] = len(self._slices), self._slices.rows
        else:
            for first, table in self._slices.blocks():
                numbers = self._numbers(epoch, first, len(table))
                counts += np.bincount(numbers, minlength=self._pages)
                np.add.at(rows, numbers, table["rows"])
        return _Borders(*([0, *np.cumsum(each).tolist()] for each in (counts, rows)))

    def _numbers(self, epoch: int, first: int, count: int) -> Int64:
        """In which page of the epoch each of the slices is."""
        if not self._shape.shuffle:
            return np.arange(first, first + count) // PAGE
        return (self._words(epoch, first, count) >> self._shift).astype(np.int64)

    def _words(self, epoch: int, first: int, count: int) -> NDArray[np.uint64]:
        return stream(order_seed(self._shape.seed, epoch), count, start=first)

    def _page(self, epoch: int, number: int) -> _Page:
        with self._lock:
            known = self._kept.get((epoch, number))
            if known is not None:
                self._kept.move_to_end((epoch, number))
                return known
        made = self._made_page(epoch, number)
        with self._lock:
            self._kept[epoch, number] = made
            held = sum(len(page) + _PAGE_COSTS for page in self._kept.values())
            while held > KEPT and len(self._kept) > 1:
                held -= len(self._kept.popitem(last=False)[1]) + _PAGE_COSTS
        return made

    def _made_page(self, epoch: int, number: int) -> _Page:
        if self._shape.shuffle:
            indices, table = self._shuffled(epoch, number)
            seeds = row_seeds(self._shape.seed, epoch, indices)
        else:
            table = self._slices.table(number * PAGE, min((number + 1) * PAGE, len(self._slices)))
            seeds = np.zeros(len(table), np.uint64)
        bases = np.empty(len(table) + 1, np.int64)
        bases[0] = epoch * self._slices.rows + self._borders_of(epoch).bases[number]
        np.cumsum(table["rows"], out=bases[1:])
        bases[1:] += bases[0]
        return _Page(bases, seeds, table)

    def _shuffled(self, epoch: int, number: int) -> tuple[Int64, Table]:
        """The slices of a page in their order, and their numbers."""
        found: list[tuple[NDArray[np.uint64], Int64, Table]] = []
        for first, table in self._slices.blocks():
            words = self._words(epoch, first, len(table))
            mine = np.arange(len(table))
            if self._pages > 1:
                mine = np.flatnonzero((words >> self._shift).astype(np.int64) == number)
            found.append((words[mine], first + mine, table[mine]))
        words, indices, tables = (np.concatenate(parts) for parts in zip(*found, strict=True))
        order = np.argsort(words, kind="stable")
        return indices[order], tables[order]
