"""What any planner must keep, for the tests of those who write one: `check_planner(MyPlanner, jobs, cluster, ...)`.

It asserts, and says what was broken and for which job. The same rules hold for brain's own planners.
"""

import time
from collections.abc import Callable, Sequence

import numpy as np

from recmesh.plugins.planning import Candidate, ClusterView, Decision, JobView, Planner, Proposal, Reason, Resources

ROUNDING = 1e-6
"""Of cores and accelerators, and of memory in units of a MiB: sums of many floats."""


def check_planner(
    planner: Callable[[], Planner],
    jobs: Sequence[JobView],
    cluster: ClusterView,
    *,
    seed: int = 0,
    budget_s: float = 5.0,
) -> Sequence[Decision]:
    """Plans, checks everything, and returns what was decided; then plans again with a planner that was used before.

    `budget_s` is CPU time of the process for all jobs together; give it room, as machines differ.
    """
    began = time.process_time()
    proposals, decisions = _planned(planner(), jobs, cluster, seed)
    spent_s = time.process_time() - began
    assert spent_s <= budget_s, f"{len(jobs)} jobs took {spent_s:.2f} s of CPU, {budget_s:g} s are allowed"
    check_explained(jobs, proposals, decisions)
    check_bounds(jobs, proposals)
    check_chosen(proposals, decisions)
    check_room(jobs, decisions, cluster)
    used = planner()
    _planned(used, jobs, cluster, seed + 1)
    assert (proposals, list(decisions)) == _planned(used, jobs, cluster, seed), (
        "the same views and the same seed gave another plan: draw from the generator only, and keep no state of calls"
    )
    return decisions


def check_explained(jobs: Sequence[JobView], proposals: Sequence[Proposal], decisions: Sequence[Decision]) -> None:
    """One proposal and one decision per job, in order, each with a reason and words."""
    assert [each.job.job_id for each in proposals] == [job.job_id for job in jobs], "a proposal per job, in their order"
    assert [each.job_id for each in decisions] == [job.job_id for job in jobs], "a decision per job, in their order"
    for decision in decisions:
        assert isinstance(decision.reason, Reason), f"{decision.job_id}: the reason is {decision.reason!r}"
        assert decision.why.strip(), f"{decision.job_id}: {decision.reason.name} without words"
    for proposal in proposals:
        for each in proposal.candidates:
            numbers = (each.rate, each.gain, each.cost)
            assert all(map(np.isfinite, numbers)), f"{proposal.job.job_id}: numbers of {each} are not finite"


def check_bounds(jobs: Sequence[JobView], proposals: Sequence[Proposal]) -> None:
    """Every candidate lies within the user's limits and leaves accelerators and workers' memory as they are."""
    for job, proposal in zip(jobs, proposals, strict=True):
        for each in proposal.candidates:
            given = each.allocation
            assert job.bounds.hold(given), f"{job.job_id}: {given} lies outside of {job.bounds}"
            assert given.worker_memory_bytes == job.now.worker_memory_bytes, f"{job.job_id}: other memory of workers"
            most = job.bounds.ps_memory_bytes
            assert not most or given.ps_memory_bytes <= max(most, job.now.ps_memory_bytes), (
                f"{job.job_id}: {given.ps_memory_bytes} B for each server, {most} are allowed"
            )
            assert (given.worker_gpus, given.gpu_kind) == (job.now.worker_gpus, job.now.gpu_kind), (
                f"{job.job_id}: other accelerators than its user chose"
            )


def check_chosen(proposals: Sequence[Proposal], decisions: Sequence[Decision]) -> None:
    """What is chosen was proposed; who gets nothing new keeps what it has."""
    for proposal, decision in zip(proposals, decisions, strict=True):
        job = proposal.job
        chosen: Candidate | None = decision.chosen
        if chosen is None:
            assert decision.allocation == job.now, f"{job.job_id}: another allocation, and no candidate for it"
            assert not (job.queued and decision.reason in (Reason.GROW, Reason.SHRINK)), (
                f"{job.job_id}: waits, and is said to {decision.reason.name}"
            )
        else:
            assert chosen in proposal.candidates, f"{job.job_id}: what it gets was not among its candidates"
            assert decision.allocation == chosen.allocation, f"{job.job_id}: not the allocation of its candidate"


def check_room(jobs: Sequence[JobView], decisions: Sequence[Decision], cluster: ClusterView) -> None:
    """All together take no more than what is free, nor an owner's jobs more than its quota; what one gives back does
    not count for another, as it is not free yet."""
    total = Resources()
    by_owner: dict[str, Resources] = {}
    for job, decision in zip(jobs, decisions, strict=True):
        if decision.chosen is None:
            continue
        taken = decision.allocation.resources
        if not job.queued:
            taken = taken.plus(job.now.resources, -1.0)
        taken = Resources(
            max(0.0, taken.cpu),
            max(0.0, taken.memory_bytes),
            {kind: max(0.0, many) for kind, many in taken.gpus.items()},
        )
        total = total.plus(taken)
        by_owner[job.owner] = by_owner.get(job.owner, Resources()).plus(taken)
    _assert_within(total, cluster.free, "the cluster")
    for owner, taken in by_owner.items():
        if owner in cluster.quotas:
            _assert_within(taken, cluster.quotas[owner], f"the quota of {owner!r}")


def _assert_within(taken: Resources, room: Resources, whose: str) -> None:
    forgiven = Resources(
        max(0.0, room.cpu) + ROUNDING,
        max(0.0, room.memory_bytes) + ROUNDING * (1 << 20) + 1.0,
        {kind: max(0.0, room.gpus.get(kind, 0.0)) + ROUNDING for kind in taken.gpus},
    )
    assert taken.within(forgiven), f"{taken} is taken of {whose}, and {room} is free"


def _planned(
    planner: Planner, jobs: Sequence[JobView], cluster: ClusterView, seed: int
) -> tuple[list[Proposal], list[Decision]]:
    rng = np.random.default_rng(seed)
    proposals = [planner.propose(job, cluster, rng) for job in jobs]
    return proposals, list(planner.select(proposals, cluster, rng))
