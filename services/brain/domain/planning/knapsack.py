"""At most one option for each job, under what is free of every kind and left in quotas, of the largest total value.

The literal greedy (MATH §1) takes options by value alone, and fell to .52 of the optimum on random cases of five jobs.
Here two greedy orders are tried, by value and by value per share of the room, and then mended: a job moves to a better
option that fits, or one that does not fit is made to by moving other jobs to lesser ones, as long as the sum rises.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from recmesh.plugins.planning import Floats
from services.brain.domain.planning.room import Room

ROUNDS = 8
"""Of mending: each raises the sum, and few are needed."""
EXCHANGES = 48
"""Options that a round tries to make room for, those first that gain most."""

ROWS_PER_ROUND = 1_000_000
"""Moves that a round looks at; with ten thousand jobs options are small against the room, and mending gains little."""

NONE = -1
Choice = NDArray[np.intp]
"""The option of each job, or NONE, (jobs,)."""


@dataclass(frozen=True)
class Options:
    """Columns of shape (n,), by job and then by cost; `need` (n, kinds). Jobs are numbered in the order of names."""

    job: NDArray[np.intp]
    value: Floats
    """RE·WG, on any common scale."""
    need: Sequence[tuple[float, ...]]
    """Beyond what the job holds; nothing negative."""
    owners: Sequence[str]
    """Of each job."""

    @cached_property
    def needs(self) -> Floats:
        """As an array."""
        return np.array(self.need, dtype=np.float64)

    @cached_property
    def owner_codes(self) -> NDArray[np.intp]:
        """A number for each job's owner."""
        codes = {owner: k for k, owner in enumerate(dict.fromkeys(self.owners))}
        return np.array([codes[owner] for owner in self.owners], dtype=np.intp)

    @cached_property
    def rank(self) -> Floats:
        """Value up to rounding, so that equals tie."""
        with np.errstate(divide="ignore"):
            return np.asarray(np.round(np.log(self.value), 9), dtype=np.float64)


def best_choice(options: Options, room: Room) -> Choice:
    """Takes what it chooses from the room."""
    chosen = greedy(options, room, options.rank)
    if len(options.job) == 0:
        return chosen
    _each(options, chosen, room, -1.0)
    denser = greedy(options, room, _density(options, room))
    if total(options, denser) > total(options, chosen) * (1 + 1e-9):
        chosen = denser
    else:
        _each(options, denser, room, -1.0)
        _each(options, chosen, room, 1.0)
    for _ in range(ROUNDS):
        raised = _raise(options, chosen, room)
        if not (_exchange(options, chosen, room) or raised):
            break
    return chosen


def total(options: Options, chosen: Choice) -> float:
    """Σ RE·WG."""
    return float(options.value[chosen[chosen >= 0]].sum())


def greedy(options: Options, room: Room, rank: Floats) -> Choice:
    """By falling rank, whatever fits; of equals the first job by name, then its cheapest (the literal of MATH §1)."""
    chosen = np.full(len(options.owners), NONE, dtype=np.intp)
    jobs, need, owners = options.job.tolist(), options.need, options.owners
    done = [False] * len(owners)
    for k in np.lexsort((options.job, -rank)).tolist():
        job = jobs[k]
        if not done[job] and room.holds(owners[job], need[k]):
            room.take(owners[job], need[k])
            chosen[job] = k
            done[job] = True
    return chosen


def _density(options: Options, room: Room) -> Floats:
    """Value per share of the kind of which it takes most."""
    free = np.maximum(np.array(room.free), 1e-12)
    share = (options.needs / free).max(axis=1)
    with np.errstate(divide="ignore"):
        return np.asarray(np.round(np.log(options.value) - np.log(np.maximum(share, 1e-9)), 9))


def _raise(options: Options, chosen: Choice, room: Room) -> bool:
    """Moves each job to its best option that fits; whether any moved."""
    moved = False
    held = _held(options, chosen)
    better = np.flatnonzero(options.value > held[options.job] * (1 + 1e-9))
    order = better[np.lexsort((-options.value[better], options.job[better]))]
    value, jobs = options.value.tolist(), options.job.tolist()
    for k in order.tolist():
        job = jobs[k]
        old = int(chosen[job])
        if old >= 0 and value[k] <= value[old] * (1 + 1e-9):
            continue
        if old >= 0:
            _take(options, old, room, -1.0)
        if room.holds(options.owners[job], options.need[k]):
            _take(options, k, room)
            chosen[job] = k
            moved = True
        elif old >= 0:
            _take(options, old, room)
    return moved


