"""Topics of a job's line: where their partitions begin, and what of them comes next. Called in threads."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from recmesh.data import FileSlice
from recmesh.data.faults import in_stream
from recmesh.data.index import starting
from recmesh.data.topics import Partition, Topic, topic_of
from recmesh.data.windows import Turn, active
from recmesh.runtime.errors import DataLoss
from recmesh.runtime.telemetry import Metrics, get_logger
from recmesh.spec.dataset import DatasetSpec, StreamSource
from services.shardsvc.domain.alignment import Place, shares
from services.shardsvc.domain.journal import Start

LINGER_S = 1.0
"""So long messages of a partition wait for others, so that tasks are not tiny."""
FULL_ROWS = 1024
"""So many wait for no others."""
MOST_TASKS = 512
"""Of topics that are written to a line at once."""
_log = get_logger(__name__)
_gone = Metrics("shardsvc").counter("topic_messages_gone", "Messages that a topic let go of before they were on a line")
Opened = Callable[[StreamSource], Topic]


def settled(spec: DatasetSpec, *, now: float, opened: Opened = topic_of) -> tuple[DatasetSpec, list[Start]]:
    """The dataset with a moment for each start that is none, and where each partition begins, as it is now."""
    moments: dict[tuple[int, int], float] = {}
    starts: list[Start] = []
    for view, (s, i, source) in enumerate(_sources(spec)):
        if source.is_topic:
            with in_stream(s, i):
                found = _starts(view, source, opened(source))
                times = [opened(source).time_of(each.uri, each.offset) for each in found]
            starts += found
            moments[s, i] = min((time for time in times if time is not None), default=now)
    return starting(spec, lambda s, i: moments[s, i]), starts


def _starts(view: int, source: StreamSource, topic: Topic) -> list[Start]:
    partitions = topic.partitions()
    held = topic.committed(source.group) if source.start == "group" else {}
    return [Start(view, each.uri, each.tag, _begin(source, topic, each, held)) for each in partitions]


def _begin(source: StreamSource, topic: Topic, partition: Partition, held: Mapping[str, int]) -> int:
    first, end = partition.span
    if source.start == "latest":
        return end
    if source.start == "group":
        return min(max(first, held.get(partition.uri, first)), end)
    if source.start == "earliest":
        return first
    found = topic.after(partition.uri, source.begin)
    return end if found is None else found


@dataclass(frozen=True, slots=True)
class Advance:
    """What of the topics of a window comes next."""

    slices: tuple[FileSlice, ...] = ()
    starts: tuple[Start, ...] = ()
    """Of partitions that are new, or have let go of what was to come."""
    is_whole: bool = True
    """With these slices the window has all of its messages."""
    elapsed: float = 1.0
    """The part of the window that they have passed."""


@dataclass
class Follower:
    """Follows the topics of one dataset, whose starts are moments. For one thread at a time."""

    spec: DatasetSpec
    opened: Opened = topic_of
    linger_s: float = LINGER_S
    ends: dict[Place, int] = field(default_factory=dict)
    """Where partitions ended when they were last looked at."""
    _bounds: dict[tuple[Turn, Place], int] = field(default_factory=dict)
    """The first offset behind a window."""
    _written: dict[Place, float] = field(default_factory=dict)

    def advance(
        self, turn: Turn, offsets: Mapping[Place, int], tags: Mapping[Place, str], *, now: float, timed: bool = True
    ) -> Advance:
        """Messages of the window from these offsets on, as many as there are, in tasks of bounded size.

        `timed`: how much of the window has passed is asked for, too; it costs a message of each partition.
        DataLoss: a partition was deleted, and made again.
        """
        stream = self.spec.streams[turn.stream]
        first_view = sum(len(each.sources) for each in self.spec.streams[: turn.stream])
        places: dict[Place, _Part] = {}
        starts: list[Start] = []
        for index in active(stream, turn.begin):
            source = stream.sources[index]
            if not source.is_topic:
                continue
            with in_stream(turn.stream, index):
                topic = self.opened(source)
                for partition in topic.partitions():
                    place = first_view + index, partition.uri
                    at = offsets.get(place)
                    if at is None or at < partition.span.first:
                        at = self._begun(place, source, topic, partition, at)
                        starts.append(Start(*place, partition.tag, at))
                    elif tags.get(place, partition.tag) != partition.tag:
                        raise DataLoss(f"{partition.uri} was deleted since the job began", reason="FILE_CHANGED")
                    self.ends[place] = partition.span.end
                    end = turn.begin - source.offset + stream.window
                    end = end if source.end is None else min(end, source.end)
                    late = now >= end + source.lateness
                    bound = self._bound(turn, place, topic, partition, end, late=late) if now >= end else None
                    places[place] = _Part(topic, partition, at, bound, end - stream.window)
        self._bounds = {key: bound for key, bound in self._bounds.items() if key[0] == turn}
        advance = self._cut(places, tuple(starts), now)
        passed = [part.elapsed(stream.window) for part in places.values()] if timed else []
        return replace(advance, elapsed=min(passed, default=1.0))

    def age_of(self, place: Place, offset: int, *, now: float) -> float:
        """Seconds since the message at the offset; 0 where there is none."""
        source = [source for _, _, source in _sources(self.spec)][place[0]]
        time = self.opened(source).time_of(place[1], offset)
        return 0.0 if time is None else max(0.0, now - time)

    def _begun(
        self, place: Place, source: StreamSource, topic: Topic, partition: Partition, at: int | None
    ) -> int:
        first = partition.span.first
        if at is None:                          # it is younger than the job
            found = topic.after(partition.uri, source.begin)
            return partition.span.end if found is None else found
        _gone.inc(first - at)
        _log.error("%s let go of offsets %d to %d before they were read: its retention is too short",
                   partition.uri, at, first)
        return first

    def _bound(
        self, turn: Turn, place: Place, topic: Topic, partition: Partition, end: float, *, late: bool
    ) -> int | None:
        """The first offset behind the window, once it is known: a later message is there, or the clock says so.

        Asked for once the window's time is over; a message from the future is of the window that it came in.
        """
        known = self._bounds.get((turn, place))
        if known is None:
            first, last = partition.span.first, partition.span.end - 1
            newest = topic.time_of(partition.uri, last) if last >= first else None
            if newest is not None and newest >= end:
                known = topic.after(partition.uri, end)
            elif late:
                known = partition.span.end
            if known is not None:
                self._bounds[turn, place] = known
        return known

    def _cut(self, places: "Mapping[Place, _Part]", starts: tuple[Start, ...], now: float) -> Advance:
        waiting = {place: part.waiting for place, part in places.items() if self._is_due(place, part, now)}
        slices = []
        for place, rows in list(shares(waiting).items())[:MOST_TASKS]:
            part = places[place]
            slices.append(FileSlice(place[1], 0, part.partition.tag, part.at, rows, view=place[0]))
            self._written[place] = now
        rows_of = {(piece.view, piece.uri): piece.rows for piece in slices}
        is_whole = all(
            part.bound is not None and part.at + rows_of.get(place, 0) >= part.bound for place, part in places.items()
        )
        return Advance(tuple(slices), starts, is_whole)

    def _is_due(self, place: Place, part: "_Part", now: float) -> bool:
        if part.waiting >= FULL_ROWS or part.bound is not None:
            return part.waiting > 0
        since = self._written.setdefault(place, now) if part.waiting else now
        return part.waiting > 0 and now - since >= self.linger_s


@dataclass(frozen=True, slots=True)
class _Part:
    """A partition within a window."""

    topic: Topic
    partition: Partition
    at: int
    bound: int | None
    begin: float
    """Where the window begins in its own time."""

    @property
    def waiting(self) -> int:
        end = self.partition.span.end if self.bound is None else self.bound
        return max(0, min(end, self.partition.span.end) - self.at)

    def elapsed(self, window: float) -> float:
        """The part of the window before its next message, or its newest one where it has come to the end."""
        if self.bound is not None and self.at >= self.bound:
            return 1.0
        span = self.partition.span
        time = self.topic.time_of(self.partition.uri, min(self.at, max(span.first, span.end - 1)))
        return 0.0 if time is None else min(1.0, max(0.0, (time - self.begin) / window))


def _sources(spec: DatasetSpec) -> list[tuple[int, int, StreamSource]]:
    """Of each view, its stream, its place there, and itself."""
    return [(s, i, source) for s, stream in enumerate(spec.streams) for i, source in enumerate(stream.sources)]
