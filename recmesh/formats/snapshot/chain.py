"""A snapshot and those that it builds on: of each id the newest row counts.

A part is whole, or it holds what changed since the snapshot that it names as its base: rows, and the ids that
were removed. Which rows of the older snapshots still count is a matter of slots and ids alone, so a chain may be
read onto any number of servers.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from recmesh.formats.hashing import SLOTS, slots_of
from recmesh.formats.slotmap import SlotMask, to_runs
from recmesh.formats.snapshot.document import PartDocument, SnapshotError
from recmesh.formats.snapshot.rows import RowColumns, read_removed, read_rows


class Part(Protocol):
    """Where a part can be read from."""

    @property
    def document(self) -> PartDocument:
        """Its part.json."""

    def open(self, name: str) -> Any:
        """A file of the part as a pyarrow Buffer, verified; SnapshotError when it is damaged."""


class Level(NamedTuple):
    """The parts of one snapshot."""

    snapshot: int
    parts: Sequence[Part]

    @property
    def base(self) -> int:
        """What some of its parts build on; 0 when all are whole."""
        return max(part.document.base for part in self.parts)


def levels(parts: Sequence[Part]) -> list[Level]:
    """The newest snapshot among the parts, and those that it builds on, newest first.

    SnapshotError when one of them is missing, or they are not of one generation of one job.
    """
    by_number: dict[int, list[Part]] = defaultdict(list)
    for part in parts:
        by_number[part.document.snapshot].append(part)
    if not by_number:
        raise SnapshotError("a snapshot has at least one part")
    found = [Level(max(by_number), by_number[max(by_number)])]
    life = {(part.document.job_id, part.document.gen) for part in found[0].parts}
    while base := found[-1].base:
        if any(part.document.base not in (0, base) for part in found[-1].parts):
            raise SnapshotError(f"the parts of snapshot {found[-1].snapshot} build on different snapshots")
        if base not in by_number:
            raise SnapshotError(f"snapshot {found[-1].snapshot} builds on snapshot {base}, which is not there")
        found.append(Level(base, by_number[base]))
        life |= {(part.document.job_id, part.document.gen) for part in found[-1].parts}
    if len(life) > 1:
        lives = ", ".join(f"generation {gen} of job {job_id}" for job_id, gen in sorted(life))
        raise SnapshotError(f"snapshot {found[0].snapshot} and what it builds on are of {lives}")
    return found


def check_partition(level: Level, wanted: SlotMask) -> None:
    """SnapshotError unless the level holds each wanted slot exactly once."""
    times = np.zeros(SLOTS, np.int64)
    for part in level.parts:
        for group in part.document.groups:
            times += group.slots
    wrong = wanted & (times != 1)
    if wrong.any():
        raise SnapshotError(f"the parts of snapshot {level.snapshot} do not hold each of the slots "
                            f"{to_runs(wrong)} exactly once")


def newest_rows(chain: Sequence[Level], table: str, *, wanted: SlotMask) -> Iterator[RowColumns]:
    """The rows of a table in the wanted slots, as the chain's first snapshot has them, in no particular order."""
    newer = np.empty(0, np.int64)
    for depth, level in enumerate(chain):
        if depth:
            check_partition(level, wanted)
        below, seen = np.zeros(SLOTS, np.bool_), [newer]
        for part in level.parts:
            numbers = {n for n, schema in enumerate(part.document.tables) if schema["name"] == table}
            for group in part.document.groups:
                mine = group.slots & wanted
                builds_on = bool(part.document.base)
                if builds_on:
                    below |= mine
                for file in group.tables:
                    if file.table not in numbers or not mine.any():
                        continue
                    for rows in read_rows(part.open(file.file)):
                        chosen = _chosen(rows, table, mine, of=group.slots, newer=newer)
                        if builds_on:
                            seen.append(np.array(chosen.ids))
                        yield chosen
                    if file.removed_file:
                        seen.append(read_removed(part.open(file.removed_file)))
        if not below.any():
            return
        wanted, newer = below, np.unique(np.concatenate(seen))


def _chosen(
    rows: RowColumns, table: str, mine: SlotMask, *, of: SlotMask, newer: NDArray[np.int64]
) -> RowColumns:
    """Those in our slots of which no newer snapshot says anything. newer: ascending."""
    if not np.array_equal(mine, of):
        rows = rows.select(mine[slots_of(rows.ids, table)])
    if not len(newer) or not len(rows.ids):
        return rows
    places = np.minimum(np.searchsorted(newer, rows.ids), len(newer) - 1)
    return rows.select(newer[places] != rows.ids)
