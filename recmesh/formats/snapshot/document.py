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
VERSION = 1
PART_DOCUMENT = "part.json"


class SnapshotError(ValueError):
    """A snapshot's files are not what they should be; the message names file and reason."""


@dataclass(frozen=True, slots=True)
class TableFile:
    """Rows of one table in one group."""

    table: int
    file: str
    rows: int


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
            "format": FORMAT, "version": VERSION,
            "job_id": self.job_id, "gen": self.gen, "snapshot": self.snapshot, "ps": self.ps,
            "map_version": self.map_version, "slots": to_runs(self.slots), "rows": self.rows,
            "tables": list(self.tables), "dense": list(self.dense),
            "groups": [{
                "group": group.group, "slots": to_runs(group.slots), "ledger": group.ledger.triples(),
                "step": group.step,
                "tables": [{"table": t.table, "file": t.file, "rows": t.rows} for t in group.tables],
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
            if value["format"] != FORMAT or value["version"] != VERSION:
                raise SnapshotError(f"{PART_DOCUMENT} is {value['format']!r} version {value['version']!r}; "
                                    f"this reads {FORMAT!r} version {VERSION}")
            return cls(
                str(value["job_id"]), int(value["gen"]), int(value["snapshot"]), int(value["ps"]),
                int(value["map_version"]), tuple(_group(group) for group in value["groups"]),
                tuple(value["tables"]), tuple(value["dense"]),
                tuple(FileDocument(f["name"], int(f["size_bytes"]), f["sha256"]) for f in value["files"]))
        except SnapshotError:
            raise
        except (ValueError, KeyError, TypeError) as error:
            raise SnapshotError(f"{PART_DOCUMENT} cannot be read: {error!r}") from error


def _group(value: Mapping[str, Any]) -> GroupDocument:
    return GroupDocument(
        int(value["group"]), from_runs(value["slots"]), Ledger.from_triples(value["ledger"]),
        int(value["step"]),
        tuple(TableFile(int(t["table"]), str(t["file"]), int(t["rows"])) for t in value["tables"]),
        str(value["dense"]["file"]), int(value["dense"]["chunks"]),
        {int(slot): int(count) for slot, count in value.get("evicted", ())})


def table_file_name(group: int, table: int) -> str:
    """Rows of a table in a group."""
    return f"group-{group}.table-{table}.arrow"


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
