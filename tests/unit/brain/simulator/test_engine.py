"""The simulated cluster."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from recmesh.plugins.planning import (
    Allocation,
    Candidate,
    ClusterView,
    JobView,
    Planner,
    Proposal,
    Resources,
    Throughput,
)
from services.brain.domain.throughput.observations import Observation
from services.brain.domain.warmstart import WarmStart
from services.brain.simulator.costs import Costs
from services.brain.simulator.engine import simulate
from services.brain.simulator.faults import DAY_S, Faults, Recovery
from services.brain.simulator.job import Job
from services.brain.simulator.metrics import figures
from services.brain.simulator.policy import Policy
from services.brain.simulator.run import Phase
from services.brain.simulator.scenario import Outcome, Settings
from tests.unit.brain.simulator.worlds import FACTS, TRUTH, AsAsked, Growing, Restless, job, settings

INSTANT = Costs(start_s=0.0, workers_s=0.0, ps_s=0.0, resize_s=0.0, checkpoint_s=0.0)


def run(*jobs: Job, planner: Planner | None = None, costs: Costs = INSTANT, of: Settings | None = None) -> Outcome:
    return simulate(jobs, TRUTH, Policy("tested", planner or AsAsked(), costs=costs), of or settings())


def test_a_job_left_alone_takes_its_samples_over_its_speed() -> None:
    (ended,) = run(job(samples=30_000.0)).runs
    assert ended.phase is Phase.SUCCEEDED and ended.ended == pytest.approx(600.0)


def test_checkpoints_stop_training_for_a_while_each() -> None:
    every_minute = settings(faults=Faults(checkpoint_every_s=60.0))
    (ended,) = run(job(samples=30_000.0), costs=replace(INSTANT, checkpoint_s=6.0), of=every_minute).runs
    assert ended.ended == pytest.approx(660.0)


class Misled(AsAsked):
    """Believes that with six workers and one server a job is ten times as fast; it is slower than with 2 + 2."""

    def propose(self, job: JobView, cluster: ClusterView, rng: np.random.Generator) -> Proposal:
        to = replace(job.now, workers=6, ps=1)
        if job.queued or job.now == to:
            return super().propose(job, cluster, rng)
        self.views.append(job)
        return Proposal(job, (Candidate(to, 1000.0, 1.0, 0.0),))


@pytest.mark.parametrize("takes_back", [True, False])
def test_what_made_a_job_slower_is_undone_and_not_tried_again_for_an_hour(takes_back: bool) -> None:
    """2 + 2 trains 100 samples a second, 6 + 1 trains 86."""
    policy = Policy("tested", Misled(), costs=INSTANT, takes_back=takes_back)
    outcome = simulate([job(samples=100.0 * 7000.0, workers=2)], TRUTH, policy, settings())
    (ended,) = outcome.runs
    sizes = [(size.workers, size.ps) for _, size in ended.steps]
    if not takes_back:
        assert sizes == [(2, 2), (6, 1)] and not ended.tried
        return
    assert sizes == [(2, 2), (6, 1), (2, 2), (6, 1), (2, 2)] and ended.taken_back == 2
    first, second = (at for at, size in ended.steps if size.ps == 1)
    assert second - first > 3600.0 and {change.verdict for change in ended.tried} == {"taken back"}
    assert ended.ended < 7100.0


def test_a_start_takes_its_time_and_uses_nothing_meanwhile() -> None:
    outcome = run(job(samples=30_000.0), costs=replace(INSTANT, start_s=60.0))
    (ended,) = outcome.runs
    start_s = ended.ended - 600.0
    assert 20.0 < start_s < 180.0
    held = sum((end - begin) * cpu for begin, end, cpu, _ in outcome.held)
    used = sum((end - begin) * cpu for begin, end, cpu, _ in outcome.used)
    assert held == pytest.approx(3.0 * ended.ended) and used == pytest.approx(2.0 * 600.0)


def test_a_job_without_room_waits_for_the_one_before_it() -> None:
    big = replace(job("b", at=10.0), asked=FACTS.asked(6))
    outcome = run(replace(job("a"), asked=FACTS.asked(6)), big, of=settings(nodes=2))
    first, second = outcome.runs
    assert second.started == pytest.approx(first.ended)
    assert figures(outcome).wait_mean_s == pytest.approx((first.ended - 10.0) / 2)


def test_a_small_job_passes_a_large_one_that_waits() -> None:
    large = [replace(job(name, at=at), asked=FACTS.asked(6)) for name, at in (("a", 0.0), ("b", 1.0))]
    outcome = run(*large, job("c", at=2.0), of=settings(nodes=2 + 1))
    assert outcome.runs[2].started == 2.0 < outcome.runs[1].started


def test_a_job_that_no_cluster_holds_ends_as_waiting_and_stops_nobody() -> None:
    wide = replace(job("wide"), asked=replace(FACTS.asked(1), worker_cpu=16.0))
    outcome = run(wide, job("b", at=1.0))
    assert [each.phase for each in outcome.runs] == [Phase.QUEUED, Phase.SUCCEEDED]
    assert figures(outcome).jcr == 0.5


def test_until_cuts_jobs_that_have_not_ended() -> None:
    outcome = run(job(), of=settings(until_s=300.0))
    (cut,) = outcome.runs
    assert cut.phase is Phase.RUNNING and cut.done == pytest.approx(300.0 * 50.0)
    assert outcome.ended_at == 300.0 and math.isnan(figures(outcome).jct_mean_s)


def test_a_change_starts_beside_the_job_and_pauses_it_once() -> None:
    (ended,) = run(job(samples=60_000.0), planner=Growing(2), costs=replace(INSTANT, start_s=30.0, workers_s=10.0)).runs
    assert ended.changes == 1 and ended.allocation is not None and ended.allocation.workers == 2
    (begin, _), (changed, size) = ended.steps
    assert size.workers == 2 and 3.0 < ended.paused_s < 30.0
    trained_before = 50.0 * (changed - ended.paused_s - begin)  # it went on until the pause
    rate = 100 * 2 / 3
    assert ended.ended == pytest.approx(changed + (60_000.0 - trained_before) / rate)


def test_a_scheduler_that_stops_jobs_pays_its_own_span() -> None:
    stopping = Costs(start_s=0.0, stop_s=(600.0, 1800.0))
    (ended,) = run(job(samples=60_000.0), planner=Growing(2), costs=stopping).runs
    assert 600.0 <= ended.paused_s <= 1800.0


def test_brain_is_told_what_changes_really_cost() -> None:
    planner = Growing(3)
    run(job(samples=90_000.0), planner=planner, costs=Costs(start_s=0.0, workers_s=100.0))
    told = [view.overheads.workers_s for view in planner.views]
    assert told[0] == 1.0 and told[-1] > 30.0


def test_a_planner_sees_only_sizes_that_the_job_has_had() -> None:
    seen: list[list[Observation]] = []

    def note(
        found: Sequence[Observation], *, now: float, shared_batch: bool, prior: Throughput | None
    ) -> Throughput | None:
        seen.append(list(found))
        assert prior is None and all(each.at <= now for each in found)
        return None

    policy = Policy("tested", Growing(3), learn=note, costs=INSTANT)
    simulate([job(samples=90_000.0)], TRUTH, policy, settings())
    sizes = [sorted(each.workers for each in found) for found in seen]
    assert sizes[0] == [1] and sizes[-1] == [1, 2, 3]
    truth = {workers: 100 * workers / (workers + 1) for workers in (1, 2)}
    for each in seen[-1]:
        if each.workers in truth:
            assert each.samples_per_s == pytest.approx(truth[each.workers], rel=0.1)
            assert each.samples_per_s != truth[each.workers]


def test_a_job_like_one_that_ended_begins_where_that_one_was() -> None:
    policy = Policy("tested", Growing(4), warm=WarmStart(), costs=INSTANT)
    jobs = [job("a", samples=90_000.0, owner="ann"), job("b", at=5_000.0, samples=80_000.0, owner="ann")]
    first, second = simulate(jobs, TRUTH, policy, settings()).runs
    assert first.first == jobs[0].asked
    assert second.first is not None and second.first.workers == 4


def test_a_dead_worker_costs_its_share_and_a_dead_server_a_rollback() -> None:
    faults = Faults(death_per_day=0.9, checkpoint_every_s=600.0)
    outcome = run(job(samples=DAY_S * 50.0), of=settings(faults=faults), costs=Costs())
    (ended,) = outcome.runs
    assert ended.phase is Phase.SUCCEEDED and ended.faults > 0 and ended.lost > 0
    assert ended.ended > DAY_S


def test_without_recovery_the_first_death_is_the_end() -> None:
    faults = Faults(death_per_day=0.5, recovery=Recovery.NONE)
    jobs = [job(str(n), samples=DAY_S * 50.0) for n in range(60)]
    outcome = run(*jobs, of=settings(nodes=40, faults=faults))
    assert figures(outcome).jcr == pytest.approx(0.5**2, abs=0.15)  # two processes for a day


def test_a_job_that_is_restarted_too_often_has_failed() -> None:
    faults = Faults(death_per_day=0.999999, recovery=Recovery.RESTART, max_restarts=2)
    (ended,) = run(job(samples=10 * DAY_S * 50.0), of=settings(faults=faults)).runs
    assert ended.phase is Phase.FAILED and ended.restarts == 2


FAILING = Faults(node_failure_per_day=0.99, repair_s=1800.0, checkpoint_every_s=600.0)


def test_a_node_that_fails_takes_all_that_it_holds_and_is_away_until_it_is_repaired() -> None:
    (ended,) = run(job(samples=2 * DAY_S * 50.0), of=settings(nodes=1, faults=FAILING)).runs
    assert ended.phase is Phase.SUCCEEDED and ended.requeued == ended.faults >= 3
    assert 0 < ended.lost <= ended.requeued * 600.0 * 50.0 * (1 + 1e-9)
    assert ended.ended == pytest.approx(2 * DAY_S + ended.requeued * 1800.0 + ended.lost / 50.0)


def test_what_a_failed_node_held_goes_on_elsewhere() -> None:
    (ended,) = run(job(samples=2 * DAY_S * 50.0), of=settings(nodes=3, faults=FAILING)).runs
    assert ended.phase is Phase.SUCCEEDED and ended.faults > ended.requeued == 0 and ended.lost > 0


def test_a_fleet_that_loses_nodes_has_less_room_meanwhile() -> None:
    jobs = [job(f"j{n}", samples=DAY_S * 50.0, workers=2) for n in range(6)]
    calm, failing = (run(*jobs, of=settings(nodes=3, faults=faults)) for faults in (Faults(), FAILING))
    assert figures(failing).jct_mean_s > figures(calm).jct_mean_s + 1800.0
    assert {each.phase for each in failing.runs} == {Phase.SUCCEEDED}
    assert sum(each.requeued for each in failing.runs) > 0
    again = run(*jobs, of=settings(nodes=3, faults=FAILING))
    assert [each.ended for each in again.runs] == [each.ended for each in failing.runs]


@pytest.mark.parametrize(("recovery", "restarts"), [(Recovery.NONE, 0), (Recovery.RESTART, 3)])
def test_without_elastic_recovery_nodes_that_fail_end_a_job(recovery: Recovery, restarts: int) -> None:
    faults = replace(FAILING, recovery=recovery)
    (ended,) = run(job(samples=9 * DAY_S * 50.0), of=settings(nodes=1, faults=faults)).runs
    assert ended.phase is Phase.FAILED and ended.restarts == restarts


def test_a_slow_worker_slows_its_job_by_its_share() -> None:
    slow = Faults(slow_per_day=0.999, slow_to=(0.03, 0.03), slow_for_s=DAY_S)
    of = settings(faults=slow)
    alone, four = (run(job(samples=30_000.0 * 20, workers=n), of=of).runs[0] for n in (1, 4))
    assert alone.ended > 12_000.0
    undisturbed = run(job(samples=30_000.0 * 20, workers=4)).runs[0]
    assert undisturbed.ended <= four.ended <= undisturbed.ended * 4 / 3.03 + 1e-6


jobs_drawn = st.lists(
    st.tuples(st.floats(0, 5_000), st.floats(100, 200_000), st.integers(1, 6)), min_size=1, max_size=12
)  # fmt: skip


@hypothesis_settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    jobs_drawn, st.integers(1, 5), st.integers(0, 99), st.sampled_from(list(Recovery)), st.sampled_from([0.0, 1 - 1e-9])
)
def test_invariants_of_any_life(
    drawn: list[tuple[float, float, int]], nodes: int, seed: int, recovery: Recovery, node_failures: float
) -> None:
    """Never more than the nodes have; work conserved; every job has ended or is said not to have."""
    jobs = [job(f"j{n}", at=at, samples=samples, workers=w) for n, (at, samples, w) in enumerate(sorted(drawn))]
    faults = Faults(0.3, 0.3, slow_for_s=300.0, recovery=recovery, node_failure_per_day=node_failures)
    of = settings(nodes=nodes, seed=seed, faults=faults)
    outcome = run(*jobs, planner=Restless(), costs=Costs(), of=of)
    assert len(outcome.runs) == len(jobs)
    for each in outcome.runs:
        assert each.trained - each.lost == pytest.approx(each.done, rel=1e-6, abs=1e-3)
        assert -1e-6 <= each.done <= each.job.samples * (1 + 1e-9) + 1e-6
        if each.phase is Phase.SUCCEEDED:
            assert each.done == each.job.samples and each.ended >= each.job.arrival_s
        else:
            assert each.phase is Phase.QUEUED or (each.phase is Phase.FAILED and recovery is not Recovery.ELASTIC)
        assert each.worker_pods.count == each.ps_pods.count == 0
    _never_over(outcome)


def _never_over(outcome: Outcome) -> None:
    for column, most in ((2, outcome.total.cpu), (3, outcome.total.memory_bytes)):
        rows = np.array(outcome.held).reshape(-1, 4)
        at = np.concatenate([rows[:, 0], rows[:, 1]])
        step = np.concatenate([rows[:, column], -rows[:, column]])
        order = np.lexsort((step, at))  # at one moment, what is given back comes first
        assert np.cumsum(step[order]).max(initial=0.0) <= most * (1 + 1e-9) + 1e-6


@hypothesis_settings(max_examples=15, deadline=None)
@given(jobs_drawn, st.integers(0, 99))
def test_one_seed_one_answer(drawn: list[tuple[float, float, int]], seed: int) -> None:
    jobs = [job(f"j{n}", at=at, samples=samples, workers=w) for n, (at, samples, w) in enumerate(sorted(drawn))]
    of = settings(seed=seed, faults=Faults(0.3, 0.3))
    once, again = (run(*jobs, planner=Restless(), costs=Costs(), of=of) for _ in range(2))
    assert once.held == again.held and once.used == again.used and once.reasons == again.reasons
    assert [each.ended for each in once.runs] == pytest.approx([each.ended for each in again.runs], nan_ok=True)


def test_two_policies_meet_the_same_faults() -> None:
    of = settings(faults=Faults(0.9), nodes=10)
    jobs = [job(str(n), samples=DAY_S * 50.0) for n in range(5)]
    one, other = run(*jobs, of=of), run(*jobs, planner=Growing(1), of=of)
    assert [each.faults for each in one.runs] == [each.faults for each in other.runs]
    assert sum(each.faults for each in one.runs) > 0


def test_a_larger_cluster_never_lets_a_static_job_wait_longer() -> None:
    jobs = [replace(job(str(n), at=float(n)), asked=FACTS.asked(3)) for n in range(12)]
    waits = [figures(run(*jobs, of=settings(nodes=n))).wait_mean_s for n in (2, 4, 16)]
    assert waits == sorted(waits, reverse=True) and waits[-1] == 0.0


def test_the_size_is_kept_when_its_nodes_have_no_room_for_another() -> None:
    small = Settings((Resources(4.0, 1e12),), seed=0)
    (ended,) = run(job(samples=60_000.0), planner=Growing(2), of=small).runs
    assert ended.no_node == 0 and ended.changes == 0  # the sum says so already: 3 of 4 cores are held
    assert isinstance(ended.allocation, Allocation) and ended.allocation.workers == 1
