"""Who gets what of a cluster."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recmesh.plugins.planning import (
    Allocation,
    Candidate,
    ClusterView,
    Decision,
    JobView,
    Proposal,
    Reason,
    Resources,
)
from services.brain.domain.planning.knapsack import Choice, Options, best_choice, greedy, total
from services.brain.domain.planning.room import Room
from services.brain.domain.planning.selection import scaled, select
from services.brain.domain.planning.weights import log_weight
from tests.support.planning import job

GOLDEN = {"A": (1000.0, 1e6, ((8, 400), (16, 600))), "B": (2000.0, 1e7, ((8, 900), (24, 1500)))} | {
    "C": (500.0, 2.5e5, ((4, 100), (16, 250)))
}
"""MATH §1: Ψ, samples left, and (CPU, TG) of each plan."""


def golden(rho: float, *, normalised: bool) -> tuple[Options, list[str]]:
    rows = [
        (j, f"{name}{cpu}", cpu, gain / (psi if normalised else 1.0), left / (psi + gain))
        for j, (name, (psi, left, plans)) in enumerate(GOLDEN.items())
        for cpu, gain in plans
    ]
    cost, gain, seconds = (np.array([row[k] for row in rows], dtype=float) for k in (2, 3, 4))
    options = Options(
        np.array([row[0] for row in rows]),
        scaled(gain, cost, log_weight(seconds, rho)),
        [(float(row[2]), 0.0) for row in rows],
        ["", "", ""],
    )
    return options, [row[1] for row in rows]


def room(cpu: float) -> Room:
    return Room.of(ClusterView(0.0, Resources(cpu)), ())


def named(chosen: Choice, names: Sequence[str]) -> list[str]:
    return [names[k] for k in chosen if k >= 0]


def test_half_the_remaining_time_weighs_2_to_the_rho() -> None:
    weights = np.exp(log_weight(np.array([1000.0, 500.0]), 2.5))
    assert weights[0] == pytest.approx(3.162e-8, rel=1e-3)
    assert weights[1] / weights[0] == pytest.approx(5.657, rel=1e-3)


def test_rho_below_0_puts_long_jobs_first() -> None:
    assert np.diff(log_weight(np.array([10.0, 1000.0]), -1.0))[0] > 0.0
    assert np.diff(log_weight(np.array([10.0, 1000.0]), 0.0))[0] == 0.0


def test_the_literal_greedy_takes_c16_where_a8_and_c4_are_worth_more() -> None:
    options, names = golden(2.5, normalised=False)
    literal = greedy(options, room(16.0), options.rank)
    assert named(literal, names) == ["C16"]
    assert named(best_choice(options, room(16.0)), names) == ["A8", "C4"]
    unscaled = 7.70e-6 / total(options, literal)
    assert unscaled * total(options, best_choice(options, room(16.0))) == pytest.approx(1.07e-5, rel=5e-3)


def test_without_weights_both_take_a8_and_b8() -> None:
    options, names = golden(0.0, normalised=False)
    assert named(greedy(options, room(16.0), options.rank), names) == ["A8", "B8"]
    assert named(best_choice(options, room(16.0)), names) == ["A8", "B8"]


def test_a_tie_goes_by_name() -> None:
    """Normalised and without weights A8 + B8 is worth as much as B8 + C4."""
    options, names = golden(0.0, normalised=True)
    assert named(best_choice(options, room(16.0)), names) == ["A8", "B8"]


@st.composite
def cases(draw: st.DrawFn) -> tuple[Options, tuple[float, float]]:
    rows = [
        (j, draw(st.floats(0.01, 10.0)), (float(draw(st.integers(0, 12))), float(draw(st.integers(0, 6)))))
        for j in range(draw(st.integers(1, 5)))
        for _ in range(draw(st.integers(1, 3)))
    ]
    options = Options(
        np.array([row[0] for row in rows]), np.array([row[1] for row in rows]), [r[2] for r in rows], [""] * 5
    )
    return options, (float(draw(st.integers(0, 30))), float(draw(st.integers(0, 12))))


def exact(options: Options, free: tuple[float, float]) -> float:
    """By trying everything."""
    by_job: dict[int, list[int | None]] = {}
    for k, j in enumerate(options.job.tolist()):
        by_job.setdefault(j, [None]).append(k)
    best = 0.0
    for picks in itertools.product(*by_job.values()):
        rows = [k for k in picks if k is not None]
        if all(sum(options.need[k][kind] for k in rows) <= free[kind] for kind in (0, 1)):
            best = max(best, float(sum(options.value[k] for k in rows)))
    return best


@given(cases())
@settings(max_examples=60, deadline=None)
def test_the_choice_fits_and_is_close_to_the_optimum(case: tuple[Options, tuple[float, float]]) -> None:
    options, free = case
    left = Room.of(ClusterView(0.0, Resources(*free)), ())
    chosen = best_choice(options, left)
    rows = [int(k) for k in chosen if k >= 0]
    assert len({int(options.job[k]) for k in rows}) == len(rows)
    for kind in (0, 1):
        taken = sum(options.need[k][kind] for k in rows)
        assert taken <= free[kind]
        assert left.free[kind] == pytest.approx(free[kind] - taken, abs=1.0)
    assert total(options, chosen) >= 0.7 * exact(options, free)


def test_on_random_cases_of_five_jobs_the_choice_is_within_a_percent_of_the_optimum() -> None:
    rng = np.random.default_rng(0)
    shares, literal = [], []
    for _ in range(40):
        value = rng.random(15) * rng.choice([0.1, 1.0, 5.0], 15)
        need = [(float(a), float(b)) for a, b in rng.integers(1, 17, size=(15, 2))]
        options = Options(np.repeat(np.arange(5), 3), value, need, [""] * 5)
        view = ClusterView(0.0, Resources(24.0, 24.0))
        best = exact(options, (24.0, 24.0))
        shares.append(total(options, best_choice(options, Room.of(view, ()))) / best)
        literal.append(total(options, greedy(options, Room.of(view, ()), options.rank)) / best)
    assert np.mean(shares) > 0.99
    assert min(shares) > 0.85
    assert min(literal) < 0.75, "else there is nothing to mend"


# ---- whole selections


def offer(name: str, *plans: tuple[float, float], rate: float = 1000.0, left: float = 1e6, **rest: object) -> Proposal:
    """Candidates of (workers more, gain), one core each, each worker for a price of 1."""
    one: JobView = job(name, Allocation(1, 1, 1.0, 1.0), rate=rate, remaining=left, throughput=None, **rest)
    return Proposal(
        one,
        tuple(
            Candidate(
                Allocation(1 + int(more), 1, 1.0, 1.0),
                rate + gain,
                gain,
                more,
                Reason.GROW if more > 0 else Reason.FREE_GAIN if gain > 0 else Reason.SHRINK,
            )
            for more, gain in plans
        ),
    )


def decided(cpu: float, *offers: Proposal, **rest: object) -> dict[str, Decision]:
    view = ClusterView(0.0, Resources(cpu), **rest)  # type: ignore[arg-type]  # by name, as given
    return {each.job_id: each for each in select(offers, view)}


def workers(decisions: dict[str, Decision]) -> dict[str, int]:
    return {name: each.allocation.workers for name, each in decisions.items()}


def test_what_is_left_goes_to_who_gains_by_more() -> None:
    """RE·WG prefers the small plans; the room that they leave is not left unused."""
    found = decided(10.0, offer("a", (2, 300), (6, 600)), offer("b", (2, 300), (6, 500)))
    assert workers(found) == {"a": 7, "b": 3}
    assert {each.reason for each in found.values()} == {Reason.GROW}


def test_short_jobs_go_first() -> None:
    found = decided(4.0, offer("a", (4, 400), left=1e7), offer("b", (4, 400), left=1e6))
    assert workers(found) == {"a": 1, "b": 5}
    assert found["a"].reason is Reason.NO_ROOM
    assert "4 CPU more, and 0 CPU is free" in found["a"].why


def test_a_tie_goes_by_name_and_the_loser_is_told() -> None:
    found = decided(4.0, offer("b", (4, 400)), offer("a", (4, 400)))
    assert workers(found) == {"b": 1, "a": 5}
    assert "worth as much as a, which comes first by name" in found["b"].why


def test_a_higher_priority_goes_first_whatever_it_is_worth() -> None:
    found = decided(4.0, offer("a", (4, 900)), offer("b", (4, 100), left=1e8, priority=5))
    assert workers(found) == {"a": 1, "b": 5}


def test_a_free_gain_is_taken_on_a_full_cluster() -> None:
    found = decided(0.0, offer("a", (0, 100), (4, 400)))
    assert found["a"].reason is Reason.FREE_GAIN


def test_a_release_is_taken_when_there_is_nothing_to_gain() -> None:
    one = offer("a", rate=1000.0)
    smaller = Candidate(Allocation(1, 1, 0.5, 1.0), 990.0, -10.0, -0.5, Reason.SHRINK)
    found = decided(0.0, Proposal(one.job, (smaller,)))
    assert (found["a"].reason, found["a"].allocation.worker_cpu) == (Reason.SHRINK, 0.5)


def test_what_one_gives_back_is_not_given_out_yet() -> None:
    small = Allocation(1, 1, 1.0, 1.0)
    large: JobView = job("a", Allocation(9, 1, 1.0, 1.0), rate=1000.0, remaining=1e6)
    release = Proposal(large, (Candidate(small, 990.0, -10.0, -8.0, Reason.SHRINK),))
    found = decided(0.0, release, offer("b", (4, 400)))
    assert found["a"].allocation == small
    assert found["b"].reason is Reason.NO_ROOM


def test_an_owner_s_quota_bounds_its_jobs_together() -> None:
    quotas = {"ann": Resources(4.0, 0.0)}
    offers = (offer("a", (4, 400), owner="ann"), offer("b", (4, 300), owner="ann"), offer("c", (4, 100), owner="bob"))
    found = decided(100.0, *offers, quotas=quotas)
    assert workers(found) == {"a": 5, "b": 1, "c": 5}
    assert found["b"].reason is Reason.OVER_QUOTA
    assert "quota" in found["b"].why


def test_a_deadline_that_can_be_saved_goes_before_growth() -> None:
    late = offer("z", (2, 100), (4, 200), left=1e5, deadline=90.0)
    found = decided(4.0, offer("a", (4, 900), left=1e4), late)
    assert workers(found) == {"a": 1, "z": 5}


def test_a_queued_job_starts_before_others_grow_and_is_told_when_it_cannot() -> None:
    waiting = offer("q", (2, 500), queued=True)
    found = decided(4.0, offer("a", (4, 900)), waiting)
    assert found["q"].reason is Reason.STARTED or found["q"].chosen is not None
    assert found["a"].reason is Reason.NO_ROOM
    full = decided(1.0, waiting)
    assert full["q"].reason is Reason.QUEUED
    assert full["q"].chosen is None
