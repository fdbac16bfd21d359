"""Which parameter server owns which slot."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recmesh.formats.hashing import SLOTS

SlotMask = NDArray[np.bool_]
"""bool [SLOTS]: a set of slots."""


@dataclass(frozen=True, eq=False)
class SlotMap:
    """Slots to parameter servers; versions only grow over a job's whole life."""

    version: int
    owners: NDArray[np.uint16]
    """uint16 [SLOTS]: the PS index of each slot."""

    def __post_init__(self) -> None:
        owners = np.ascontiguousarray(self.owners, dtype=np.uint16)
        if owners.shape != (SLOTS,):
            raise ValueError(f"a slot map has {SLOTS} owners, not {owners.shape}")
        object.__setattr__(self, "owners", owners)

    @classmethod
    def even(cls, version: int, n_ps: int) -> "SlotMap":
        """Runs of nearly equal length: slot s belongs to s·n_ps // SLOTS."""
        if not 1 <= n_ps <= SLOTS:
            raise ValueError(f"1 to {SLOTS} parameter servers, not {n_ps}")
        return cls(version, (np.arange(SLOTS) * n_ps // SLOTS).astype(np.uint16))

    @classmethod
    def from_bytes(cls, version: int, owners: bytes) -> "SlotMap":
        """From the wire: little-endian uint16 each."""
        return cls(version, np.frombuffer(owners, dtype="<u2").astype(np.uint16))

    def to_bytes(self) -> bytes:
        """The owners for the wire."""
        return self.owners.astype("<u2").tobytes()

    def mask(self, ps: int) -> SlotMask:
        """The slots that this PS owns."""
        return np.equal(self.owners, ps)

    @property
    def n_ps(self) -> int:
        """One more than the largest PS index that owns a slot."""
        return int(self.owners.max()) + 1

    def __eq__(self, other: object) -> bool:
        return (isinstance(other, SlotMap) and self.version == other.version
                and np.array_equal(self.owners, other.owners))

    def __hash__(self) -> int:
        return hash((self.version, self.owners.tobytes()))


def to_bitmap(mask: SlotMask) -> bytes:
    """512 bytes: slot s is bit s%8 of byte s//8."""
    return np.packbits(mask, bitorder="little").tobytes()


def from_bitmap(bitmap: bytes) -> SlotMask:
    """The set of slots in a bitmap of `to_bitmap`."""
    if len(bitmap) * 8 != SLOTS:
        raise ValueError(f"a bitmap of slots has {SLOTS // 8} bytes, not {len(bitmap)}")
    return np.unpackbits(np.frombuffer(bitmap, np.uint8), bitorder="little").astype(np.bool_)


def to_runs(mask: SlotMask) -> list[tuple[int, int]]:
    """The set as runs [lo, hi) of slots, ascending."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], mask, [False])).astype(np.int8)))
    return [(int(lo), int(hi)) for lo, hi in edges.reshape(-1, 2)]


def from_runs(runs: Iterable[Iterable[int]]) -> SlotMask:
    """The set of slots in runs [lo, hi)."""
    mask = np.zeros(SLOTS, np.bool_)
    for lo, hi in runs:
        if not 0 <= lo < hi <= SLOTS:
            raise ValueError(f"[{lo}, {hi}) is no run of slots")
        mask[lo:hi] = True
    return mask
