"""Rows for a worker's batches: from files, read in-process, or from data executors; the same by either way.

A batch is a function of task records and positions, so it does not matter who reads it, nor how often: leases and
ledgers say what is trained. Executors are asked with deadlines, and where none answers in time the worker reads itself.
"""

import logging
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Protocol

from recmesh.data.records import concat
from recmesh.runtime.errors import DataLoss, FailedPrecondition, InvalidArgument, MeshError
from recmesh.trainer.ports import DataExecutor, ExecutorAddress
from recmesh.trainer.worker.pending import Item

if TYPE_CHECKING:
    from recmesh.data import Batch, TaskRecord

_log = logging.getLogger(__name__)
Key = tuple[int, int]
"""A task's line and base."""

IN_PROCESS_AHEAD = 64
"""Batches that wait to be read: those of one lease of the default size."""
TASKS_AHEAD = 3
"""Per executor: one is decoded, one is next, one is on its way while the first is handed out."""
MOST_AHEAD = 4096
THREADS = 8
"""That ask executors: each waits for another task, so one slow executor does not hold the others' rows up."""
ASK_S = 2.0
"""A call waits for rows at most so long, and is then repeated."""
PATIENCE_S = 20.0
"""One executor is waited for so long in all, then another one is asked."""
MOST_ASKED = 3
"""Executors that are asked for a task before the worker reads it itself."""
AWAY_S = 2.0
"""An executor that could not be asked is passed over so long."""
MOST_KNOWN = 1024
"""Tasks of which it is remembered that, and where, they are ready."""


class Reader(Protocol):
    """Where a worker's rows come from. Thread-safe."""

    @property
    def threads(self) -> int:
        """That may read at once."""

    @property
    def bad_records(self) -> int:
        """Positions of batches that were asked for whose records could not be read."""

    def announce(self, tasks: "Sequence[TaskRecord]") -> None:
        """These will be asked for soon."""

    def ahead(self) -> int:
        """How many batches may wait to be read, about."""

    def choose(self, waiting: Sequence[Item], *, thread: int) -> int | None:
        """Which of these the thread, one of `threads`, will call `batch` or `pass_over` for next; None: none now."""

    def pass_over(self, tasks: "Sequence[TaskRecord]", lo: int, hi: int) -> None:
        """Instead of `batch`: what was chosen is not wanted any more."""

    def batch(self, tasks: "Sequence[TaskRecord]", lo: int, hi: int) -> "Batch":
        """The rows at positions [lo, hi), in order; the tasks must cover them. Errors as of TaskReader.batch."""

    def use(self, executors: Sequence[ExecutorAddress]) -> None:
        """Those that may be asked from now on."""

    def close(self) -> None:
        """Ends connections."""


class ByPosition(Protocol):
    """`recmesh.data.TaskReader`, or what stands for it."""

    bad_records: int
    """See Reader."""

    def batch(self, tasks: "Sequence[TaskRecord]", lo: int, hi: int) -> "Batch":
        """See Reader."""


class InProcess:
    """Reads files itself. See Reader."""

    threads = 1

    def __init__(self, reader: ByPosition) -> None:
        self._reader = reader

    @property
    def bad_records(self) -> int:
        """See Reader."""
        return self._reader.bad_records

    def announce(self, tasks: "Sequence[TaskRecord]") -> None:
        """Files are read when their rows are asked for."""

    def ahead(self) -> int:
        """See Reader."""
        return IN_PROCESS_AHEAD

    def choose(self, waiting: Sequence[Item], *, thread: int) -> int | None:
        """See Reader."""
        return 0 if waiting else None

    def pass_over(self, tasks: "Sequence[TaskRecord]", lo: int, hi: int) -> None:
        """Nothing was begun."""

    def batch(self, tasks: "Sequence[TaskRecord]", lo: int, hi: int) -> "Batch":
        """See Reader."""
        return self._reader.batch(tasks, lo, hi)

    def use(self, executors: Sequence[ExecutorAddress]) -> None:
        """It asks nobody."""

    def close(self) -> None:
        """Nothing is open."""


