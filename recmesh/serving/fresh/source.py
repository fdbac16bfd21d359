"""A job's committed snapshots, as a server of its model reads them: what changed since a version, or all of it.

Committed means durable: what is served is never taken back by a rollback of training. The files, their order and
their checksums are those of docs/formats/snapshot.md.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import fsspec
import numpy as np
from numpy.typing import NDArray

from recmesh.formats.snapshot import (
    Part,
    RowColumns,
    SnapshotError,
    level_dense,
    open_part,
    read_dense,
    read_rows,
    read_table,
)
from recmesh.formats.snapshot.rows import read_removed
from recmesh.formats.tables import Dense, Ids, Rows
from recmesh.serving.fresh.version import Overlay

MARKER, MANIFEST = "COMMITTED", "manifest.json"


class NotThere(Exception):
    """The snapshot does not exist, or no more: retention took it while it was read."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """A committed snapshot, as its manifest says."""

    number: int
    gen: int
    committed: float
    parts: tuple[int, ...]
    chain: tuple[tuple[int, tuple[int, ...]], ...]
    """What it builds on, nearest first: snapshot, and its parts."""


@dataclass(frozen=True, slots=True)
class Delta:
    """From one version to a later one."""

    changes: Mapping[str, Overlay]
    dense: Dense
    levels: int
    """Snapshots that it spans."""


@dataclass(frozen=True, slots=True)
class Whole:
    """All of a snapshot."""

    tables: Mapping[str, tuple[Ids, Rows]]
    dense: Dense


class Snapshots:
    """Those of one job, below a URI."""

    def __init__(self, uri: str) -> None:
        self.uri = uri.rstrip("/")
        self._files, self._root = fsspec.core.url_to_fs(self.uri)

    def committed(self, *, most: int) -> list[int]:
        """Numbers of the committed snapshots among the newest `most`, ascending. Looks into each."""
        return [number for number in self._numbers()[-most:] if self._files.exists(self._file(number, MARKER))]

    def _numbers(self) -> list[int]:
        """Of snapshots that are there, committed or not, ascending; none when the folder is not there."""
        self._files.invalidate_cache(self._root)
        try:
            names = [str(item).rstrip("/").rpartition("/")[2] for item in self._files.ls(self._root, detail=False)]
        except FileNotFoundError:
            return []
        return sorted(int(name) for name in names if name.isdecimal())

    def newest(self, *, above: int) -> Manifest | None:
        """The newest snapshot above a number; None when there is none."""
        for number in reversed([number for number in self._numbers() if number > above]):
            try:
                return self.manifest(number)
            except NotThere:                     # it was begun, and is not committed
                continue
        return None

    def manifest(self, number: int) -> Manifest:
        """Of one; NotThere when it is not committed, SnapshotError when its manifest is damaged."""
        named = self._file(number, MANIFEST)
        try:
            seal = self._files.cat_file(self._file(number, MARKER))
            text = self._files.cat_file(named)
        except FileNotFoundError:
            raise NotThere(f"snapshot {number} of {self.uri}") from None
        if hashlib.sha256(text).hexdigest() not in seal.decode("latin-1"):
            raise SnapshotError(f"{named} does not have its checksum")
        try:
            document = json.loads(text)
            return Manifest(
                int(document["snapshot"]), int(document["gen"]), float(document["committed"]),
                tuple(int(part["ps"]) for part in document["parts"]),
                tuple((int(link["snapshot"]), tuple(map(int, link["ps"]))) for link in document.get("chain", ())),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise SnapshotError(f"{named} cannot be read: {error!r}") from error

    def _file(self, number: int, name: str) -> str:
        return f"{self._root}/{number:08d}/{name}"

    def delta(self, target: Manifest, *, since: int, tables: Sequence[str]) -> Delta | None:
        """What changed from snapshot `since` to the target; None where the target does not build on it."""
        levels = [(target.number, target.parts), *target.chain]
        numbers = [number for number, _ in levels]
        if since not in numbers[1:]:
            return None
        newer = [self._parts(number, ps) for number, ps in levels[: numbers.index(since)]]
        if any(not part.document.base for level in newer for part in level):
            return None                          # slots moved: a whole part ends what older ones have in its slots
        changes: dict[str, Overlay] = {}
        for level in reversed(newer):            # in the order in which they were cut
            for name in tables:
                change = _changes(level, name)
                changes[name] = changes[name].with_changes(change) if name in changes else change
        return Delta(changes, level_dense(newer[0]), len(newer))

    def whole(self, target: Manifest, *, tables: Sequence[str]) -> Whole:
        """All rows and blocks, along the chain."""
        levels = [(target.number, target.parts), *target.chain]
        parts = [part for number, ps in levels for part in self._parts(number, ps)]
        made: dict[str, tuple[Ids, Rows]] = {}
        for name in tables:
            rows = read_table(parts, name)
            trained = ~_untrained(parts[0].document.tables, name, rows)
            made[name] = rows.ids[trained], rows.values[trained]
        return Whole(made, read_dense(parts))

    def _parts(self, number: int, ps: Sequence[int]) -> list[Part]:
        found: list[Part] = []
        for index in ps:
            part = open_part(f"{self.uri}/{number:08d}/ps-{index:03d}")
            if part.document.snapshot != number:
                raise SnapshotError(f"{part.uri} is of snapshot {part.document.snapshot}")
            found.append(part)
        return found


def _changes(level: Sequence[Part], name: str) -> Overlay:
    """Of one delta snapshot and table: rows that changed, and ids that were removed and did not come back."""
    blocks: list[RowColumns] = []
    removed: list[Ids] = []
    for part in level:
        numbers = {number for number, schema in enumerate(part.document.tables) if schema["name"] == name}
        for group in part.document.groups:
            for file in group.tables:
                if file.table in numbers:
                    blocks += read_rows(part.open(file.file))
                    if file.removed_file:
                        removed.append(np.array(read_removed(part.open(file.removed_file))))
    schema = next(schema for schema in level[0].document.tables if schema["name"] == name)
    changed = Overlay.empty(int(schema["dim"]))
    if blocks:
        ids = np.concatenate([block.ids for block in blocks])
        rows = np.concatenate([block.values for block in blocks])
        there = np.concatenate([~_untrained(level[0].document.tables, name, block) for block in blocks])
        order = np.argsort(ids, kind="stable")
        changed = Overlay(ids[order], rows[order], there[order])
    gone = np.unique(np.concatenate(removed)) if removed else np.empty(0, np.int64)
    none = Overlay(gone, np.zeros((len(gone), int(schema["dim"])), np.float32), np.zeros(len(gone), np.bool_))
    return none.with_changes(changed)


def _untrained(schemas: Sequence[Mapping[str, Any]], name: str, rows: RowColumns) -> NDArray[np.bool_]:
    """Candidates: rarer than the table's minimum, and pushed to by nobody. They serve as ids never seen."""
    schema = next(schema for schema in schemas if schema["name"] == name)
    found: NDArray[np.bool_] = (rows.frequency < int(schema.get("min_frequency", 1))) & (rows.updates == 0)
    return found
