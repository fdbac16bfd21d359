"""A job's line as its task log tells it."""

from collections.abc import Iterable, Iterator, Sequence

from recmesh.data.planned import PlannedTasks
from recmesh.data.records import TaskRecord
from recmesh.formats import IntervalSet
from services.shardsvc.domain.tasks import Tasks


class Line:
    """The records of a log, found by position. It grows as its log does, and never changes otherwise.

    Of a dataset of files it is planned: closed from its beginning on, and its records are made when they are asked for.
    """

    def __init__(self, records: Iterable[TaskRecord] = ()) -> None:
        self._tasks: Tasks | PlannedTasks = Tasks()
        self.closed = False
        self.base = 0
        """Tasks that end before it are gone for ever."""
        self.end = 0
        self.last_sequence = 0
        self.extend(records)

    @classmethod
    def of(cls, planned: PlannedTasks, *, sequence: int) -> "Line":
        """All of these, from the message of the log that has their plan."""
        line = cls()
        line._tasks, line.closed, line.end, line.last_sequence = planned, True, planned.end, sequence
        return line

    def extend(self, records: Iterable[TaskRecord]) -> None:
        """What follows on the log."""
        for record in records:
            assert isinstance(self._tasks, Tasks), "nothing follows a plan"
            self.closed, self.end, self.last_sequence = record.close, record.base + record.rows, record.sequence
            if not record.close:
                self._tasks.append(record)

    def forget(self, base: int, *, end: int = 0) -> None:
        """Tasks that end at this position or before it are not asked for any more. `end`: where the line ends, in case
        all that it had is gone."""
        assert isinstance(self._tasks, Tasks), "of a plan nothing is held"
        count = self._tasks.place(base)
        if count and self._tasks[count - 1].base + self._tasks[count - 1].rows > base:
            count -= 1
        self._tasks.forget(count)
        self.base, self.end = max(self.base, base), max(self.end, end)

    @property
    def records(self) -> Sequence[TaskRecord]:
        """All but the one that closes it."""
        return self._tasks

    @property
    def tasks(self) -> int:
        """How many tasks there are so far."""
        return len(self._tasks)

    @property
    def epochs(self) -> int:
        """That have begun."""
        return self._tasks.epochs

    def is_at_hand(self, pieces: Iterable[tuple[int, int]]) -> bool:
        """Whether `tasks_of_all` answers at once; else it reads and sorts, for some milliseconds or more."""
        return self._tasks.is_at_hand(pieces)

    def tasks_of(self, lo: int, hi: int) -> list[TaskRecord]:
        """The tasks that positions [lo, hi) touch."""
        return self.tasks_of_all([(lo, hi)])

    def tasks_of_all(self, pieces: Iterable[tuple[int, int]]) -> list[TaskRecord]:
        """The tasks that any of the pieces touches, each once, by their bases."""
        found: list[TaskRecord] = []
        past = 0
        for lo, hi in IntervalSet(pieces):
            first = max(past, self._tasks.place(lo) - 1)
            past = self._tasks.place(hi - 1)
            found += self._tasks[first:past]
        return found

    def from_position(self, position: int) -> Iterator[TaskRecord]:
        """The task at the position, and those that follow."""
        first = max(0, self._tasks.place(position) - 1)
        return (self._tasks[at] for at in range(first, len(self._tasks)))

    def tasks_behind(self, position: int) -> int:
        """How many tasks have positions from this one on."""
        return len(self._tasks) - max(0, self._tasks.place(position) - 1) if position < self.end else 0

    def to_do(self, done: IntervalSet) -> list[tuple[int, int]]:
        """[0, end) without what is done."""
        return done.missing_within(0, self.end)

    def beyond(self, done: IntervalSet) -> bool:
        """Whether a ledger knows positions that this log does not: the log lost its tail."""
        pairs = done.pairs()
        return bool(pairs) and pairs[-1][1] > self.end
