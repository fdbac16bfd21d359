"""What every planner that brain brings along must keep, over clusters and jobs of all kinds."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from examples.planner_plugin.src.fair_share import FairShare
from recmesh.plugins.contract import check_planner
from recmesh.plugins.planning import (
    GROUP,
    Allocation,
    Candidate,
    ClusterView,
    Decision,
    JobView,
    Planner,
    Proposal,
    Reason,
)
from recmesh.plugins.registry import load
from services.brain.domain.planning.built_in import PLANNERS
from tests.support.planning import cluster, job, views

KNOWN: dict[str, type[Planner]] = {**PLANNERS, "the example's fair-share": FairShare}


@pytest.mark.parametrize("name", sorted(KNOWN))
@given(view=views())
@settings(max_examples=25, deadline=None)
def test_a_planner_keeps_its_contract(name: str, view: tuple[list[JobView], ClusterView]) -> None:
    jobs, room = view
    check_planner(load(GROUP, name, KNOWN), jobs, room, budget_s=60.0)


class _Broken:
    """Gives each job one worker more; a test breaks one rule of it."""

    name = "broken"

    def propose(self, job: JobView, cluster: ClusterView, rng: np.random.Generator) -> Proposal:
        to = replace(job.now, workers=job.now.workers + 1)
        return Proposal(job, (Candidate(to, 100.0, 1.0, 2.0),))

    def select(
        self, proposals: Sequence[Proposal], cluster: ClusterView, rng: np.random.Generator
    ) -> Sequence[Decision]:
        return [self.decided(each, rng) for each in proposals]

    def decided(self, proposal: Proposal, rng: np.random.Generator) -> Decision:
        each = proposal.candidates[0]
        return Decision(proposal.job.job_id, each.allocation, Reason.GROW, "more is better", each)


class _Silent(_Broken):
    def decided(self, proposal: Proposal, rng: np.random.Generator) -> Decision:
        return replace(super().decided(proposal, rng), why=" ")


class _Forgetful(_Broken):
    drawn = np.random.default_rng(0)

    def propose(self, job: JobView, cluster: ClusterView, rng: np.random.Generator) -> Proposal:
        to = replace(job.now, workers=job.now.workers + 1)
        return Proposal(job, (Candidate(to, float(self.drawn.random()), 1.0, 2.0),))


class _Counting(_Broken):
    """Keeps what it was asked before."""

    def __init__(self) -> None:
        self.asked = 0

    def propose(self, job: JobView, cluster: ClusterView, rng: np.random.Generator) -> Proposal:
        self.asked += 1
        return Proposal(job, (Candidate(replace(job.now, workers=job.now.workers + 1), float(self.asked), 1.0, 2.0),))


class _Greedy(_Broken):
    """Gives workers more memory."""

    def propose(self, job: JobView, cluster: ClusterView, rng: np.random.Generator) -> Proposal:
        return Proposal(job, (Candidate(replace(job.now, worker_memory_bytes=1 << 40), 100.0, 1.0, 2.0),))


class _Inventive(_Broken):
    def decided(self, proposal: Proposal, rng: np.random.Generator) -> Decision:
        return replace(super().decided(proposal, rng), allocation=Allocation(1, 1, 1.0, 1.0))


@pytest.mark.parametrize(
    ("planner", "free", "workers", "said"),
    [
        (_Broken, 100.0, 6, "lies outside"),
        (_Broken, 1.0, 2, "is taken of the cluster"),
        (_Greedy, 100.0, 2, "other memory of workers"),
        (_Silent, 100.0, 2, "without words"),
        (_Forgetful, 100.0, 2, "another plan"),
        (_Counting, 100.0, 2, "keep no state of calls"),
        (_Inventive, 100.0, 2, "not the allocation of its candidate"),
    ],
)
def test_the_contract_catches_a_planner_that_breaks_it(
    planner: type[Planner], free: float, workers: int, said: str
) -> None:
    with pytest.raises(AssertionError, match=said):
        check_planner(planner, [job("a", Allocation(workers, 1, 2.0, 2.0))], cluster(free))


def test_the_contract_catches_a_planner_that_takes_too_long() -> None:
    with pytest.raises(AssertionError, match="of CPU"):
        check_planner(PLANNERS["static"], [job("a")], cluster(), budget_s=0.0)


def test_the_contract_catches_a_quota_that_is_overdrawn() -> None:
    poor = cluster(100.0, quotas={"ann": cluster(1.0).free})
    with pytest.raises(AssertionError, match="quota of 'ann'"):
        check_planner(_Broken, [job("a", owner="ann")], poor)
