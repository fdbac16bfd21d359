"""What a task log says, message by message: the line, and how far its writer has come."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from recmesh.data.planned import PlannedTasks, Shape
from recmesh.data.records import FileSlice, TaskRecord, is_partition
from recmesh.data.slices import FileName, Slices, Table
from recmesh.data.windows import Turn, turns
from recmesh.runtime.errors import DataLoss
from recmesh.spec.dataset import DatasetSpec
from services.shardsvc.domain.line import Line


@dataclass(frozen=True, slots=True)
class Start:
    """Where a partition of a topic begins for a job."""

    view: int
    uri: str
    tag: str
    offset: int


@dataclass(frozen=True, slots=True)
class Begun:
    """All that it takes to go on with a line of streams."""

    spec: DatasetSpec
    epochs: int
    seed: int
    shuffle: bool


@dataclass(frozen=True, slots=True)
class Served:
    """The window whose tasks a message holds."""

    epoch: int
    turn: Turn
    complete: bool
    """Nothing more of it follows."""
    event_time: int = 0
    """Where the newest window begins of which something is in the message, unix seconds: of topics alone the one in
    which it happened, which may be served in a later one; 0: nothing is."""


@dataclass(frozen=True, slots=True)
class Trimmed:
    """What the messages before those that are kept said."""

    begun: Begun
    base: int
    """Positions before it are not asked for any more."""
    end: int
    slices: int


FileSpans = tuple[FileName, Table]
"""A file, and slices of it."""


@dataclass(frozen=True, slots=True)
class Planned:
    """From the slices before it all tasks of a line of files follow."""

    shape: Shape
    slices: int
    """Of an epoch."""
    rows: int
    """Of an epoch."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a task log."""

    records: Sequence[TaskRecord] = ()
    fingerprint: str = ""
    begun: Begun | None = None
    served: Served | None = None
    starts: Sequence[Start] = ()
    trimmed: Trimmed | None = None
    listed: Sequence[FileSpans] = ()
    planned: Planned | None = None


