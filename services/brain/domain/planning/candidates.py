"""Which allocations a job could have instead of its own (MATH §1, objectives and classes).

Of everything that its limits allow: what is believed, is worth a change, and has room; of that the Pareto front in
(RC, TG).
"""

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from recmesh.plugins.planning import Allocation, Candidate, ClusterView, JobView, Proposal, Reason, doubts
from services.brain.domain.planning.deadline import seconds_left
from services.brain.domain.planning.front import Rows, pareto, thinned, worth
from services.brain.domain.planning.grid import Axes, axes, enumerated, thinned_out
from services.brain.domain.planning.rules import Rules
from services.brain.domain.planning.survey import (
    Mask,
    Present,
    Survey,
    allocation_at,
    predicted_rate,
    present,
    survey,
)
from services.brain.domain.planning.to_learn import to_learn
from services.brain.domain.planning.trust import Reach, Same, reach, within
from services.brain.domain.planning.unmeasured import started
from services.brain.domain.planning.wishes import Deadline, Wishes, deadline_of, wishes
from services.brain.domain.planning.wording import shape

_PEELED = 4
"""Fronts that are looked at, each without the guesses of the one before."""
_IMPRESSION = 6
"""Values of each axis that are looked at to tell what lies beyond reach or room."""


def candidates(job: JobView, cluster: ClusterView, rng: np.random.Generator, rules: Rules) -> Proposal:
    """For a job within its bounds, with a model of its throughput."""
    if not job.queued and job.remaining <= 0.0:
        return Proposal(job, (), Reason.KEEP, "nothing is left to be trained")
    of = axes(job.bounds, job.now)
    if of.size == 1 and not job.queued:
        return Proposal(job, (), Reason.PINNED, "its limits leave no choice")
    if job.queued and job.deadline is None and not job.measured and of.size <= rules.exact_up_to:
        # Nothing of what is drawn or trained matters: many that wait ask for the same, and are answered alike.
        key = (Same(job.throughput), Same(cluster), job.now, job.bounds, job.asked, job.ps_state_bytes, job.owner)
        return replace(_of_all_alike(_Alike(key, job, cluster, rng, rules)), job=job)
    return _looked(job, cluster, of, rng, rules)


@dataclass(frozen=True, slots=True)
class _Alike:
    """A job that waits, equal to all that get the same answer."""

    key: tuple[Hashable, ...]
    job: JobView = field(compare=False)
    cluster: ClusterView = field(compare=False)
    rng: np.random.Generator = field(compare=False)
    rules: Rules


@lru_cache(maxsize=64)
def _of_all_alike(one: _Alike) -> Proposal:
    return _looked(one.job, one.cluster, axes(one.job.bounds, one.job.now), one.rng, one.rules)


def _looked(job: JobView, cluster: ClusterView, of: Axes, rng: np.random.Generator, rules: Rules) -> Proposal:
    # 1. Look at what is believed and has room: at all of it, or at what a search finds.
    at = present(job, cluster)
    asked_rate = predicted_rate(job, job.now) if job.queued else 0.0
    near = reach(job, of)
    seen = _seen(job, cluster, near.axes(of), at, near, rng, rules)
    beyond = _beyond(job, cluster, of, at) if job.deadline is not None else None
    deadline = deadline_of(job, cluster, at, seen, *([beyond] if beyond else []))
    # 2. Keep what is wanted, and of that the front.
    wanted = wishes(job, cluster, at, seen, deadline, asked_rate, rules)
    credible = _credible(seen, near, rules)
    possible = credible & seen.within_free & seen.within_quota
    for _ in range(_PEELED):
        rows = _front(seen, wanted, possible, at, cluster.epsilon, rules)
        chosen = _listed(job, cluster, seen, rows, wanted, near)
        if chosen:
            return Proposal(job, chosen)
        if not len(rows):
            break
        possible[rows] = False  # all guesses: what hides behind them may be known
    if job.queued and (wanted.any & credible).any():  # nothing is believed: as asked
        return started(job, cluster)
    # 3. Without any, one step to learn, where what may be won outweighs what it costs to find out.
    step = to_learn(job, cluster, at, seen, credible, near, rules) if _may_grow(job, deadline) else None
    if step is not None:
        return Proposal(job, (step,))
    # 4. Or else say what stands in the way.
    share = float(seen.gain[credible].max(initial=0.0)) / max(at.rate, 1e-12)
    beyond = beyond or _beyond(job, cluster, of, at)
    elsewhere = wishes(job, cluster, at, beyond, deadline, asked_rate, rules)
    return _nothing(job, cluster, at, beyond, elsewhere, _credible(beyond, near, rules), share)


def _seen(
    job: JobView, cluster: ClusterView, of: Axes, at: Present, near: Reach, rng: np.random.Generator, rules: Rules
) -> Survey:
    if of.size <= rules.exact_up_to:
        return survey(job, cluster, enumerated(of), at, in_room=True)
    from services.brain.domain.planning.search import searched  # pymoo takes a second to import, and is rarely needed

    def usable(seen: Survey) -> Mask:
        return _credible(seen, near, rules) & seen.within_free & seen.within_quota

    return searched(job, of, lambda grid: survey(job, cluster, grid, at), usable, rng, rules)


def _beyond(job: JobView, cluster: ClusterView, of: Axes, at: Present) -> Survey:
    """Of everything that the limits allow a first impression, in reach or not, with room or not."""
    return survey(job, cluster, enumerated(thinned_out(of, _IMPRESSION)), at)


def _credible(seen: Survey, near: Reach, rules: Rules) -> Mask:
    return seen.allowed & near.mask(seen.shapes, seen.log_sd, rules.uncertain_log_sd)