def _exchange(options: Options, chosen: Choice, room: Room) -> bool:
    """Makes room for options that gain more than what others lose for it; whether any was taken."""
    rise = options.value - _held(options, chosen)[options.job]
    wanted = np.flatnonzero(rise > 1e-9 * options.value.max())
    tries = min(EXCHANGES, max(2, ROWS_PER_ROUND // len(options.job)))
    moved = False
    for k in wanted[np.lexsort((options.job[wanted], -rise[wanted]))][:tries].tolist():
        moved |= _make_room(options, chosen, room, k)
    return moved


def _make_room(options: Options, chosen: Choice, room: Room, k: int) -> bool:
    """Moves others down until k fits, and undoes it when they lose as much as k gains."""
    job = int(options.job[k])
    before = int(chosen[job])
    gain = float(options.value[k]) - (float(options.value[before]) if before >= 0 else 0.0)
    if gain <= 0.0:
        return False
    if before >= 0:
        _take(options, before, room, -1.0)
    undo: list[tuple[int, int]] = []
    while not room.holds(options.owners[job], options.need[k]):
        step = _cheapest_release(options, chosen, room, k, gain)
        if step is None:
            for other, old in reversed(undo):
                _move(options, chosen, room, other, old)
            if before >= 0:
                _take(options, before, room)
            return False
        other, new, loss = step
        undo.append((other, int(chosen[other])))
        _move(options, chosen, room, other, new)
        gain -= loss
    _take(options, k, room)
    chosen[job] = k
    return True


def _cheapest_release(
    options: Options, chosen: Choice, room: Room, k: int, most: float
) -> tuple[int, int, float] | None:
    """The move of another job to a lesser option, or to none, that loses least for what it gives of what k misses."""
    mine = int(options.job[k])
    # 1. Each job that holds something may go to each of its other options, or to none.
    old = np.append(chosen[options.job], chosen)
    new = np.append(np.arange(len(options.job)), np.full(len(chosen), NONE))
    job = np.append(options.job, np.arange(len(chosen)))
    moves = np.flatnonzero((old >= 0) & (old != new) & (job != mine))
    old, new, job = old[moves], new[moves], job[moves]
    value = np.append(options.value, 0.0)  # none is the last row
    needs = np.vstack([options.needs, np.zeros(options.needs.shape[1])])
    loss = value[old] - value[new]
    freed = needs[old] - needs[new]
    # 2. What is missing; of its owner's quota only its owner's jobs can free any.
    owner = options.owners[mine]
    missing = np.maximum(0.0, np.array(options.need[k]) - np.array(room.free))
    short = np.broadcast_to(missing, freed.shape)
    quota = room.quotas.get(owner)
    if quota is not None:
        same = options.owner_codes[job] == options.owner_codes[mine]
        in_quota = np.maximum(0.0, np.array(options.need[k]) - np.array(quota))
        short = np.where(same[:, None], np.maximum(missing, in_quota), missing)
    covered = np.minimum(1.0, np.maximum(0.0, freed) / np.where(short > 0.0, short, np.inf)).sum(axis=1)
    # 3. A lesser option that needs more of another kind is left out: its room would have to be found, too.
    fits = (freed >= 0.0).all(axis=1)
    good = np.flatnonzero((covered > 0.0) & (loss >= 0.0) & (loss < most * (1 - 1e-9)) & fits)
    if not len(good):
        return None
    best = good[int(np.argmin(loss[good] / covered[good]))]
    return int(job[best]), int(new[best]), float(loss[best])


def _held(options: Options, chosen: Choice) -> Floats:
    """Value that each job has."""
    return np.append(options.value, 0.0)[chosen]  # NONE is the last


def _move(options: Options, chosen: Choice, room: Room, job: int, new: int) -> None:
    if chosen[job] >= 0:
        _take(options, int(chosen[job]), room, -1.0)
    if new >= 0:
        _take(options, new, room)
    chosen[job] = new


def _take(options: Options, k: int, room: Room, times: float = 1.0) -> None:
    room.take(options.owners[options.job[k]], options.need[k], times)


def _each(options: Options, chosen: Choice, room: Room, times: float) -> None:
    for k in chosen[chosen >= 0].tolist():
        _take(options, k, room, times)
