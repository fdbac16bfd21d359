"""The contract that every planner must keep, and what this one is for."""

from fair_share import FairShare

from recmesh.plugins.contract import check_planner
from recmesh.plugins.planning import Allocation, Bounds, ClusterView, JobView, Reason, Resources


def job(name: str, workers: int, **rest: object) -> JobView:
    """A job with workers and a server of one core each."""
    return JobView(name, Allocation(workers, 1, 1.0, 1.0), Bounds(workers=(1, 8)), **rest)  # type: ignore[arg-type]


def test_it_keeps_the_contract() -> None:
    """With room for none, one, and all of what the jobs would like."""
    jobs = [job("a", 1), job("b", 8), job("c", 3, queued=True), job("d", 2, owner="ann")]
    for cores in (0.0, 1.0, 4.0, 100.0):
        room = ClusterView(0.0, Resources(cores), quotas={"ann": Resources(0.5)})
        check_planner(FairShare, jobs, room, budget_s=5.0)


def test_the_last_core_goes_to_the_smallest() -> None:
    """Its share counts, not its name."""
    small, large = check_planner(FairShare, [job("s", 1), job("l", 5)], ClusterView(0.0, Resources(1.0)))
    assert (small.reason, small.allocation.workers) == (Reason.GROW, 2)
    assert large.reason is Reason.NO_ROOM
