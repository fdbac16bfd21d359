"""What makes a set of cuts one snapshot, and its manifest."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from services.jobmaster.domain.ledgers import Interval, Ledger, intersection, normal, trained
from services.jobmaster.domain.placement import SLOTS

NO_SLOTS = bytes(SLOTS // 8)


class NotAPartition(Exception):
    """A slot is in no cut, or in two: the snapshot is aborted."""


@dataclass(frozen=True, slots=True)
class GroupCut:
    """Slots with one common ledger, as they were at the mark."""

    ledger: Ledger
    step: int
    slots: bytes = NO_SLOTS


@dataclass(frozen=True, slots=True)
class Cut:
    """What one PS answered to the mark. `slots` is a 512-byte bitmap, bit s % 8 of byte s // 8."""

    ps: int
    slots: bytes
    groups: tuple[GroupCut, ...]
    latch_ms: float = 0.0
    rows: int = 0
    size_bytes: int = 0


def check_partition(cuts: Sequence[Cut]) -> None:
    """S2: every slot in exactly one cut, or NotAPartition."""
    counts = np.zeros(SLOTS, dtype=np.int64)
    for cut in cuts:
        if len(cut.slots) != SLOTS // 8:
            raise NotAPartition(f"PS {cut.ps} answered a bitmap of {len(cut.slots)} bytes")
        counts += np.unpackbits(np.frombuffer(cut.slots, dtype=np.uint8), bitorder="little")
    wrong = np.flatnonzero(counts != 1)
    if wrong.size:
        first = f"slot {wrong[0]} is in {counts[wrong[0]]}"
        raise NotAPartition(f"{wrong.size} slots are not in exactly one cut; {first}")


def applied_by_all(cuts: Sequence[Cut]) -> Ledger:
    """Positions in the ledger of every group of every PS."""
    return intersection([normal(group.ledger) for cut in cuts for group in cut.groups])


def manifest(
    *,
    job_id: str,
    gen: int,
    snapshot: int,
    map_version: int,
    cuts: Sequence[Cut],
    voids: Sequence[Interval],
    partly_applied: Sequence[Interval],
    log_last_sequence: int,
    total: int,
    created: float,
    label: str,
) -> Mapping[str, Any]:
    """What `manifest.json` says of the snapshot; ckptcache adds files, sizes and checksums."""
    done = applied_by_all(cuts)
    return {
        "format": "recmesh.snapshot/1",
        "job_id": job_id,
        "gen": gen,
        "snapshot": snapshot,
        "created": created,
        "label": label,
        "map_version": map_version,
        "samples": trained(done, voids=voids),
        "total": total,
        "rows": sum(cut.rows for cut in cuts),
        "ledger": [list(interval) for interval in done],
        "voids": [list(interval) for interval in voids],
        "partly_applied": [list(interval) for interval in partly_applied],
        "task_log": {"last_sequence": log_last_sequence},
        "ps": [
            {
                "ps": cut.ps,
                "rows": cut.rows,
                "size_bytes": cut.size_bytes,
                "latch_ms": cut.latch_ms,
                "groups": [
                    {"step": group.step, "ledger": [list(interval) for interval in normal(group.ledger)]}
                    for group in cut.groups
                ],
            }
            for cut in cuts
        ],
    }


def ledger_of(document: Mapping[str, Any]) -> Ledger:
    """The intersection that a manifest names."""
    return normal((int(line), int(lo), int(hi)) for line, lo, hi in document.get("ledger", ()))


def parse(text: str) -> dict[str, Any]:
    """A manifest as it was stored; ValueError when it is none."""
    document = json.loads(text)
    if not isinstance(document, dict):
        raise ValueError("the manifest is no JSON object")
    return document


def part_uris(storage_uri: str, *, job_id: str, snapshot: int, ps: Sequence[int]) -> list[str]:
    """Where the parts of a snapshot lie on storage; docs/formats/snapshot.md."""
    root = storage_uri.rstrip("/")
    return [f"{root}/checkpoints/{job_id}/{snapshot:08d}/ps-{index:03d}" for index in ps]


def text(document: Mapping[str, Any]) -> str:
    """A manifest as JSON."""
    return json.dumps(document, separators=(",", ":"))
