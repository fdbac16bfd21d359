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
    base: int = 0
    """The snapshot that the PS' part builds on; 0: it is whole."""


def base_for(previous: Mapping[str, Any] | None, *, gen: int, full_every: int) -> int:
    """What the next snapshot may build on, given the last committed one's manifest; 0: it is to be whole.

    Only a cut of the same generation is known to the servers, and every `full_every`-th snapshot is whole.
    """
    if previous is None or int(previous["gen"]) != gen or len(chain_of(previous)) + 1 >= full_every:
        return 0
    return int(previous["snapshot"])


def chain_of(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The snapshots that one builds on, newest first: {"snapshot": number, "ps": [...]} each."""
    return list(document.get("chain", ()))


def chain_on(previous: Mapping[str, Any] | None, cuts: Sequence[Cut]) -> list[Mapping[str, Any]]:
    """What these cuts build on: nothing when every PS answered with a whole part."""
    if previous is None or not any(cut.base for cut in cuts):
        return []
    link = {"snapshot": int(previous["snapshot"]), "ps": [part["ps"] for part in previous["ps"]]}
    return [link, *chain_of(previous)]


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
    chain: Sequence[Mapping[str, Any]] = (),
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
        "chain": list(chain),
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
                "base": cut.base,
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


def part_uris(
    storage_uri: str, *, job_id: str, snapshot: int, ps: Sequence[int], chain: Sequence[Mapping[str, Any]] = ()
) -> list[str]:
    """Where the parts of a snapshot and of its chain lie on storage, its own first; docs/formats/snapshot.md."""
    root = f"{storage_uri.rstrip('/')}/checkpoints/{job_id}"
    links = [{"snapshot": snapshot, "ps": ps}, *chain]
    return [f"{root}/{link['snapshot']:08d}/ps-{index:03d}" for link in links for index in link["ps"]]


def text(document: Mapping[str, Any]) -> str:
    """A manifest as JSON."""
    return json.dumps(document, separators=(",", ":"))
