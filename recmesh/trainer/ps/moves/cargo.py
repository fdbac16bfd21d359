"""What travels from a source to a target."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from recmesh.formats import SlotMask
from recmesh.store import DenseRecord, RowBlock
from recmesh.trainer.ps.ledger import Cut
from recmesh.trainer.ps.messages import Declaration

NO_IDS: NDArray[np.int64] = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class TableCargo:
    """Rows of one table as they are now, and ids whose rows are gone."""

    table: int
    rows: RowBlock
    removed: NDArray[np.int64] = field(default_factory=lambda: NO_IDS)

    @property
    def size_bytes(self) -> int:
        """About what it takes on the wire."""
        rows = self.rows
        return (rows.ids.nbytes + rows.values.nbytes + rows.state.nbytes + rows.updates.nbytes
                + rows.frequency.nbytes + rows.last_step.nbytes + self.removed.nbytes)


@dataclass(frozen=True, slots=True)
class Cargo:
    """State of slots, or of what changed in them. Each entry replaces what the target has of it."""

    tables: Sequence[TableCargo] = ()
    chunks: Sequence[DenseRecord] = ()

    @property
    def rows(self) -> int:
        """Rows in it, gone ones too."""
        return sum(len(table.rows) + len(table.removed) for table in self.tables)

    @property
    def size_bytes(self) -> int:
        """About what it takes on the wire."""
        return (sum(table.size_bytes for table in self.tables)
                + sum(chunk.values.nbytes + chunk.state.nbytes for chunk in self.chunks))

    def __bool__(self) -> bool:
        return bool(self.tables or self.chunks)


@dataclass(frozen=True, slots=True)
class StageOrder:
    """Keep this out of sight until the install. Numbered from 0, in order."""

    gen: int
    move: int
    source: int
    incarnation: str
    """The target's."""
    sequence: int
    cargo: Cargo
    slots: SlotMask | None = None
    """With sequence 0: what moves."""
    content: Declaration | None = None
    """With sequence 0: the model; None when the source does not know it either."""


@dataclass(frozen=True, slots=True)
class InstallOrder:
    """The last changes: from here on the slots are the target's."""

    gen: int
    move: int
    source: int
    incarnation: str
    sequence: int
    """How many stages came before."""
    map_version: int
    cuts: Sequence[Cut]
    cargo: Cargo
    evicted: Mapping[int, int] = field(default_factory=dict)
    """Updates of rows that were evicted, by slot."""


class Target(Protocol):
    """The other server. Both calls may be repeated; errors of the wire are MeshErrors."""

    def stage(self, order: StageOrder) -> None:
        """See Receiver.stage."""

    def install(self, order: InstallOrder) -> bool:
        """See Receiver.install."""

    def close(self) -> None:
        """Ends the connection."""
