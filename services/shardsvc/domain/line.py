"""A job's line as its task log tells it."""

from bisect import bisect_right
from collections.abc import Sequence

from recmesh.data.records import TaskRecord
from recmesh.formats import IntervalSet


class Line:
    """The records of a complete log, found by position."""

    def __init__(self, records: Sequence[TaskRecord]) -> None:
        self._tasks = [record for record in records if not record.close]
        self._bases = [record.base for record in self._tasks]
        self.closed = bool(records) and records[-1].close
        self.end = records[-1].base + records[-1].rows if records else 0
        self.last_sequence = records[-1].sequence if records else 0
        self.tasks = len(self._tasks)
        self.epochs = self._tasks[-1].epoch + 1 if self._tasks else 0

    def tasks_of(self, lo: int, hi: int) -> list[TaskRecord]:
        """The tasks that positions [lo, hi) touch."""
        return self._tasks[max(0, bisect_right(self._bases, lo) - 1) : bisect_right(self._bases, hi - 1)]

    def to_do(self, done: IntervalSet) -> list[tuple[int, int]]:
        """[0, end) without what is done."""
        return done.missing_within(0, self.end)

    def beyond(self, done: IntervalSet) -> bool:
        """Whether a ledger knows positions that this log does not: the log lost its tail."""
        pairs = done.pairs()
        return bool(pairs) and pairs[-1][1] > self.end
