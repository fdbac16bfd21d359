"""A snapshot of a counting job against the truth: every slot holds exactly what its own ledger says.

For each group of slots the truth is counted again over the positions in the group's ledger alone, so that a snapshot
from the middle of training is judged as sharply as the last one, and each part without the others.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recmesh.chaos.counting import BLOCK, BLOCK_SIZE
from recmesh.chaos.dataset import EVICTED, TABLES
from recmesh.chaos.truth import Counts, Truth
from recmesh.formats import SLOTS, Ledger, chunk_count, slots_of
from recmesh.formats.slotmap import to_runs
from recmesh.formats.snapshot import (
    GroupDocument,
    Level,
    Part,
    RowColumns,
    SnapshotError,
    levels,
    newest_rows,
    open_folder,
    open_part,
    read_dense_chunks,
)
from recmesh.runtime.errors import DataLoss

NAMED = 8
"""Differences that are told one by one; the others are only counted."""
LINE = 0


@dataclass(slots=True)
class Judgement:
    """One snapshot."""

    snapshot: int
    positions: int = 0
    """Applied by every slot."""
    is_full: bool = False
    lost: int = 0
    """Contributions of samples to rows and dense chunks that a ledger has and the values have not."""
    doubled: int = 0
    """The other way round, rows that no sample asked for included."""
    faults: int = 0
    """All else that is not as it must be: frequencies, update counts, dimensions, slots, ledgers."""
    rows: int = 0
    evicted: int = 0
    """Updates of rows that are not there any more."""
    named: list[str] = field(default_factory=list)
    """The first differences, in words."""

    @property
    def is_right(self) -> bool:
        """Nothing differs."""
        return self.lost == self.doubled == self.faults == 0

    def fault(self, text: str) -> None:
        """Something other than a count is wrong."""
        self.faults += 1
        self._name(text)

    def compare(self, what: str, *, found: int, expected: int) -> None:
        """A count."""
        if found != expected:
            self.lost += max(0, expected - found)
            self.doubled += max(0, found - expected)
            self._name(f"{what} is {found}, the truth is {expected}")

    def _name(self, text: str) -> None:
        if len(self.named) < NAMED:
            self.named.append(text)


def judge(
    parts: Sequence[Part], truth: Truth, *, snapshot: int, voids: Ledger | None = None, closing: bool = False
) -> Judgement:
    """Compares all rows, chunks and ledgers of a snapshot, given with those that it builds on.

    `closing`: its ledgers must be full.

    `voids` were set aside: they are in every ledger, and in no value.
    """
    made = Judgement(snapshot)
    try:
        _judge(parts, truth, made, voids or Ledger(), closing)
    except (SnapshotError, DataLoss) as error:
        made.fault(f"the snapshot cannot be read: {error}")
    return made


def judge_folder(folder: Path, truth: Truth, *, snapshot: int, closing: bool = False) -> Judgement:
    """The same for a snapshot as ckptcache keeps it: parts in `ps-*`, `manifest.json` beside them."""
    try:
        manifest: dict[str, Any] = json.loads((folder / "manifest.json").read_bytes())
        parts = open_folder(folder)
    except (OSError, ValueError, SnapshotError) as error:
        unreadable = Judgement(snapshot)
        unreadable.fault(f"the snapshot cannot be read: {error}")
        return unreadable
    made = judge(parts, truth, snapshot=snapshot, voids=Ledger.from_triples(manifest.get("voids", ())), closing=closing)
    if manifest.get("partly_applied"):
        made.named.append(f"set aside when some slot had it: {manifest['partly_applied']}")
    return made


def judge_ledgers(folder: Path, total: int, *, snapshot: int, closing: bool) -> Judgement:
    """Of a job whose rows nobody can foretell: each slot held once, and at the end every position in its ledger."""
    made = Judgement(snapshot)
    try:
        documents = [open_part(str(path)).document for path in sorted(folder.glob("ps-*"))]
    except (OSError, SnapshotError) as error:
        made.fault(f"the snapshot cannot be read: {error}")
        return made
    held, whole = np.zeros(SLOTS, np.int64), np.ones(total, np.bool_)
    for document in documents:
        made.rows += document.rows
        for group in document.groups:
            held += group.slots
            applied = _mask(group.ledger, total, made)
            whole &= applied
            if closing and not applied.all():
                made.fault(f"ps {document.ps}: the ledger lacks {int((~applied).sum())} of {total} positions")
    if (held != 1).any():
        made.fault(f"snapshot {snapshot}: the slots {to_runs(held != 1)} are not held exactly once")
    made.positions, made.is_full = int(whole.sum()), bool(whole.all())
    return made


def _judge(parts: Sequence[Part], truth: Truth, made: Judgement, voids: Ledger, closing: bool) -> None:
    held = np.zeros(SLOTS, np.int64)
    whole = np.ones(truth.total, np.bool_)
    chunks: dict[int, int] = {}
    chain = levels(parts)
    for part in chain[0].parts:
        document = part.document
        for group in document.groups:
            held += group.slots
            applied = _mask(group.ledger, truth.total, made)
            whole &= applied
            counted = applied & ~_mask(voids, truth.total, made)
            where = f"snapshot {made.snapshot}, ps {document.ps}, group {group.group}"
            if closing and not applied.all():
                made.fault(f"{where}: the ledger lacks {int((~applied).sum())} of {truth.total} positions")
            for name in TABLES:
                expected = truth.counts(name, applied=counted, slots=group.slots)
                rows = _rows(chain, group, name)
                if name == EVICTED:
                    _judge_evicting(rows, expected, group, made, f"{where}, {name}")
                else:
                    _judge_rows(rows, expected, made, f"{where}, {name}")
                made.rows += len(expected.ids)
            samples = int(counted.sum())
            for chunk in read_dense_chunks(memoryview(part.open(group.dense_file))):
                chunks[chunk.chunk] = chunks.get(chunk.chunk, 0) + 1
                _judge_chunk(chunk.values, chunk.updates, samples, made, f"{where}, {BLOCK} chunk {chunk.chunk}")
                if not group.slots[slots_of(np.array([chunk.chunk]), chunk.block)[0]]:
                    made.fault(f"{where}: chunk {chunk.chunk} lies in a slot of another group")
    if (held != 1).any():
        made.fault(f"snapshot {made.snapshot}: the slots {to_runs(held != 1)} are not held exactly once")
    wanted = dict.fromkeys(range(chunk_count(BLOCK_SIZE)), 1)
    if chunks != wanted:
        made.fault(f"snapshot {made.snapshot}: dense chunks are held {chunks} times, not each once")
    made.positions, made.is_full = int(whole.sum()), bool(whole.all())


def _mask(ledger: Ledger, total: int, made: Judgement) -> NDArray[np.bool_]:
    mask = np.zeros(total, np.bool_)
    for line, lo, hi in ledger.triples():
        if line != LINE or hi > total:
            made.fault(f"snapshot {made.snapshot}: a ledger has [{lo}, {hi}) of line {line}, which ends at {total}")
        mask[lo:hi] = True
    return mask


def _rows(chain: Sequence[Level], group: GroupDocument, table: str) -> RowColumns | None:
    blocks = list(newest_rows(chain, table, wanted=group.slots))
    if not blocks:
        return None
    columns = [np.concatenate(column) for column in zip(*blocks, strict=True)]
    order = np.argsort(columns[0], kind="stable")
    return RowColumns(*(column[order] for column in columns))


def _judge_rows(rows: RowColumns | None, expected: Counts, made: Judgement, where: str) -> None:
    ids = np.empty(0, np.int64) if rows is None else rows.ids
    if (ids[1:] == ids[:-1]).any():
        made.fault(f"{where}: id {int(ids[:-1][ids[1:] == ids[:-1]][0])} has two rows")
    missing = ~np.isin(expected.ids, ids)
    for id_, count in zip(expected.ids[missing].tolist(), expected.counts[missing].tolist(), strict=True):
        made.compare(f"{where}: row {id_}, which is not there,", found=0, expected=count)
    if rows is None:
        return
    place = np.searchsorted(expected.ids, ids)
    known = np.isin(ids, expected.ids)
    counts = np.zeros(len(ids), np.int64)
    counts[known] = expected.counts[place[known]]
    values = rows.values[:, 0]
    frequency, updates = rows.frequency.astype(np.int64), rows.updates.astype(np.int64)
    for k in np.flatnonzero(values != counts):
        made.compare(f"{where}: row {ids[k]}", found=int(values[k]), expected=int(counts[k]))
    checks = [
        ((rows.values != values[:, None]).any(axis=1), "has unequal values"),
        (frequency != counts, "has a frequency that is not its count"),
        ((updates < np.minimum(counts, 1)) | (updates > counts), "has more updates than occurrences, or none"),
        (~known, "was made by no sample"),
    ]
    for wrong, text in checks:
        for k in np.flatnonzero(wrong):
            made.fault(f"{where}: row {ids[k]} {text}: values {rows.values[k].tolist()}, frequency {frequency[k]}, "
                       f"updates {updates[k]}, occurrences {counts[k]}")


def _judge_evicting(
    rows: RowColumns | None, expected: Counts, group: GroupDocument, made: Judgement, where: str
) -> None:
    """Of a table whose rows go and come: by slot, updates of those that are there and of those that went are all."""
    true = np.bincount(slots_of(expected.ids, EVICTED), weights=expected.counts, minlength=SLOTS).astype(np.int64)
    found = np.zeros(SLOTS, np.int64)
    for evicted_slot, updates in group.evicted.items():
        found[evicted_slot] = updates
    made.evicted += int(found.sum())
    if rows is not None:
        np.add.at(found, slots_of(rows.ids, EVICTED), rows.updates.astype(np.int64))
        most = dict(zip(expected.ids.tolist(), expected.counts.tolist(), strict=True))
        values = rows.values[:, 0]
        wrong = (rows.values != values[:, None]).any(axis=1) | (values != rows.frequency) | (values != rows.updates)
        wrong |= values > np.array([most.get(id_, 0) for id_ in rows.ids.tolist()])
        for k in np.flatnonzero(wrong):
            occurrences = most.get(int(rows.ids[k]), 0)
            made.fault(f"{where}: row {rows.ids[k]} has values {rows.values[k].tolist()}, frequency "
                       f"{rows.frequency[k]}, updates {rows.updates[k]}, of {occurrences} occurrences")
    for slot in np.flatnonzero(found != true).tolist():
        made.compare(f"{where}, slot {slot}: rows and evicted rows together", found=int(found[slot]),
                     expected=int(true[slot]))


def _judge_chunk(values: NDArray[np.float32], updates: int, samples: int, made: Judgement, where: str) -> None:
    first = float(values[0])
    made.compare(where, found=round(first), expected=samples)
    if (values != first).any() or first != round(first):
        made.fault(f"{where}: its values differ among each other, from {values.min()} to {values.max()}")
    if not min(samples, 1) <= updates <= samples:
        made.fault(f"{where}: {updates} updates of {samples} samples")
