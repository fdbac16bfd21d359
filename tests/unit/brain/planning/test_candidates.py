"""What a job is offered, and why."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recmesh.plugins.planning import (
    Allocation,
    Bounds,
    ClusterView,
    JobView,
    Overheads,
    Prediction,
    Proposal,
    Reason,
    Resources,
    Shapes,
)
from services.brain.domain.planning.front import hypervolume
from services.brain.domain.planning.grid import axes, enumerated
from services.brain.domain.planning.pareto_greedy import ParetoGreedy
from services.brain.domain.planning.rules import Rules
from services.brain.domain.planning.search import searched
from services.brain.domain.planning.survey import predicted_rate, present, survey
from services.brain.domain.planning.unmeasured import explored
from tests.support.planning import GIB, SMALL, WIDE, Flat, Paper, cluster, job, jobs


def proposed(one: JobView, room: ClusterView | None = None, rules: Rules | None = None, seed: int = 0) -> Proposal:
    return ParetoGreedy(rules).propose(one, room or cluster(), np.random.default_rng(seed))


def test_candidates_are_a_front() -> None:
    found = proposed(job(bounds=WIDE, now=Allocation(4, 2, 8.0, 8.0))).candidates
    assert len(found) > 5
    assert all(a.cost < b.cost and a.gain < b.gain for a, b in itertools.pairwise(found))


def test_what_costs_no_more_is_a_free_gain_and_what_costs_more_is_growth() -> None:
    for each in proposed(job(bounds=WIDE, now=Allocation(4, 2, 8.0, 8.0))).candidates:
        assert each.reason is (Reason.GROW if each.cost > 0.0 else Reason.FREE_GAIN)


def test_a_job_grows_from_too_little_to_almost_the_best_and_then_rests() -> None:
    one = job(bounds=WIDE, now=Allocation(1, 1, 1.0, 1.0), remaining=1e9)
    plenty = cluster(10_000.0)
    planner, rng = ParetoGreedy(), np.random.default_rng(0)
    changes = 0
    while (decision := planner.select([planner.propose(one, plenty, rng)], plenty, rng)[0]).chosen is not None:
        one = replace(one, now=decision.allocation)
        changes += 1
        assert changes < 10, "it does not rest"
    best = predicted_rate(one, Allocation(30, 15, 8.0, 8.0))
    assert predicted_rate(one, one.now) > 0.9 * best


def test_a_job_that_is_too_large_shrinks_and_stays_as_fast() -> None:
    one = job(bounds=WIDE, now=Allocation(30, 15, 8.0, 8.0), throughput=Paper(grad=0.01, upd=0.01, sync=0.0, emb=0.0))
    found = proposed(one)
    assert {each.reason for each in found.candidates} == {Reason.SHRINK}
    smallest = found.candidates[0]
    assert smallest.cost < -100.0
    assert smallest.rate > predicted_rate(one, one.now) / 1.05


@given(st.integers(1, 30), st.integers(1, 15), st.integers(1, 8), st.integers(1, 8))
@settings(max_examples=25, deadline=None)
def test_changes_come_to_an_end(workers: int, ps: int, worker_cpu: int, ps_cpu: int) -> None:
    """No growth undoes a release, nor the other way round."""
    one = job(bounds=WIDE, now=Allocation(workers, ps, float(worker_cpu), float(ps_cpu)), remaining=1e9)
    plenty = cluster(10_000.0)
    planner, rng = ParetoGreedy(), np.random.default_rng(0)
    changes = 0
    while (decision := planner.select([planner.propose(one, plenty, rng)], plenty, rng)[0]).chosen is not None:
        one = replace(one, now=decision.allocation)
        changes += 1
        assert changes < 12, f"it still changes: {decision}"


def test_a_gain_that_a_change_is_not_worth_is_refused_with_its_size() -> None:
    almost = Bounds((9, 10), (4, 4), (4.0, 4.0), (4.0, 4.0))
    saturated = Paper(grad=0.1, upd=6.0, sync=1.0)
    found = proposed(job(now=Allocation(9, 4, 4.0, 4.0), bounds=almost, throughput=saturated))
    assert found.reason is Reason.TOO_SMALL_A_GAIN
    assert "%" in found.why


def test_limits_that_leave_no_choice_are_named() -> None:
    assert proposed(job(bounds=Bounds((2, 2), (1, 1), (2.0, 2.0), (2.0, 2.0)))).reason is Reason.PINNED


def test_a_pin_holds_one_dimension_and_leaves_the_others() -> None:
    found = proposed(job(bounds=replace(SMALL, workers=(2, 2)))).candidates
    assert found
    assert {each.allocation.workers for each in found} == {2}


def test_a_job_outside_of_its_limits_is_moved_inside() -> None:
    found = proposed(job(now=Allocation(9, 1, 2.0, 2.0))).candidates
    assert [(each.allocation.workers, each.reason) for each in found] == [(6, Reason.PINNED)]
    assert "workers 1 to 6" in found[0].why


@pytest.mark.parametrize(
    ("room", "reason"),
    [
        (cluster(0.0), Reason.NO_ROOM),
        (cluster(64.0, quotas={"ann": Resources(0.0, 0.0)}), Reason.OVER_QUOTA),
    ],
    ids=["nothing is free", "the quota is used up"],
)
def test_what_there_is_no_room_for_is_named(room: ClusterView, reason: Reason) -> None:
    tiny = job(now=Allocation(1, 1, 1.0, 1.0), owner="ann")
    found = proposed(tiny, room)
    assert (found.candidates, found.reason) == ((), reason)
    assert "samples/s" in found.why


def test_a_change_that_costs_more_than_it_brings_is_not_offered() -> None:
    slow = Overheads(workers_s=3000.0, ps_s=3000.0, resize_s=3000.0)
    assert proposed(job(overheads=slow, remaining=1e6)).candidates == ()


# ---- what is not known


def test_a_doubted_prediction_is_followed_one_step_and_says_so() -> None:
    measured = replace(SMALL, workers=(1, 2))
    found = proposed(job(throughput=Paper(known=measured)))
    explored = [each for each in found.candidates if each.allocation.workers > 2]
    assert {each.allocation.workers for each in explored} == {3}
    assert {each.reason for each in explored} == {Reason.EXPLORE}
    assert all("nothing like it was measured" in each.why for each in explored)


def test_an_unsure_prediction_is_followed_one_step_only() -> None:
    found = proposed(job(now=Allocation(1, 1, 1.0, 1.0), throughput=Paper(log_sd=0.4))).candidates
    assert found
    assert max(each.allocation.workers for each in found) == 2
    assert max(each.allocation.ps for each in found) == 2


def test_a_gain_within_the_noise_is_none() -> None:
    bounds = Bounds((5, 6), (4, 4), (4.0, 4.0), (4.0, 4.0))
    sure = job(now=Allocation(5, 4, 4.0, 4.0), bounds=bounds)
    assert proposed(sure).candidates
    assert proposed(replace(sure, throughput=Paper(log_sd=0.34))).candidates == ()


def test_a_guess_that_no_step_leads_to_is_refused_as_a_guess() -> None:
    jump = Bounds((2, 2), (1, 1), (1.0, 8.0), (2.0, 2.0), cpu_step=7.0)
    known = replace(jump, worker_cpu=(1.0, 1.0))
    one = job(now=Allocation(2, 1, 1.0, 2.0), bounds=jump, throughput=Paper(known=known))
    assert proposed(one).candidates[0].reason is Reason.EXPLORE, "the next value is a step, however far"
    far = replace(jump, worker_cpu=(1.0, 8.0), cpu_step=1.0)
    without_room = proposed(replace(one, bounds=far), cluster(0.0))
    assert without_room.reason is Reason.NO_ROOM


def test_without_a_model_a_running_job_doubles_both_counts_then_one_then_the_other_then_cores() -> None:
    one = job(now=Allocation(1, 1, 1.0, 1.0), throughput=None, rate=100.0)
    tried: list[tuple[int, int, float, float]] = []
    for seed in range(5):
        (step,) = proposed(replace(one, measured=tuple(Allocation(*each) for each in tried)), seed=seed).candidates
        assert step.reason is Reason.EXPLORE
        to = step.allocation
        tried.append((to.workers, to.ps, to.worker_cpu, to.ps_cpu))
    assert tried == [(2, 2, 1.0, 1.0), (2, 1, 1.0, 1.0), (1, 2, 1.0, 1.0), (1, 1, 2.0, 1.0), (1, 1, 1.0, 2.0)]


class Crowded:
    """Each worker more makes it slower; only 6 are believed."""

    def predict(self, shapes: Shapes) -> Prediction:
        return Prediction(600.0 / shapes.workers, np.zeros(len(shapes)))

    def doubt(self, allocation: Allocation) -> str:
        return "" if allocation.workers == 6 else "only 6 workers were measured"


def test_the_way_back_to_what_was_measured_and_better_is_always_open() -> None:
    here, before = Allocation(6, 1, 1.0, 1.0), Allocation(1, 1, 1.0, 1.0)
    one = job(now=here, throughput=Crowded(), remaining=1e9)
    assert all(each.allocation.workers >= 3 for each in proposed(one).candidates), "a step is no farther"
    back = proposed(replace(one, measured=(before, here))).candidates[-1]
    assert (back.allocation.workers, back.reason, back.why) == (1, Reason.FREE_GAIN, "")
    assert back.cost < 0.0


def unsure(**changes: object) -> JobView:
    bounds = Bounds((5, 6), (4, 4), (4.0, 4.0), (4.0, 4.0))
    one = job(now=Allocation(5, 4, 4.0, 4.0), bounds=bounds, throughput=Paper(log_sd=0.34), remaining=1e12)
    return replace(one, **changes)  # type: ignore[arg-type]  # names of fields


def test_a_job_that_runs_long_tries_what_may_win() -> None:
    (step,) = proposed(unsure()).candidates
    assert (step.reason, step.allocation.workers, step.gain) == (Reason.EXPLORE, 6, 0.0)
    assert "may win" in step.why


def test_what_was_measured_is_not_tried_again() -> None:
    assert proposed(unsure(measured=(Allocation(6, 4, 4.0, 4.0),))).candidates == ()


def test_a_job_that_soon_ends_or_a_full_cluster_tries_nothing() -> None:
    rate = predicted_rate(unsure(), unsure().now)
    assert proposed(unsure(remaining=rate * 180.0)).candidates == ()
    assert proposed(unsure(), cluster(30.0)).candidates == (), "4 cores are more than a tenth of 30"


def test_before_anything_is_measured_nothing_is_tried() -> None:
    assert proposed(job(throughput=None)).reason is Reason.KEEP


# ---- deadlines


def test_a_job_that_is_late_gets_the_cheapest_that_is_in_time() -> None:
    one = job(bounds=WIDE, now=Allocation(1, 1, 1.0, 1.0), remaining=1e6, deadline=3000.0)
    found = proposed(one, cluster(10_000.0)).candidates
    needed = 1e6 / (0.95 * 3000.0 - 3.0)
    assert found[-1].rate >= needed
    assert all(each.rate < needed * 1.01 for each in found[:-1])
    assert "in time" in found[-1].why


def test_a_job_that_is_in_time_is_not_grown_and_gives_back_what_it_does_not_need() -> None:
    one = job(bounds=WIDE, now=Allocation(20, 10, 8.0, 8.0), remaining=1e6, deadline=8000.0)
    found = proposed(one).candidates
    assert found
    assert all(each.cost <= 0.0 for each in found)
    cheapest = found[0]
    assert cheapest.cost < -150.0
    assert cheapest.rate * 0.95 * 8000.0 >= 1e6


def test_a_deadline_that_nothing_meets_is_said_to_be_lost() -> None:
    found = proposed(job(remaining=1e9, deadline=100.0))
    assert {each.reason for each in found.candidates} == {Reason.DEADLINE_LOST}
    assert "no allowed allocation ends in time" in found.candidates[-1].why
    stuck = proposed(job(now=Allocation(6, 4, 4.0, 4.0), remaining=1e9, deadline=100.0))
    assert stuck.reason is Reason.DEADLINE_LOST


# ---- starts


def test_a_queued_job_may_start_smaller_than_it_asks_but_not_at_a_crawl() -> None:
    asked = Allocation(4, 2, 4.0, 4.0, 2 * GIB, 2 * GIB)
    one = job(now=asked, queued=True)
    found = proposed(one).candidates
    assert {each.reason for each in found} == {Reason.STARTED}
    assert found[0].rate >= 0.25 * predicted_rate(one, asked)
    assert found[0].cost < found[-1].cost


def test_a_queued_job_starts_at_a_believed_size() -> None:
    known = replace(SMALL, workers=(1, 2), ps=(1, 2))
    one = job(now=Allocation(1, 1, 4.0, 4.0), queued=True, throughput=Paper(known=known))
    found = proposed(one).candidates
    assert found
    assert all(known.hold(each.allocation) for each in found)


def test_a_queued_job_that_nothing_is_believed_of_starts_as_asked() -> None:
    asked = Allocation(4, 2, 2.0, 2.0)
    found = proposed(job(now=asked, queued=True, throughput=Flat(doubts="nothing like it was measured"))).candidates
    assert found[-1].allocation == asked


def test_a_queued_job_of_unknown_speed_starts_with_what_it_asks_or_a_part_of_it() -> None:
    one = job(now=Allocation(4, 2, 2.0, 2.0), throughput=None, queued=True)
    assert [each.allocation.workers for each in proposed(one).candidates] == [1, 2, 4]
    assert [each.allocation.workers for each in proposed(one, cluster(7.0)).candidates] == [1, 2]
    assert proposed(one, cluster(1.0)).reason is Reason.NO_ROOM


# ---- large limits


def test_a_search_dominates_what_enumeration_dominates() -> None:
    one, room = job(bounds=WIDE, now=Allocation(4, 2, 8.0, 8.0)), cluster(10_000.0)
    of, at = axes(WIDE, one.now), present(one, room)
    exact = survey(one, room, enumerated(of), at)
    worst = float(exact.cost.max())
    found = searched(
        one,
        of,
        lambda grid: survey(one, room, grid, at),
        lambda seen: seen.gain > 0.0,
        np.random.default_rng(0),
        Rules(),
    )
    assert len(found.cost) < 5_000
    share = hypervolume(found.cost, found.gain, worst, 0.0) / hypervolume(exact.cost, exact.gain, worst, 0.0)
    assert 0.98 <= share <= 1.0


def test_a_search_is_the_same_for_the_same_seed_and_starts_from_the_last_front() -> None:
    rules = Rules(exact_up_to=100, population=20, generations=2)
    one = job(bounds=WIDE, now=Allocation(1, 1, 1.0, 1.0))
    assert proposed(one, rules=rules, seed=7) == proposed(one, rules=rules, seed=7)
    exact = proposed(one).candidates
    warm = proposed(replace(one, front=tuple(each.allocation for each in exact)), rules=rules)
    cold = proposed(one, rules=rules)
    assert sum(each in warm.candidates for each in exact) > sum(each in cold.candidates for each in exact)


def test_a_search_stands_pinned_dimensions() -> None:
    pinned = replace(WIDE, ps=(4, 4), ps_cpu=(8.0, 8.0))
    found = proposed(job(bounds=pinned, now=Allocation(1, 4, 1.0, 8.0)), rules=Rules(exact_up_to=10, generations=3))
    assert found.candidates
    assert {each.allocation.ps for each in found.candidates} == {4}


@given(jobs(1))
@settings(max_examples=40, deadline=None)
def test_nothing_is_offered_that_is_worse_than_another(one: JobView) -> None:
    found = proposed(one, cluster(20.0)).candidates
    for a in found:
        assert not any(b.cost <= a.cost and b.gain > a.gain for b in found if b is not a) or one.throughput is None


def test_speed_that_nothing_changes_gives_back_all_it_can() -> None:
    found = proposed(job(now=Allocation(6, 4, 4.0, 4.0), throughput=Flat()))
    least = found.candidates[0].allocation
    assert (least.workers, least.ps, least.worker_cpu, least.ps_cpu) == (1, 1, 1.0, 1.0)


def test_one_that_began_with_all_that_its_limits_allow_tries_less_until_its_speed_is_known() -> None:
    four = Bounds((1, 4), (1, 1), (1.0, 1.0), (1.0, 1.0))
    had, tried = [Allocation(4, 1, 1.0, 1.0)], []
    for _ in range(3):
        asking = job(now=had[0], bounds=four, throughput=None, rate=100.0, measured=tuple(had))
        [step] = explored(asking, cluster()).candidates
        assert step.reason is Reason.EXPLORE
        had.append(step.allocation)
        tried.append(step.allocation.workers)
    assert tried == [2, 3, 1]
    asking = job(now=had[0], bounds=four, throughput=None, rate=100.0, measured=tuple(had))
    assert explored(asking, cluster()).reason is Reason.PINNED
    many = job(now=Allocation(16, 1, 1.0, 1.0), bounds=Bounds((1, 16), (1, 1), (1.0, 1.0), (1.0, 1.0)),
               throughput=None, rate=100.0)  # fmt: skip
    assert explored(many, cluster()).candidates[0].allocation.workers == 4
