"""What brain makes of a planner's proposal before anybody chooses from it."""

from dataclasses import replace

from recmesh.plugins.planning import Bounds, Candidate, Proposal
from services.brain.domain.views import within_bounds
from tests.support.planning import job


def test_sizes_beyond_a_users_limits_are_left_out_in_words() -> None:
    asked = replace(job(), bounds=Bounds(workers=(1, 4)))
    sizes = [Candidate(replace(asked.now, workers=workers), 100.0, 1.0, 2.0) for workers in (3, 4, 5, 60)]
    left = within_bounds(Proposal(asked, tuple(sizes), why="tried"))
    assert [each.allocation.workers for each in left.candidates] == [3, 4]
    assert left.why == "tried; 2 of 4 proposed sizes lie outside of the job's limits and are left out"
    inside = Proposal(asked, tuple(sizes[:2]))
    assert within_bounds(inside) is inside
