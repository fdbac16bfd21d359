"""What a task log says, message by message: the line, and how far its writer has come."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from recmesh.data.records import FileSlice, TaskRecord
from recmesh.data.windows import Turn, turns
from recmesh.spec.dataset import DatasetSpec
from services.shardsvc.domain.line import Line


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


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a task log."""

    records: Sequence[TaskRecord] = ()
    fingerprint: str = ""
    begun: Begun | None = None
    served: Served | None = None


@dataclass
class Journal:
    """A log as far as it was read. A writer goes on from nothing else, so that any replica can at any time."""

    line: Line = field(default_factory=Line)
    last: int = 0
    """Sequence of the last message; 0: there is none."""
    fingerprint: str = ""
    begun: Begun | None = None
    served: Served | None = None
    _rows: dict[tuple[int, str], int] = field(default_factory=dict)
    _newest: tuple[int, str] | None = None
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
            if before is None or before.epoch != message.served.epoch:
                self._slices = 0
        for record in message.records:
            if record.file is not None:
                self._newest = record.file.view, record.file.uri
                self._rows[self._newest] = record.file.first_row + record.file.rows
                self._slices += 1
        self.line.extend(message.records)

    # ---- of lines of streams

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
