"""Which candidate each job of a cluster gets (MATH §1, selection).

By falling priority of the user, and within one priority in this order: moves into limits; free gains; what saves a
deadline; queued jobs, each with what is most worth; growth by RE·WG; then what is left goes, step by step, to who gains
most by more; at last one step for each job that must learn. Releases need no room. What is given back is free at the
next decision only.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from recmesh.plugins.planning import Candidate, ClusterView, Decision, Floats, JobView, Proposal, Reason
from services.brain.domain.planning.deadline import seconds_left
from services.brain.domain.planning.in_order import decided, room_for
from services.brain.domain.planning.knapsack import NONE, Choice, Options, best_choice
from services.brain.domain.planning.room import Room
from services.brain.domain.planning.weights import base_rate, log_weight, relative_gain, remaining_s

UPGRADES = 4
"""Rounds in which what is left is given out."""


@dataclass(slots=True)
class _Entry:
    """A job with its candidates and what they need and are worth."""

    proposal: Proposal
    candidates: tuple[Candidate, ...]
    need: list[tuple[float, ...]]
    gain: list[float]
    """TG/Ψ_now."""
    log_weight: list[float]
    chosen: int = NONE
    note: str = ""

    @property
    def job(self) -> JobView:
        return self.proposal.job

    @property
    def candidate(self) -> Candidate | None:
        return None if self.chosen == NONE else self.candidates[self.chosen]


def select(proposals: Sequence[Proposal], cluster: ClusterView) -> list[Decision]:
    """One decision per proposal, in its order."""
    room = room_for(proposals, cluster)
    entries = [_entry(proposal, cluster, room) for proposal in proposals]
    by_name = sorted((entry for entry in entries if entry.candidates), key=lambda entry: entry.job.job_id)
    for priority in sorted({entry.job.priority for entry in by_name}, reverse=True):
        _level([entry for entry in by_name if entry.job.priority == priority], cluster, room)
    return [decided(entry.proposal, entry.candidate, room, entry.note) for entry in entries]


def _level(entries: Sequence[_Entry], cluster: ClusterView, room: Room) -> None:
    """All jobs of one priority."""
    running = [entry for entry in entries if not entry.job.queued]
    _first_fit(running, room, lambda entry, k: entry.candidates[k].reason is Reason.PINNED)
    free = sorted(running, key=lambda entry: (-_best_free_gain(entry), entry.job.job_id))
    _first_fit(free, room, lambda entry, k: entry.candidates[k].cost <= 0.0 < entry.gain[k])
    _first_fit(_by_urgency(entries), room, lambda entry, k: _saves(entry, k, cluster.now))
    _best([entry for entry in entries if entry.job.queued and entry.chosen == NONE], room, lambda entry, k: True)
    _best([entry for entry in running if entry.chosen == NONE], room, lambda entry, k: _grows(entry, k))
    _upgrade(entries, room)
    _first_fit(running, room, lambda entry, k: entry.gain[k] == 0.0 < entry.candidates[k].cost)
    for entry in running:
        if entry.chosen == NONE:
            entry.chosen = next((k for k, each in enumerate(entry.candidates) if each.reason is Reason.SHRINK), NONE)


def _entry(proposal: Proposal, cluster: ClusterView, room: Room) -> _Entry:
    job, listed = proposal.job, proposal.candidates
    if not listed:
        return _Entry(proposal, (), [], [], [])
    base = base_rate(job)
    seconds = np.array([remaining_s(job, each, base, cluster.horizon_s) for each in listed])
    return _Entry(
        proposal,
        listed,
        [room.need(job, each.allocation) for each in listed],
        [relative_gain(job, each, base) for each in listed],
        log_weight(seconds, cluster.rho).tolist(),
    )


def _first_fit(entries: Iterable[_Entry], room: Room, which: Callable[[_Entry, int], bool]) -> None:
    """Each job in turn gets the last of those candidates that fits: the one that gains most."""
    for entry in entries:
        if entry.chosen != NONE:
            continue
        for k in reversed(range(len(entry.candidates))):
            if which(entry, k) and room.holds(entry.job.owner, entry.need[k]):
                room.take(entry.job.owner, entry.need[k])
                entry.chosen = k
                break


def _best(entries: Sequence[_Entry], room: Room, which: Callable[[_Entry, int], bool]) -> None:
    """Σ RE·WG as large as can be."""
    rows = [(j, k) for j, entry in enumerate(entries) for k in range(len(entry.candidates)) if which(entry, k)]
    if not rows:
        return
    options = Options(
        np.array([j for j, _ in rows], dtype=np.intp),
        scaled(
            np.array([entries[j].gain[k] for j, k in rows]),
            np.array([entries[j].candidates[k].cost for j, k in rows]),
            np.array([entries[j].log_weight[k] for j, k in rows]),
        ),
        [entries[j].need[k] for j, k in rows],
        [entry.job.owner for entry in entries],
    )
    chosen = best_choice(options, room)
    for entry, k in zip(entries, chosen.tolist(), strict=True):
        if k != NONE:
            entry.chosen = rows[k][1]
    _note_ties(entries, options, chosen)


def scaled(gain: Floats, cost: Floats, log_weights: Floats) -> Floats:
    """RE·WG with RE = TG/RC, for RC > 0 and TG > 0, as shares of the largest."""
    logs = np.log(np.maximum(gain, 1e-12)) - np.log(np.maximum(cost, 1e-9)) + log_weights
    return np.asarray(np.exp(np.maximum(logs - logs.max(), -700.0)))


def _note_ties(entries: Sequence[_Entry], options: Options, chosen: Choice) -> None:
    """Who got nothing though another with the same worth did is told the rule: by name."""
    winners = {float(options.rank[k]): entries[int(options.job[k])].job.job_id for k in chosen[chosen >= 0]}
    for rank, j in zip(options.rank.tolist(), options.job.tolist(), strict=True):
        if chosen[j] == NONE and rank in winners:
            entries[j].note = f"worth as much as {winners[rank]}, which comes first by name"


def _upgrade(entries: Sequence[_Entry], room: Room) -> None:
    """What is left goes to the steps up that gain most for their price, weighted as before (eq. 13)."""
    for _ in range(UPGRADES):
        steps = [
            (score, j, k)
            for j, entry in enumerate(entries)
            for k in range(len(entry.candidates))
            if (score := _step_up(entry, k)) is not None
        ]
        steps.sort(key=lambda step: (-step[0], step[1], step[2]))
        moved = False
        for _, j, k in steps:
            entry = entries[j]
            if _step_up(entry, k) is None:
                continue
            old = entry.chosen
            if old != NONE:
                room.take(entry.job.owner, entry.need[old], -1.0)
            if room.holds(entry.job.owner, entry.need[k]):
                room.take(entry.job.owner, entry.need[k])
                entry.chosen, moved = k, True
            elif old != NONE:
                room.take(entry.job.owner, entry.need[old])
        if not moved:
            return


def _step_up(entry: _Entry, k: int) -> float | None:
    """ln(ΔTG/ΔRC·WG) from what the job has to candidate k, up to rounding; None when it is no step up."""
    old = entry.chosen
    if old == NONE and entry.job.queued:
        return None
    gain = entry.gain[k] - (entry.gain[old] if old != NONE else 0.0)
    cost = entry.candidates[k].cost - (entry.candidates[old].cost if old != NONE else 0.0)
    if gain <= 1e-9 or (old != NONE and entry.candidates[old].reason is Reason.PINNED):
        return None
    return round(float(np.log(gain) - np.log(max(cost, 1e-9))) + entry.log_weight[k], 9)


def _grows(entry: _Entry, k: int) -> bool:
    return entry.candidates[k].cost > 0.0 and entry.gain[k] > 0.0


def _best_free_gain(entry: _Entry) -> float:
    return max((gain for gain, each in zip(entry.gain, entry.candidates, strict=True) if each.cost <= 0.0), default=0.0)


def _by_urgency(entries: Iterable[_Entry]) -> list[_Entry]:
    """Jobs with a deadline, the earliest first."""
    dated = [entry for entry in entries if entry.job.deadline is not None]
    return sorted(dated, key=lambda entry: (entry.job.deadline, entry.job.job_id))


def _saves(entry: _Entry, k: int, now: float) -> bool:
    """Whether candidate k, for more, makes the job end in time."""
    each, job = entry.candidates[k], entry.job
    return _grows(entry, k) and each.rate * seconds_left(job, now) >= job.remaining
