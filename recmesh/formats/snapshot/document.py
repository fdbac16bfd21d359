"""part.json: what one parameter server's part of a snapshot holds. docs/formats/snapshot.md describes it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from recmesh.formats.hashing import SLOTS
from recmesh.formats.intervals import Ledger
from recmesh.formats.slotmap import SlotMask, from_runs, to_runs

FORMAT = "recmesh.snapshot.part"
WHOLE_VERSION, DELTA_VERSION = 1, 2
"""A part that builds on another snapshot has a version of its own: who does not know of that must not read it."""
PART_DOCUMENT = "part.json"


class SnapshotError(ValueError):
    """A snapshot's files are not what they should be; the message names file and reason."""


@dataclass(frozen=True, slots=True)
class TableFile:
    """Rows of one table in one group."""

    table: int
    file: str
    rows: int
    removed_file: str = ""
    """Ids that were removed since the base, as an Arrow file; empty: none. A row of the same id came back later."""
    removed: int = 0


@dataclass(frozen=True, slots=True)
class GroupDocument:
    """Slots with one ledger, and the files of their rows and chunks."""

    group: int
    slots: SlotMask
    ledger: Ledger
    step: int
    tables: tuple[TableFile, ...]
    dense_file: str
    chunks: int
    evicted: Mapping[int, int] = field(default_factory=dict)
    """By slot, where there are any: updates of rows that were evicted."""


@dataclass(frozen=True, slots=True)
class FileDocument:
    """A file's size and checksum."""

    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class PartDocument:
    """All of part.json."""

    job_id: str
    gen: int
    snapshot: int
    ps: int
    map_version: int
    groups: tuple[GroupDocument, ...]
    tables: tuple[Mapping[str, Any], ...]
    """In order of their numbers: name, dim, state_width, optimizer, init."""
    dense: tuple[Mapping[str, Any], ...]
    """In order of their numbers: name, shape, optimizer."""
    files: tuple[FileDocument, ...] = field(default=())
    base: int = 0
    """The snapshot of the same generation on which this part builds: it has only rows that changed since; 0: all."""

    @property
    def slots(self) -> SlotMask:
        """Of all groups."""
        mask = np.zeros(SLOTS, np.bool_)
        for group in self.groups:
            mask |= group.slots
        return mask

    @property
    def rows(self) -> int:
        """Of all tables."""
        return sum(table.rows for group in self.groups for table in group.tables)

    def file(self, name: str) -> FileDocument:
        """A file by name; SnapshotError when the part has none."""
        found = next((file for file in self.files if file.name == name), None)
        if found is None:
            raise SnapshotError(f"{PART_DOCUMENT} lists no file {name!r}")
        return found

    def to_json(self) -> str:
        """The document's text: keys in order, so that equal parts give equal texts."""
        return json.dumps({
            "format": FORMAT, "version": DELTA_VERSION if self.base else WHOLE_VERSION,
            "job_id": self.job_id, "gen": self.gen, "snapshot": self.snapshot, "ps": self.ps,
            **({"base": self.base} if self.base else {}),
            "map_version": self.map_version, "slots": to_runs(self.slots), "rows": self.rows,
            "tables": list(self.tables), "dense": list(self.dense),
            "groups": [{
                "group": group.group, "slots": to_runs(group.slots), "ledger": group.ledger.triples(),
                "step": group.step,
                "tables": [_table_to_json(table) for table in group.tables],
                "dense": {"file": group.dense_file, "chunks": group.chunks},
                **({"evicted": sorted(group.evicted.items())} if group.evicted else {}),
            } for group in self.groups],
            "files": [{"name": f.name, "size_bytes": f.size_bytes, "sha256": f.sha256} for f in self.files],
        }, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> "PartDocument":
        """The inverse; SnapshotError when it is no such document."""
        try:
            value = json.loads(text)
            if value["format"] != FORMAT or value["version"] not in (WHOLE_VERSION, DELTA_VERSION):
                raise SnapshotError(f"{PART_DOCUMENT} is {value['format']!r} version {value['version']!r}; "
                                    f"this reads {FORMAT!r} versions {WHOLE_VERSION} and {DELTA_VERSION}")
            base = int(value["base"]) if value["version"] == DELTA_VERSION else 0
            if not 0 <= base < int(value["snapshot"]):
                raise SnapshotError(f"snapshot {value['snapshot']} cannot build on snapshot {base}")
            return cls(
                str(value["job_id"]), int(value["gen"]), int(value["snapshot"]), int(value["ps"]),
                int(value["map_version"]), tuple(_group(group) for group in value["groups"]),
                tuple(value["tables"]), tuple(value["dense"]),
                tuple(FileDocument(f["name"], int(f["size_bytes"]), f["sha256"]) for f in value["files"]),
                base)
        except SnapshotError:
            raise
        except (ValueError, KeyError, TypeError) as error:
            raise SnapshotError(f"{PART_DOCUMENT} cannot be read: {error!r}") from error


def _group(value: Mapping[str, Any]) -> GroupDocument:
    return GroupDocument(
        int(value["group"]), from_runs(value["slots"]), Ledger.from_triples(value["ledger"]),
        int(value["step"]),
        tuple(_table(table) for table in value["tables"]),
        str(value["dense"]["file"]), int(value["dense"]["chunks"]),
        {int(slot): int(count) for slot, count in value.get("evicted", ())})


def _table(value: Mapping[str, Any]) -> TableFile:
    removed = value.get("removed") or {"file": "", "ids": 0}
    return TableFile(int(value["table"]), str(value["file"]), int(value["rows"]), str(removed["file"]),
                     int(removed["ids"]))


def _table_to_json(table: TableFile) -> Mapping[str, Any]:
    removed = {"removed": {"file": table.removed_file, "ids": table.removed}} if table.removed_file else {}
    return {"table": table.table, "file": table.file, "rows": table.rows, **removed}


def table_file_name(group: int, table: int) -> str:
    """Rows of a table in a group."""
    return f"group-{group}.table-{table}.arrow"


def removed_file_name(group: int, table: int) -> str:
    """Ids of a table in a group that were removed since the base."""
    return f"group-{group}.table-{table}.removed.arrow"


def dense_file_name(group: int) -> str:
    """Dense chunks of a group."""
    return f"group-{group}.dense.safetensors"


def total(ledgers: Sequence[Ledger]) -> Ledger:
    """What all of the ledgers hold: the positions that a snapshot of these parts has applied everywhere."""
    if not ledgers:
        return Ledger()
    found = ledgers[0]
    for ledger in ledgers[1:]:
        found = found.intersect(ledger)
    return found
