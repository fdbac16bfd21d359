"""Topics of a job's line: where their partitions begin, and what of them comes next. Called in threads."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from recmesh.data import FileSlice
from recmesh.data.faults import in_stream
from recmesh.data.index import starting
from recmesh.data.topics import Partition, Topic, topic_of
from recmesh.data.windows import Turn, active
from recmesh.runtime.errors import DataLoss
from recmesh.runtime.telemetry import get_logger
from recmesh.spec.dataset import DatasetSpec, StreamSource
from services.shardsvc.domain.alignment import MOST_ROWS, Place, shares
from services.shardsvc.domain.journal import Start

LINGER_S = 1.0
"""So long messages of a partition wait for others, so that tasks are not tiny."""
FULL_ROWS = 1024
"""So many wait for no others."""
TASK_BYTES = 16 << 20
"""Of the messages of a task, where a topic tells how large they are."""
MOST_TASKS = 512
"""Of topics that are written to a line at once."""
_log = get_logger(__name__)
Opened = Callable[[StreamSource], Topic]


def settled(spec: DatasetSpec, *, now: float, opened: Opened = topic_of) -> tuple[DatasetSpec, list[Start]]:
    """The dataset with a moment for each start that is none, and where each partition begins, as it is now."""
    moments: dict[tuple[int, int], float] = {}
    starts: list[Start] = []
    for view, (s, i, source) in enumerate(_sources(spec)):
        if source.is_topic:
            with in_stream(s, i):
                found = _starts(view, source, opened(source), now)
                times = [opened(source).time_of(each.uri, each.offset) for each in found]
            starts += found
            moments[s, i] = min((time for time in times if time is not None), default=now)
    return starting(spec, lambda s, i: moments[s, i]), starts


def _starts(view: int, source: StreamSource, topic: Topic, now: float) -> list[Start]:
    partitions = topic.partitions()
    if not isinstance(source.start, str) and now < source.start:
        return []                               # where that is will be seen then
    held = topic.committed(source.group) if source.start == "group" else {}
    return [Start(view, each.uri, each.tag, _begin(source, topic, each, held)) for each in partitions]


def _begin(source: StreamSource, topic: Topic, partition: Partition, held: Mapping[str, int]) -> int:
    first, end = partition.span
    if source.start == "latest":
        return end
    if source.start == "group":
        at = held.get(partition.uri, first)
        if not first <= at <= end:
            _log.warning("%s has offsets %d to %d, and the group had come to %d", partition.uri, first, end, at)
        return min(max(first, at), end)
    if source.start == "earliest":
        return first
    found = topic.after(partition.uri, source.begin)
    return end if found is None else found


@dataclass(frozen=True, slots=True)
class Advance:
    """What of the topics of a window comes next."""

    slices: tuple[FileSlice, ...] = ()
    starts: tuple[Start, ...] = ()
    """Of partitions that are new."""
    is_whole: bool = True
    """With these slices the window has all of its messages."""
    elapsed: float = 1.0
    """The part of the window that they have passed."""
    next_time: float | None = None
    """Of a whole window without slices: the time of the first message behind it, or now."""
    event_time: int = 0
    """See Served."""


@dataclass
class Follower:
    """Follows the topics of one dataset, whose starts are moments. For one thread at a time."""

    spec: DatasetSpec
    opened: Opened = topic_of
    linger_s: float = LINGER_S
    _bounds: dict[tuple[Turn, Place], int] = field(default_factory=dict)
    """The first offset behind a window."""
    _written: dict[Place, float] = field(default_factory=dict)
    """When messages of a partition were written last, or began to wait for it."""

    def advance(
        self, turn: Turn, offsets: Mapping[Place, int], tags: Mapping[Place, str], *, now: float, timed: bool = True
    ) -> Advance:
        """Messages of the window from these offsets on, as many as there are, in tasks of bounded size.

        `timed`: how much of the window has passed is asked for, too; it costs a message of each partition.
        DataLoss: a partition was deleted or made again, or has let go of messages that were to come.
        """
        stream = self.spec.streams[turn.stream]
        first_view = sum(len(each.sources) for each in self.spec.streams[: turn.stream])
        parts: dict[Place, _Part] = {}
        starts: list[Start] = []
        is_begun = True
        for index in active(stream, turn.begin):
            source, view = stream.sources[index], first_view + index
            if not source.is_topic:
                continue
            if now < source.begin:              # what is there by then is older
                is_begun = False
                continue
            end = turn.begin - source.offset + stream.window
            end = end if source.end is None else min(end, source.end)
            with in_stream(turn.stream, index):
                topic = self.opened(source)
                partitions = topic.partitions()
                _check_all_there(view, partitions, offsets)
                for partition in partitions:
                    place = view, partition.uri
                    at = offsets.get(place)
                    if at is None:              # it is younger than the job, or the job began before its start
                        at = _begin(source, topic, partition, {})
                        starts.append(Start(*place, partition.tag, at))
                    _check(partition, at, tags.get(place, partition.tag))
                    late = now >= end + source.lateness
                    bound = self._bound(turn, place, topic, partition, end, late=late) if now >= end else None
                    parts[place] = _Part(
                        topic, partition, at, bound, end - stream.window, source.offset, source.weight or 1.0
                    )
        self._bounds = {key: bound for key, bound in self._bounds.items() if key[0] == turn}
        slices = self._cut(parts, now)
        rows_of = {(piece.view, piece.uri): piece.rows for piece in slices}
        is_whole = is_begun and all(
            part.bound is not None and part.at + rows_of.get(place, 0) >= part.bound for place, part in parts.items()
        )
        elapsed = min((part.elapsed(stream.window, now) for part in parts.values()), default=1.0) if timed else 1.0
        next_time = min((part.next_time(now) for part in parts.values()), default=now)
        return Advance(
            slices, tuple(starts), is_whole, elapsed if is_begun else 0.0,
            next_time if is_whole and not slices else None, self._event_time(turn, slices),
        )

    def _event_time(self, turn: Turn, slices: Iterable[FileSlice]) -> int:
        """Of Served: where files lie beside topics, the turn's; else where the window begins in which the last message
        of the longest of these slices happened, for old messages that come late are served in a window of today.

        One message is asked for: partitions are together in time.
        """
        stream, longest = self.spec.streams[turn.stream], max(slices, key=lambda piece: piece.rows, default=None)
        if not stream.is_topics:
            return turn.begin
        if longest is None:
            return 0
        source = [source for _, _, source in _sources(self.spec)][longest.view]
        time = self.opened(source).time_of(longest.uri, longest.first_row + longest.rows - 1)
        if time is None:                        # it was deleted, and so was all behind it
            return turn.begin
        return min(turn.begin, int((time + source.offset) // stream.window * stream.window))

    def wrote(self, slices: Iterable[FileSlice], *, now: float) -> None:
        """These are on the line."""
        for piece in slices:
            self._written[piece.view, piece.uri] = now

    def topics(self) -> dict[int, StreamSource]:
        """By view, the sources that are topics."""
        return {view: source for view, (_, _, source) in enumerate(_sources(self.spec)) if source.is_topic}

    def age_of(self, place: Place, offset: int, *, now: float) -> float:
        """Seconds since the message at the offset came; 0 where there is none.

        Not since it happened: a replay of last year's events is not a year behind.
        """
        source = [source for _, _, source in _sources(self.spec)][place[0]]
        came = self.opened(source).came_at(place[1], offset)
        return 0.0 if came is None else max(0.0, now - came)

    def _bound(
        self, turn: Turn, place: Place, topic: Topic, partition: Partition, end: float, *, late: bool
    ) -> int | None:
        """The first offset behind the window, once it is known: a later message is there, or the clock says so.

        Asked for once the window's time is over; a message from the future is of the window that it came in.
        """
        known = self._bounds.get((turn, place))
        if known is None:
            first, last = partition.span.first, partition.span.end - 1
            newest = topic.time_of(partition.uri, last) if last >= first else float("-inf")
            if newest is None or newest >= end:             # None: the last offset has no message
                known = topic.after(partition.uri, end)
            if known is None and late:
                known = partition.span.end
            if known is not None:
                self._bounds[turn, place] = known
        return known

    def _cut(self, parts: "Mapping[Place, _Part]", now: float) -> tuple[FileSlice, ...]:
        """Those that have waited longest first: under a bound of tasks all have their turn."""
        waiting = {place: part.waiting for place, part in parts.items() if self._is_due(place, part, now)}
        weights = {place: part.weight for place, part in parts.items()}
        taken = {place: min(rows, parts[place].most_rows) for place, rows in shares(waiting, weights).items()}
        longest = sorted(taken, key=lambda place: (self._written.get(place, now), place))[:MOST_TASKS]
        return tuple(
            FileSlice(place[1], 0, parts[place].partition.tag, parts[place].at, taken[place], view=place[0])
            for place in longest
        )

    def _is_due(self, place: Place, part: "_Part", now: float) -> bool:
        if not part.waiting:
            return False
        since = self._written.setdefault(place, now)
        return part.waiting >= FULL_ROWS or part.bound is not None or now - since >= self.linger_s


@dataclass(frozen=True, slots=True)
class _Part:
    """A partition within a window."""

    topic: Topic
    partition: Partition
    at: int
    bound: int | None
    begin: float
    """Where the window begins in its own time."""
    offset_s: float
    """How far its time is behind the window's."""
    weight: float

    @property
    def most_rows(self) -> int:
        """Of a task: its messages are in memory at once."""
        mean_bytes = self.partition.mean_bytes
        return max(1, int(TASK_BYTES / mean_bytes)) if mean_bytes else MOST_ROWS

    @property
    def waiting(self) -> int:
        end = self.partition.span.end if self.bound is None else self.bound
        return max(0, min(end, self.partition.span.end) - self.at)

    def elapsed(self, window: float, now: float) -> float:
        """The part of the window before its next message; by the clock where none waits."""
        time = self.topic.time_of(self.partition.uri, self.at) if self.waiting else None
        return min(1.0, max(0.0, ((now if time is None else time) - self.begin) / window))

    def next_time(self, now: float) -> float:
        """When its next message was, window or not, in the window's time."""
        has_next = self.at < self.partition.span.end
        time = self.topic.time_of(self.partition.uri, self.at) if has_next and not self.waiting else None
        return (now if time is None else time) + self.offset_s


def _check(partition: Partition, at: int, tag: str) -> None:
    if tag != partition.tag or at > partition.span.end:
        raise DataLoss(f"{partition.uri} was made again, or cut, since the job began", reason="FILE_CHANGED")
    if at < partition.span.first:
        raise DataLoss(
            f"{partition.uri} begins at offset {partition.span.first} now, and {at} is to come: its retention is too "
            "short", reason="MESSAGES_GONE",
        )


def _check_all_there(view: int, partitions: Iterable[Partition], offsets: Mapping[Place, int]) -> None:
    there = {partition.uri for partition in partitions}
    missing = [uri for of, uri in sorted(offsets) if of == view and uri not in there]
    if missing:
        raise DataLoss(f"{missing[0]} was deleted since the job began", reason="FILE_CHANGED")


def _sources(spec: DatasetSpec) -> list[tuple[int, int, StreamSource]]:
    """Of each view, its stream, its place there, and itself."""
    return [(s, i, source) for s, stream in enumerate(spec.streams) for i, source in enumerate(stream.sources)]
