"""What brain makes of a planner's proposal before anybody chooses from it."""

from dataclasses import replace

from recmesh.plugins.planning import Bounds, Candidate, Overheads, Proposal
from services.brain.domain.model import Change, RolePlan
from services.brain.domain.views import overheads_of, within_bounds
from tests.support.planning import job


def test_sizes_beyond_a_users_limits_are_left_out_in_words() -> None:
    asked = replace(job(), bounds=Bounds(workers=(1, 4)))
    sizes = [Candidate(replace(asked.now, workers=workers), 100.0, 1.0, 2.0) for workers in (3, 4, 5, 60)]
    left = within_bounds(Proposal(asked, tuple(sizes), why="tried"))
    assert [each.allocation.workers for each in left.candidates] == [3, 4]
    assert left.why == "tried; 2 of 4 proposed sizes lie outside of the job's limits and are left out"
    inside = Proposal(asked, tuple(sizes[:2]))
    assert within_bounds(inside) is inside


def test_a_change_that_was_not_carried_out_does_not_make_changes_look_free() -> None:
    def change(verdict: str, *, rate: float, overhead_s: float, **counts: int) -> Change:
        before = (RolePlan("worker", 1, 1.0, 1 << 30),)
        after = tuple(RolePlan(role, count, 1.0, 1 << 30) for role, count in counts.items())
        return Change("p", "job", 0.0, verdict, "", before, after, 100.0, 150.0, rate, overhead_s)

    default = Overheads(workers_s=5.0, ps_s=6.0, resize_s=1.0)
    known = [
        change("kept", rate=150.0, overhead_s=30.0, worker=2),
        change("taken back", rate=80.0, overhead_s=20.0, worker=3),
    ]
    assert overheads_of(known, default=default).workers_s == 25.0
    failed = [change("taken back", rate=0.0, overhead_s=0.0, worker=4)] * 5
    assert overheads_of([*known, *failed], default=default) == replace(default, workers_s=25.0)
    assert overheads_of(failed, default=default) == default