@dataclass
class Journal:
    """A log as far as it was read. A writer goes on from nothing else, so that any replica can at any time."""

    line: Line = field(default_factory=Line)
    last: int = 0
    """Sequence of the last message; 0: there is none."""
    fingerprint: str = ""
    begun: Begun | None = None
    served: Served | None = None
    event_time: int = 0
    """Where the newest window begins of which something is on the line, unix seconds; 0: nothing is."""
    offsets: dict[tuple[int, str], int] = field(default_factory=dict)
    """By view and partition of a topic: the first offset that is not on the line."""
    tags: dict[tuple[int, str], str] = field(default_factory=dict)
    slices: Slices = field(default_factory=Slices)
    """Of a dataset of files, as far as they are logged."""
    _rows: dict[tuple[int, str], int] = field(default_factory=dict)
    _newest: tuple[int, str] | None = None
    _window_base: int | None = None
    """Where the first file of the window stands."""
    _slices: int = 0

    def take(self, sequence: int, message: Message) -> None:
        """The next message of the log."""
        self.last = sequence
        self.fingerprint = self.fingerprint or message.fingerprint
        self.begun = self.begun or message.begun
        if message.served is not None:
            before, self.served = self.served, message.served
            if before is None or (before.epoch, before.turn) != (message.served.epoch, message.served.turn):
                self._rows.clear()
                self._window_base = None
            if before is None or before.epoch != message.served.epoch:
                self._slices = 0
            self.event_time = message.served.event_time or self.event_time
        for start in message.starts:
            place = start.view, start.uri
            self.offsets[place] = max(start.offset, self.offsets.get(place, 0))
            self.tags[place] = start.tag
        for record in message.records:
            if record.file is not None:
                self._take(record.file, record.base)
        for name, spans in message.listed:
            self.slices.add(name, spans)
        if message.planned is not None:
            self._plan(sequence, message.planned)
        self.line.extend(message.records)
        if message.trimmed is not None:
            self.begun, self._slices = message.trimmed.begun, message.trimmed.slices
            self.line.forget(message.trimmed.base, end=message.trimmed.end)

    def _plan(self, sequence: int, planned: Planned) -> None:
        there = len(self.slices), self.slices.rows
        if there != (planned.slices, planned.rows):
            raise DataLoss(
                f"a task log has {there[0]} slices of {there[1]} rows, and is to have {planned.slices} of "
                f"{planned.rows}",
                reason="LOG_SHORT",
            )
        self.line = Line.of(PlannedTasks(self.slices, planned.shape, sequence=sequence), sequence=sequence)

    def _take(self, piece: FileSlice, base: int) -> None:
        place = piece.view, piece.uri
        self._slices += 1
        if place in self.tags or is_partition(piece.uri):
            self.offsets[place] = piece.first_row + piece.rows
        else:
            self._newest, self._rows[place] = place, piece.first_row + piece.rows
            self._window_base = base if self._window_base is None else self._window_base

    # ---- of lines of streams

    def trimmable(self, done_to: int) -> int:
        """Up to which position the log may forget what is done: not the files of the open window, by which a writer
        knows which of them are there."""
        is_open = self._window_base is not None and self.served is not None and not self.served.complete
        return min(done_to, self._window_base) if is_open and self._window_base is not None else done_to

    def trimming(self, base: int) -> Trimmed:
        """What is to be written before messages of positions below `base` are deleted."""
        assert self.begun is not None
        return Trimmed(self.begun, base, self.line.end, self._slices)

    def starts(self) -> list[Start]:
        """Where every partition goes on."""
        return [Start(*place, self.tags.get(place, ""), offset) for place, offset in self.offsets.items()]

    def next_window(self) -> tuple[int, Turn] | None:
        """(epoch, turn) of the window to go on with or to begin; None: the line is to be closed."""
        assert self.begun is not None
        if self.served is None:
            return 0, next(turns(self.begun.spec))
        if not self.served.complete:
            return self.served.epoch, self.served.turn
        following = next(turns(self.begun.spec, after=self.served.turn), None)
        if following is not None:
            return self.served.epoch, following
        epoch = self.served.epoch + 1
        return (epoch, next(turns(self.begun.spec))) if epoch < self.begun.epochs else None

    def is_logged(self, view: int, uris: Sequence[str], *, epoch: int, turn: Turn) -> bool:
        """Whether all of these files of the window are in the log, for sure to their ends."""
        return self._at(epoch, turn) and all(
            (view, uri) in self._rows and (view, uri) != self._newest for uri in uris
        )

    def unlogged(self, slices: Sequence[FileSlice], *, epoch: int, turn: Turn) -> list[FileSlice]:
        """What of them the log lacks; files are logged from their first row on."""
        if not self._at(epoch, turn):
            return list(slices)
        return [piece for piece in slices if piece.first_row >= self._rows.get((piece.view, piece.uri), 0)]

    def slices_of(self, epoch: int) -> int:
        """How many slices of the epoch are logged."""
        return self._slices if self.served is not None and self.served.epoch == epoch else 0

    def _at(self, epoch: int, turn: Turn) -> bool:
        return self.served is not None and (self.served.epoch, self.served.turn) == (epoch, turn)


def last_empty(begun: Begun | None, turn: Turn, time: float) -> Turn:
    """Of an empty window, and those behind it that are empty, too, as nothing is there before this time: the last one.

    Only of a dataset that is one stream of topics: of others each window is looked at.
    """
    streams = begun.spec.streams if begun is not None else []
    if len(streams) != 1 or not streams[0].is_topics:
        return turn
    step = int(streams[0].window)
    begin = int(time // step - 1) * step
    ends = [source.end + source.offset for source in streams[0].sources if source.end is not None]
    if len(ends) == len(streams[0].sources):
        begin = min(begin, int(max(ends) // step) * step)
    return turn if begin <= turn.begin else Turn(begin, turn.stream)
