"""Snapshots of one generation, one after the other: no slot's steps or ledger may fall back in between."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from recmesh.formats import SLOTS
from recmesh.formats.slotmap import to_runs
from recmesh.formats.snapshot import SnapshotError, open_part

LINE = 0


@dataclass(frozen=True, slots=True)
class Standing:
    """What each slot had at a snapshot."""

    snapshot: int
    gen: int
    steps: NDArray[np.int64]
    """[SLOTS]"""
    positions: NDArray[np.int64]
    """[SLOTS]: how many the slot's ledger holds."""


def standing(folder: Path) -> Standing | None:
    """Of a snapshot as ckptcache keeps it; None when it cannot be read, which its judgement tells."""
    steps, positions = np.zeros(SLOTS, np.int64), np.zeros(SLOTS, np.int64)
    try:
        documents = [open_part(str(path)).document for path in sorted(folder.glob("ps-*"))]
    except (OSError, SnapshotError):
        return None
    for document in documents:
        for group in document.groups:
            steps[group.slots] = group.step
            positions[group.slots] = sum(hi - lo for line, lo, hi in group.ledger.triples() if line == LINE)
    return Standing(documents[0].snapshot, documents[0].gen, steps, positions) if documents else None


def setbacks(course: Sequence[Standing]) -> list[str]:
    """What fell, in words; `course` in order of snapshots."""
    found: list[str] = []
    for before, after in pairwise(course):
        if before.gen != after.gen:
            continue
        for what, old, new in (("steps", before.steps, after.steps), ("ledgers", before.positions, after.positions)):
            if (new < old).any():
                found.append(f"from snapshot {before.snapshot} to {after.snapshot}, both of generation {after.gen}, "
                             f"the {what} of the slots {to_runs(new < old)} fell")
    return found