def _may_grow(job: JobView, deadline: Deadline) -> bool:
    return not job.queued and deadline is not Deadline.HELD


def _front(seen: Survey, wanted: Wishes, possible: Mask, at: Present, epsilon: float, rules: Rules) -> Rows:
    """By rising cost and gain. Who can gain gives nothing back; who can be in time needs no more than that; without a
    deadline each must be worth what it costs beyond the one before."""
    growth = wanted.growth & possible
    rows = np.flatnonzero(growth | (wanted.free_gain & possible) if growth.any() else wanted.any & possible)
    if wanted.deadline is Deadline.REACHABLE:
        saved = rows[wanted.in_time[rows]]
        if len(saved):
            rows = rows[seen.cost[rows] <= seen.cost[saved].min()]
    if not len(rows):
        return rows
    front = rows[pareto(seen.cost[rows], seen.gain[rows])]
    if wanted.deadline is not Deadline.REACHABLE and wanted.growth[front].any():
        noise = seen.log_sd[front]
        front = front[worth(at.cost + seen.cost[front], at.rate + seen.gain[front], epsilon, noise)]
    return thinned(front, seen.gain, rules.candidates)


def _listed(
    job: JobView, cluster: ClusterView, seen: Survey, rows: Rows, wanted: Wishes, near: Reach
) -> tuple[Candidate, ...]:
    """Those rows that the model does not doubt, or that lie within a step of what the job has."""
    assert job.throughput is not None
    if not len(rows):
        return ()
    allocations = [allocation_at(job, seen.shapes, row) for row in rows.tolist()]
    here = seen.shapes.at(rows)
    stepped, known = within(near.step, here).tolist(), near.known(here).tolist()
    told = doubts(job.throughput, allocations)
    # What was measured is known, whatever the rest of the model lacks.
    doubted = ["" if is_known else doubt for is_known, doubt in zip(known, told, strict=True)]
    return tuple(
        _candidate(job, cluster, seen, row, allocation, wanted, doubt)
        for row, allocation, is_step, doubt in zip(rows.tolist(), allocations, stepped, doubted, strict=True)
        if not doubt or (is_step and not job.queued)
    )


def _candidate(
    job: JobView, cluster: ClusterView, seen: Survey, row: int, allocation: Allocation, wanted: Wishes, doubt: str
) -> Candidate:
    notes = [doubt] if doubt else []
    if job.queued:
        reason = Reason.STARTED
    elif doubt:
        reason = Reason.EXPLORE
    elif wanted.growth[row]:
        reason = Reason.GROW
    else:
        reason = Reason.FREE_GAIN if wanted.free_gain[row] else Reason.SHRINK
    if wanted.deadline is Deadline.LOST:
        reason = Reason.DEADLINE_LOST
        notes.append(_lateness(job, cluster, float(seen.rate[row])))
    elif wanted.deadline is Deadline.REACHABLE:
        notes.append("in time" if wanted.in_time[row] else "not yet in time, but sooner")
    elif wanted.deadline is Deadline.HELD:
        notes.append("still in time")
    return Candidate(
        allocation, float(seen.rate[row]), float(seen.gain[row]), float(seen.cost[row]), reason, "; ".join(notes)
    )


def _lateness(job: JobView, cluster: ClusterView, rate: float) -> str:
    left = max(0.0, seconds_left(job, cluster.now))
    return f"no allowed allocation ends in time: {job.remaining / rate:,.0f} s are needed where {left:,.0f} s are left"


def _nothing(
    job: JobView, cluster: ClusterView, at: Present, seen: Survey, wanted: Wishes, credible: Mask, share: float
) -> Proposal:
    """Why there is no candidate, from the worst news to the best; `share` is the best gain within reach and room."""
    if wanted.deadline is Deadline.LOST:
        return Proposal(job, (), Reason.DEADLINE_LOST, _lateness(job, cluster, at.rate or float(seen.rate.max())))
    better = np.flatnonzero(wanted.any & credible & ~(seen.within_free & seen.within_quota))
    if len(better):
        best = better[int(seen.gain[better].argmax())]
        if seen.within_free[better].any():
            return Proposal(job, (), Reason.OVER_QUOTA, f"{_missed(job, at, seen, best)} is beyond its owner's quota")
        return Proposal(job, (), Reason.NO_ROOM, f"{_missed(job, at, seen, best)} is more than what is free")
    doubted = np.flatnonzero(wanted.any & seen.allowed)
    if len(doubted):
        best = doubted[int(seen.gain[doubted].argmax())]
        why = f"{_missed(job, at, seen, best)} is a guess: {_guess(job, seen, best)}"
        return Proposal(job, (), Reason.UNCERTAIN, why)
    if share > 0.001:
        why = f"the best gains {share:.1%}, and not enough for what it costs"
        return Proposal(job, (), Reason.TOO_SMALL_A_GAIN, why)
    return Proposal(job, (), Reason.KEEP, "nothing within its limits is better")


def _missed(job: JobView, at: Present, seen: Survey, row: np.intp) -> str:
    """The allocation that is not to be had, and what it would bring."""
    allocation = allocation_at(job, seen.shapes, int(row))
    gain = f", {seen.rate[row] / at.rate - 1.0:+.0%}" if at.rate > 0.0 else ""
    return f"{shape(allocation)} ({seen.rate[row]:,.0f} samples/s{gain})"


def _guess(job: JobView, seen: Survey, row: np.intp) -> str:
    assert job.throughput is not None
    doubt = job.throughput.doubt(allocation_at(job, seen.shapes, int(row)))
    return doubt or f"wrong by a factor of {np.exp(seen.log_sd[row]):.1f} one time in three"
