"""What an executor holds: tasks that wait, are decoded, are ready, or have gone to a peer. Pure; the caller locks.

    announced or asked for ──► queued ──► decoding ──► ready ──► dropped, when room is needed
                                  │                      ▲
                                  └──► moved             └── asked for again: decoded again
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from recmesh.data.decoded import Decoded
from recmesh.data.records import FileSlice, TaskRecord
from recmesh.trainer.executor.priority import Priority, Waiting

Key = tuple[FileSlice, int]
"""A slice and the order of its rows: one of another epoch in the same order, or of another job, is the same."""
State = Literal["queued", "decoding", "ready", "moved", "failed"]

IDLE_S = 30.0
"""Rows that nobody asked for in so long make way for what is read ahead; their worker may be dead."""
MOVED_S = 60.0
"""So long it is remembered to which peer a task went."""
MOST_KEPT = 4096
"""Of tasks that are not here any more."""


@dataclass(slots=True, eq=False)
class Entry:
    """A task here."""

    task: TaskRecord
    key: Key
    state: State = "queued"
    taken: bool = False
    """A peer passed it on: it stays here."""
    waiters: int = 0
    """Calls that wait for its rows."""
    decoded: Decoded | None = None
    error: Exception | None = None
    moved_to: str = ""
    handed_out: int = 0
    """Positions of it that were asked for."""
    used_at: float = 0.0

    @property
    def size_bytes(self) -> int:
        """Memory held."""
        return self.decoded.size_bytes if self.decoded is not None else 0


@dataclass(frozen=True, slots=True)
class Counts:
    """Since the start."""

    decoded: int = 0
    forwarded: int = 0
    taken: int = 0


@dataclass(slots=True)
class Shelf:
    """Bounded: `limit_bytes` of decoded rows, and one task more for each that is being decoded; `most_queued` tasks."""

    weights: Sequence[float]
    """By the dataset's view."""
    limit_bytes: int
    most_queued: int = 1024
    priority: Priority = field(default_factory=Priority)
    held_bytes: int = 0
    counts: Counts = Counts()
    _entries: dict[Key, Entry] = field(default_factory=dict)
    _queue: dict[Key, Entry] = field(default_factory=dict)
    """Those that wait, in the order in which they came."""
    _row_bytes: dict[int, float] = field(default_factory=dict)
    """By view: of the last task decoded."""

    # ---- what comes

    def announce(self, tasks: Iterable[TaskRecord], *, now: float, taken: bool = False) -> int:
        """Queues what is not here yet; how many of the first were taken in, as long as the queue had room."""
        count = 0
        for task in tasks:
            entry = self._entries.get(key_of(task))
            if entry is None or _is_gone(entry, now=now) or (taken and entry.state == "moved"):
                if self.queued >= self.most_queued:
                    break
                self._add(task, now=now, taken=taken)
            elif taken:
                entry.taken = True
            count += 1
        return count

    def ask(self, task: TaskRecord, *, now: float, here: bool) -> Entry:
        """Somebody wants rows of it: queued where it is not here; `here`: also where it had gone to a peer."""
        entry = self._entries.get(key_of(task))
        if entry is None or _is_gone(entry, now=now) or (entry.state == "moved" and here):
            entry = self._add(task, now=now, taken=here)
        entry.taken = entry.taken or here
        entry.used_at = now
        return entry

    def _add(self, task: TaskRecord, *, now: float, taken: bool) -> Entry:
        entry = Entry(task, key_of(task), taken=taken, used_at=now)
        self._entries.pop(entry.key, None)
        self._entries[entry.key] = self._queue[entry.key] = entry
        self._forget_moved()
        return entry

    # ---- decoding

    @property
    def queued(self) -> int:
        """Tasks that wait to be decoded."""
        return len(self._queue)

    def next_to_decode(self, *, now: float) -> Entry | None:
        """Now being decoded: what somebody waits for first, then what fits into the buffer; by priority of sources."""
        wanted = [entry for entry in self._queue.values() if entry.waiters]
        candidates = wanted
        if not wanted and self._queue:
            room = self._room_ahead(now=now)
            candidates = [entry for entry in self._queue.values() if room is None or self._estimate(entry) <= room]
        first: dict[int, Entry] = {}
        for entry in candidates:
            first.setdefault(_view(entry), entry)
        queued = Counter(_view(entry) for entry in self._queue.values())
        waiting = [Waiting(view, self._weight(view), queued[view]) for view in sorted(first)]
        chosen = self.priority.choose(waiting)
        if chosen is None:
            return None
        entry = first[chosen]
        self._make_room(self._estimate(entry), now=now, is_wanted=bool(wanted))
        entry.state = "decoding"
        del self._queue[entry.key]
        return entry

    def finish(self, entry: Entry, decoded: Decoded | None, error: Exception | None, *, now: float) -> None:
        """It is decoded, or cannot be."""
        self.counts = Counts(self.counts.decoded + 1, self.counts.forwarded, self.counts.taken)
        entry.decoded, entry.error, entry.used_at = decoded, error, now
        entry.state = "ready" if decoded is not None else "failed"
        if decoded is not None:
            self.held_bytes += entry.size_bytes
            self._row_bytes[_view(entry)] = entry.size_bytes / max(entry.task.rows, 1)
            self._make_room(0, now=now, is_wanted=True, but=entry)

    def handed_out(self, entry: Entry, positions: int, *, now: float) -> None:
        """So many positions of it went to a worker."""
        entry.handed_out += positions
        entry.used_at = now

    def _waiting(self) -> list[Entry]:
        return list(self._queue.values())

    def _weight(self, view: int) -> float:
        return self.weights[view] if view < len(self.weights) else 1.0

    def _estimate(self, entry: Entry) -> int:
        return int(self._row_bytes.get(_view(entry), 0.0) * entry.task.rows)

    # ---- room

    def _room_ahead(self, *, now: float) -> int | None:
        """Bytes that what is read ahead may take; None: any, as nothing is held that must stay."""
        free = sum(each.size_bytes for each in self._droppable(now=now, is_wanted=False))
        coming = sum(self._estimate(each) for each in self._entries.values() if each.state == "decoding")
        return None if self.held_bytes <= free else self.limit_bytes - (self.held_bytes - free + coming)

    def _make_room(self, needed: int, *, now: float, is_wanted: bool, but: Entry | None = None) -> None:
        for entry in self._droppable(now=now, is_wanted=is_wanted):
            if self.held_bytes + needed <= self.limit_bytes:
                return
            if entry is not but:
                self._drop(entry)

    def _droppable(self, *, now: float, is_wanted: bool) -> list[Entry]:
        """Ready entries that nobody waits for: those that were handed out whole first, then the longest unused."""
        ready = [entry for entry in self._entries.values() if entry.state == "ready" and not entry.waiters]
        if not is_wanted:
            ready = [entry for entry in ready if _is_spent(entry) or now - entry.used_at > IDLE_S]
        return sorted(ready, key=lambda entry: (not _is_spent(entry), entry.used_at))

    def _drop(self, entry: Entry) -> None:
        self.held_bytes -= entry.size_bytes
        self._entries.pop(entry.key, None)

    # ---- peers

    def to_pass_on(self, most: int) -> list[Entry]:
        """Tasks that may go to peers, the last that came first; those that peers passed on stay."""
        return [entry for entry in reversed(self._waiting()) if not entry.taken][:most]

    def gone(self, entries: Iterable[Entry], address: str) -> None:
        """A peer has them now; those that are being decoded here meanwhile stay, or came back from another peer."""
        for entry in entries:
            if entry.state == "queued" and not entry.taken:
                entry.state, entry.moved_to = "moved", address
                del self._queue[entry.key]
                self.counts = Counts(self.counts.decoded, self.counts.forwarded + 1, self.counts.taken)

    def took(self, count: int) -> None:
        """So many came from a peer."""
        self.counts = Counts(self.counts.decoded, self.counts.forwarded, self.counts.taken + count)

    def _forget_moved(self) -> None:
        moved = [entry for entry in self._entries.values() if entry.state in ("moved", "failed") and not entry.waiters]
        for entry in moved[: max(0, len(self._entries) - MOST_KEPT)]:
            self._entries.pop(entry.key, None)


def key_of(task: TaskRecord) -> Key:
    """ValueError: a closing record has no rows."""
    if task.file is None:
        raise ValueError("the task names no file")
    return task.file, task.order_seed


def _view(entry: Entry) -> int:
    return entry.key[0].view


def _is_gone(entry: Entry, *, now: float) -> bool:
    """It is not here, and nobody is known who has it."""
    return entry.state == "failed" or (entry.state == "moved" and now - entry.used_at > MOVED_S)


def _is_spent(entry: Entry) -> bool:
    return entry.handed_out >= entry.task.rows