@dataclass(slots=True)
class _Known:
    executor: DataExecutor
    incarnation: str
    away_until: float = 0.0


class FromExecutors:
    """Asks executors, and `local`, which is made when it is first needed, in the last resort. See Reader."""

    threads = THREADS

    def __init__(
        self, *, connect: Callable[[str], DataExecutor], local: Callable[[], ByPosition], batch_size: int,
        clock: Callable[[], float] = monotonic, patience_s: float = PATIENCE_S,
    ) -> None:
        self._connect, self._make_local, self._batch_size = connect, local, batch_size
        self._clock, self._patience_s = clock, patience_s
        self._lock = threading.Lock()
        self._executors: dict[str, _Known] = {}
        self._order: tuple[str, ...] = ()
        self._local: ByPosition | None = None
        self._awaited: Counter[Key] = Counter()
        self._ready: OrderedDict[Key, None] = OrderedDict()
        self._moved: OrderedDict[Key, str] = OrderedDict()
        self._task_rows = 0
        self._bad = 0
        self.read_locally = 0
        """Parts of batches that no executor gave."""

    @property
    def bad_records(self) -> int:
        """See Reader."""
        return self._bad + (self._local.bad_records if self._local else 0)

    def use(self, executors: Sequence[ExecutorAddress]) -> None:
        """See Reader. Their order is the same for all workers, so that all ask the same one for a task."""
        with self._lock:
            wanted = {each.address: each for each in executors}
            gone = [address for address, known in self._executors.items()
                    if address not in wanted or wanted[address].incarnation != known.incarnation]
            closing = [self._executors.pop(address).executor for address in gone]
            for address, each in wanted.items():
                if address not in self._executors:
                    self._executors[address] = _Known(self._connect(address), each.incarnation)
            self._order = tuple(wanted)
        for executor in closing:
            executor.close()

    def announce(self, tasks: "Sequence[TaskRecord]") -> None:
        """See Reader. What an executor does not take in it reads when it is asked for."""
        shares: dict[str, list[TaskRecord]] = {}
        for task in tasks:
            self._task_rows = max(self._task_rows, task.rows)
            for address in self._asked_for(task)[:1]:
                shares.setdefault(address, []).append(task)
        for address, share in shares.items():
            known = self._executors.get(address)
            if known is not None:
                try:
                    known.executor.announce(share)
                except MeshError as error:
                    self._note_away(address, error)

    def ahead(self) -> int:
        """See Reader. Enough for every executor to have work, in tasks; a batch reaches no further than its lease."""
        if not self._order:
            return IN_PROCESS_AHEAD
        batches = -(-self._task_rows * TASKS_AHEAD * len(self._order) // self._batch_size)
        return min(max(IN_PROCESS_AHEAD, batches), MOST_AHEAD)

    def choose(self, waiting: Sequence[Item], *, thread: int) -> int | None:
        """See Reader. The first of a task that no other thread waits for; without executors all are one thread's, so
        that batches keep their order."""
        with self._lock:
            if not self._order and thread:
                return None
            for index, (lease, piece) in enumerate(waiting):
                keys = [_key(task) for task in _touched(lease.tasks, piece.lo, piece.hi)]
                if not any(self._awaited[key] for key in keys):
                    self._awaited.update(key for key in keys if key not in self._ready)
                    return index
        return None

    def batch(self, tasks: "Sequence[TaskRecord]", lo: int, hi: int) -> "Batch":
        """See Reader."""
        touched = _touched(tasks, lo, hi)
        try:
            at, parts = lo, []
            for task in touched:
                first, last = max(at, task.base), min(hi, task.base + task.rows)
                if first > at:
                    break
                parts.append(self._part(task, first, last))
                at = last
            return concat(parts) if at >= hi and parts else self._read_locally(tasks, lo, hi)
        finally:
            self.pass_over(touched, lo, hi)

    def pass_over(self, tasks: "Sequence[TaskRecord]", lo: int, hi: int) -> None:
        """See Reader."""
        with self._lock:
            for task in _touched(tasks, lo, hi):
                self._awaited.pop(_key(task), None)

    def close(self) -> None:
        """See Reader."""
        self.use(())

    # ---- inside

    def _part(self, task: "TaskRecord", lo: int, hi: int) -> "Batch":
        asked = 0
        for address in self._asked_for(task):
            if asked >= MOST_ASKED:
                break
            asked += 1
            try:
                found = self._ask(address, task, lo, hi, here=asked > 1)
            except (InvalidArgument, DataLoss) as error:
                _log.info("executor %s cannot read positions %d to %d: %s", address, lo, hi, error)
                break                           # nor can others; the worker's own error is the one that counts
            except MeshError as error:
                self._note_away(address, error)
                continue
            if found is not None:
                return found
        return self._read_locally([task], lo, hi)

    def _ask(self, address: str, task: "TaskRecord", lo: int, hi: int, *, here: bool) -> "Batch | None":
        """None: not within patience. The peer to which a task has moved is asked for the rest of it at once."""
        until, key = self._clock() + self._patience_s, _key(task)
        with self._lock:
            target = address if here else self._moved.get(key, address)
        while True:
            known = self._executors.get(target)
            if known is None:
                if target == address:
                    return None
                target, here = self._forget_move(key, address), True
                continue
            try:
                rows = known.executor.read(task, lo, hi, wait_s=ASK_S, here=here)
            except MeshError as error:
                if target == address or isinstance(error, InvalidArgument | DataLoss):
                    raise
                self._note_away(target, error)
                target, here = self._forget_move(key, address), True
                continue
            if rows.batch is not None:
                with self._lock:
                    self._bad += rows.bad
                    _remember(self._ready, key, None)
                    self._awaited.pop(key, None)
                return rows.batch
            if rows.moved_to and rows.moved_to != target:
                # Where a task went it stays; whoever sends on from there has forgotten where it came from.
                here, target = target != address, rows.moved_to
                with self._lock:
                    _remember(self._moved, key, target)
            elif self._clock() >= until:
                return None

    def _forget_move(self, key: Key, address: str) -> str:
        with self._lock:
            self._moved.pop(key, None)
        return address

    def _asked_for(self, task: "TaskRecord") -> list[str]:
        """Whom to ask for it, in order: consecutive tasks fall to executors in turn, the same for all workers."""
        with self._lock:
            order, now = self._order, self._clock()
            first = task.base // max(task.rows, 1)
            turned = [order[(first + i) % len(order)] for i in range(len(order))]
            there = {address for address in turned if self._executors[address].away_until <= now}
        return [address for address in turned if address in there]

    def _note_away(self, address: str, error: MeshError) -> None:
        known = self._executors.get(address)
        if known is None:
            return
        if known.away_until <= self._clock():
            _log.warning("data executor %s is passed over for a while: %s", address, error)
        longer = 15 if isinstance(error, FailedPrecondition) else 1         # it reads other data
        known.away_until = self._clock() + AWAY_S * longer

    def _read_locally(self, tasks: "Sequence[TaskRecord]", lo: int, hi: int) -> "Batch":
        with self._lock:
            self.read_locally += 1
            if self._local is None:
                self._local = self._make_local()
            local = self._local
        return local.batch(tasks, lo, hi)


def _key(task: "TaskRecord") -> Key:
    return task.line, task.base


def _touched(tasks: "Sequence[TaskRecord]", lo: int, hi: int) -> "list[TaskRecord]":
    found = [task for task in tasks if not task.close and task.base < hi and lo < task.base + task.rows]
    return sorted(found, key=lambda task: task.base)


def _remember(known: OrderedDict[Key, "str"] | OrderedDict[Key, None], key: Key, value: str | None) -> None:
    known[key] = value                          # type: ignore[assignment]  # of the kind that the dictionary holds
    known.move_to_end(key)
    while len(known) > MOST_KNOWN:
        known.popitem(last=False)
