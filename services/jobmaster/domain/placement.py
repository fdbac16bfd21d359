"""Which parameter server owns which slot, and the least that must move for another placement.

Only slots whose owner changes move (KALE), and the plan is the same whoever computes it: of two jobmasters, or of
one before and after its restart, both plan the same moves.
"""

import base64
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SLOTS = 4096

Owners = NDArray[np.uint16]
"""[SLOTS]: the PS of each slot."""


@dataclass(frozen=True, slots=True)
class Shift:
    """Slots that go from one PS to another, ascending."""

    source: int
    target: int
    slots: tuple[int, ...]


def even(members: Sequence[int]) -> Owners:
    """Contiguous ranges of equal size (within one slot), in the order of `members`."""
    slots = np.arange(SLOTS, dtype=np.int64)
    return np.asarray(members, dtype=np.uint16)[slots * len(members) // SLOTS]


def counts_of(owners: Owners) -> dict[int, int]:
    """How many slots each owner has."""
    found, counts = np.unique(owners, return_counts=True)
    return dict(zip(found.tolist(), counts.tolist(), strict=True))


def shares(counts: Mapping[int, int], weights: Mapping[int, float]) -> dict[int, int]:
    """How many of all slots each member of `weights` should own: in proportion, each within one slot of it.

    The slots that no whole share covers go first to members that own that many already (`counts`), so that the
    fewest move.
    """
    total = sum(weights.values())
    ideal = {ps: SLOTS * weight / total for ps, weight in weights.items()}
    result = {ps: math.floor(share + 1e-9) for ps, share in ideal.items()}
    parted = [ps for ps in sorted(result) if ideal[ps] - result[ps] > 1e-9] or sorted(result)
    parted.sort(key=lambda ps: (counts.get(ps, 0) <= result[ps], result[ps] - ideal[ps]))
    for ps in parted[: SLOTS - sum(result.values())]:
        result[ps] += 1
    return result


def plan_moves(
    owners: Owners, members: Sequence[int], *, weights: Mapping[int, float] | None = None
) -> list[Shift]:
    """The fewest slots that must move so that `members` own all of them, in proportion to their weights (default 1).

    One entry per pair of source and target; empty when nothing must move. A weight of 0 empties a member.
    """
    weights = {ps: 1.0 if weights is None else weights.get(ps, 1.0) for ps in members}
    if not any(weights.values()):
        weights = dict.fromkeys(members, 1.0)
    counts = counts_of(owners)
    goal = shares(counts, weights)
    missing = [[ps, goal[ps] - counts.get(ps, 0)] for ps in sorted(goal) if goal[ps] > counts.get(ps, 0)]
    result: list[Shift] = []
    for source in sorted(counts):
        leaving = np.flatnonzero(owners == source)[goal.get(source, 0):].tolist()
        while leaving:
            target, room = missing[0]
            taken, leaving = leaving[:room], leaving[room:]
            result.append(Shift(source, target, tuple(taken)))
            missing[0][1] -= len(taken)
            if not missing[0][1]:
                missing.pop(0)
    return result


def moves_to(goal: Owners, owners: Owners) -> list[Shift]:
    """What must move until `goal` owns; one entry per pair of source and target."""
    moving = np.flatnonzero(goal != owners)
    pairs: dict[tuple[int, int], list[int]] = {}
    for slot, source, target in zip(moving.tolist(), owners[moving].tolist(), goal[moving].tolist(), strict=True):
        pairs.setdefault((source, target), []).append(slot)
    return [Shift(source, target, tuple(slots)) for (source, target), slots in sorted(pairs.items())]


def applied(owners: Owners, shifts: Iterable[Shift]) -> Owners:
    """The owners after these moves."""
    result = owners.copy()
    for shift in shifts:
        result[list(shift.slots)] = shift.target
    return result


def encode(owners: Owners) -> str:
    """Base64 of little-endian uint16, as the run record keeps it."""
    return base64.b64encode(owners.astype("<u2").tobytes()).decode()


def decode(text: str) -> Owners:
    """The owners that the run record keeps; none before the first generation."""
    return np.frombuffer(base64.b64decode(text), dtype="<u2").astype(np.uint16)


def bitmap(slots: Iterable[int]) -> bytes:
    """512 bytes, bit s % 8 of byte s // 8."""
    bits = np.zeros(SLOTS, dtype=np.uint8)
    bits[list(slots)] = 1
    return np.packbits(bits, bitorder="little").tobytes()


def slots_of(bits: bytes) -> tuple[int, ...]:
    """The slots of a bitmap, ascending."""
    found = np.unpackbits(np.frombuffer(bits, dtype=np.uint8), bitorder="little")
    return tuple(np.flatnonzero(found).tolist())
