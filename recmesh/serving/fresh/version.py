"""What a request is answered by: the rows and the dense blocks of one snapshot of a job. Never changed once made."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from recmesh.formats.tables import Dense, Ids, Rows, Table


@dataclass(frozen=True, slots=True)
class Overlay:
    """Rows of a table that are newer than its mapped ones; of those that were removed since, `there` is false."""

    ids: Ids
    """Ascending, each once."""
    rows: Rows
    there: NDArray[np.bool_]

    @classmethod
    def empty(cls, dim: int) -> "Overlay":
        """Of no rows."""
        return cls(np.empty(0, np.int64), np.empty((0, dim), np.float32), np.empty(0, np.bool_))

    @property
    def size_bytes(self) -> int:
        """In memory."""
        return self.ids.nbytes + self.rows.nbytes + self.there.nbytes

    def find(self, wanted: Ids) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """See Table.find."""
        return Table(self.ids, self.rows).find(wanted)

    def with_changes(self, changes: "Overlay") -> "Overlay":
        """The two as one; of an id that both have, the changes count."""
        if not len(self.ids):
            return changes
        old = ~changes.find(self.ids)[0]
        ids = np.concatenate([self.ids[old], changes.ids])
        order = np.argsort(ids, kind="stable")
        return Overlay(
            ids[order], np.concatenate([self.rows[old], changes.rows])[order],
            np.concatenate([self.there[old], changes.there])[order],
        )


def mean(table: Table) -> Rows:
    """float32 [dim] of a table's rows, zeros where there are none. Reads all of them."""
    rows = table.rows
    found = rows.mean(axis=0, dtype=np.float64) if len(rows) else np.zeros(rows.shape[1])
    return found.astype(np.float32)


@dataclass(frozen=True, slots=True)
class Version:
    """Rows and dense blocks as they were at one cut of the job."""

    number: int
    """The snapshot's, which only grows in a job's life."""
    gen: int
    """Of the job: snapshots build on one another within a generation only."""
    committed: float
    """Unix seconds; 0 where it is not known."""
    base: Mapping[str, Table]
    """Mapped."""
    base_number: int
    """The snapshot that the mapped tables are of: with the job it names them."""
    overlays: Mapping[str, Overlay] = field(repr=False)
    dense: Dense = field(repr=False)
    means: Mapping[str, Rows] = field(default_factory=dict, repr=False)
    """Of the mapped rows, float32 [dim]; of those tables alone whose absent ids read so."""

    @property
    def overlay_bytes(self) -> int:
        """Of rows newer than the mapped ones."""
        return sum(overlay.size_bytes for overlay in self.overlays.values())

    def whole(self, table: str) -> tuple[Ids, Rows]:
        """All rows of a table, ascending by id, in memory: what new tables are written from."""
        base, overlay = self.base[table], self.overlays[table]
        kept = ~overlay.find(base.ids)[0]
        ids = np.concatenate([base.ids[kept], overlay.ids[overlay.there]])
        rows = np.concatenate([base.rows[kept], overlay.rows[overlay.there]])
        order = np.argsort(ids, kind="stable")
        return ids[order], rows[order]
