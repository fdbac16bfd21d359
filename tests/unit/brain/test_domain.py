import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recmesh.plugins.planning import Resources
from services.brain.domain.explain import explain
from services.brain.domain.first_plan import first_plan
from services.brain.domain.limits import clamped, fitted
from services.brain.domain.model import History, Job, Profile, RoleLimits, RolePlan
from services.brain.domain.similarity import feature_score, likeness
from services.brain.domain.warmstart import WarmStart, blended, most_similar, nearest, smoothed

GIB = 1 << 30
UNBOUNDED = Resources(math.inf, math.inf)
RULE = WarmStart()
NO_LIMITS = [RoleLimits("ps"), RoleLimits("worker", max=64)]


def job(job_id: str = "new", *, model: str = "dcn_v2", rows: int = 1_000_000, owner: str = "ads") -> Job:
    return Job(
        job_id,
        owner=owner,
        model=model,
        framework="torch",
        tables=26,
        dim=16,
        batch_size=4096,
        data_rows=rows,
    )


def past(
    job_id: str,
    workers: int,
    *,
    rows: int = 1_000_000,
    model: str = "dcn_v2",
    outcome: str = "Succeeded",
    ended: float = 0.0,
) -> History:
    plan = (RolePlan("ps", 2, 1.5, GIB), RolePlan("worker", workers, 2.0, 2 * GIB))
    return History(job(job_id, model=model, rows=rows), outcome=outcome, ended=ended, final_plan=plan)


def test_the_golden_warm_start_of_three_jobs_is_13_and_a_half() -> None:
    assert smoothed([10, 12, 16], mu=0.5) == 13.5
    assert smoothed([16, 12, 10], mu=0.5) == 12


def test_halves_go_up() -> None:
    assert [nearest(value) for value in (13.5, 12.5, 12.49)] == [14, 13, 12]


def test_the_most_similar_job_weighs_most() -> None:
    history = [
        past("far", 10, rows=250_000),
        past("near", 16, rows=900_000),
        past("middle", 12, rows=500_000),
    ]
    plan = first_plan(job(), NO_LIMITS, UNBOUNDED, history, RULE)
    assert [each.job_id for each in plan.similar] == ["near", "middle", "far"]
    worker = plan.role("worker")
    assert worker is not None and worker.replicas == 14
    assert plan.source == "similar"
    assert "near (0." in plan.explanation


def test_only_successful_jobs_with_a_plan_are_learned_from_and_never_the_job_itself() -> None:
    bare = History(job("bare"), outcome="Succeeded")
    history = [
        past("failed", 9, outcome="Failed"),
        past("stopped", 9, outcome="Stopped"),
        bare,
        past("new", 9),
    ]
    assert first_plan(job(), NO_LIMITS, UNBOUNDED, history, RULE).source == "default"


def test_a_job_that_is_unlike_is_passed_over_and_said_to_be() -> None:
    other = History(
        Job("other", model="din", framework="keras", tables=2, dim=128, batch_size=64, data_rows=1000),
        outcome="Succeeded",
        final_plan=(RolePlan("worker", 50, 1, GIB),),
    )
    plan = first_plan(job(), NO_LIMITS, UNBOUNDED, [other], RULE)
    assert plan.source == "default"
    assert "none of 1 past job(s)" in plan.explanation


def test_no_more_than_k_jobs_are_used_and_the_newest_of_equals() -> None:
    chosen = most_similar(job(), [past(f"j{n}", n, ended=n) for n in range(1, 10)], RULE)
    assert [history.job.job_id for _, history in chosen] == ["j5", "j6", "j7", "j8", "j9"]


def test_memory_is_rounded_up_to_a_whole_mebibyte() -> None:
    histories = [
        History(job("a"), "Succeeded", final_plan=(RolePlan("ps", 1, 1, size),)) for size in (GIB, GIB + 1)
    ]
    plan = blended(histories, "ps", RULE)
    assert plan is not None and plan.memory_bytes == GIB + (1 << 20)


def test_unknown_features_say_nothing_and_different_ones_say_little() -> None:
    assert feature_score("", "dcn") is None
    assert feature_score(0, 5) is None
    assert feature_score("dcn", "din") == 0
    assert feature_score(100, 200) == pytest.approx(0.5)
    assert likeness(Job("a"), Job("b")).score == 0


@given(st.integers(1, 10**12), st.integers(1, 10**12))
def test_likeness_of_sizes_is_symmetric_and_a_share(a: int, b: int) -> None:
    score = feature_score(a, b)
    assert score is not None and 0 < score <= 1
    assert score == pytest.approx(feature_score(b, a))


def test_a_pin_holds_whatever_the_plan_says() -> None:
    plan, notes = clamped(
        RolePlan("worker", 9, 1, GIB), RoleLimits("worker", max=4, pinned=2, cpu=3, memory_bytes=5)
    )
    assert (plan.replicas, plan.cpu, plan.memory_bytes) == (2, 3, 5)
    assert notes == ("worker pinned to 2", "worker CPU 3 as asked")


def test_a_role_with_max_zero_gets_no_plan_and_defaults_make_two_workers_and_one_ps() -> None:
    limits = [
        RoleLimits("ps"),
        RoleLimits("worker"),
        RoleLimits("data", min=0, max=0),
        RoleLimits("evaluator", min=0),
    ]
    plan = first_plan(job(), limits, UNBOUNDED, [], RULE)
    assert [(role.role, role.replicas) for role in plan.roles] == [("ps", 1), ("worker", 2)]


def test_workers_go_before_parameter_servers_when_little_is_free() -> None:
    roles = [RolePlan("ps", 2, 1, GIB), RolePlan("worker", 4, 1, GIB)]
    limits = {"ps": RoleLimits("ps"), "worker": RoleLimits("worker")}
    bounded = fitted(roles, limits, Resources(4, math.inf))
    assert [role.replicas for role in bounded.roles] == [2, 2]
    bounded = fitted(roles, limits, Resources(math.inf, 2 * GIB))
    assert [role.replicas for role in bounded.roles] == [1, 1]


def test_sizes_are_not_cut_to_what_is_free_at_the_moment() -> None:
    roles = [RolePlan("ps", 1, 1, GIB), RolePlan("worker", 3, 1, GIB)]
    limits = {"ps": RoleLimits("ps", cpu=1), "worker": RoleLimits("worker")}
    tight = fitted(roles, limits, Resources(0.1, math.inf))
    assert [(role.replicas, role.cpu) for role in tight.roles] == [(1, 1), (1, 1)]
    assert "starts all the same" in tight.notes[-1]


limit = st.builds(
    lambda role, low, more, pin, cpu: RoleLimits(
        role, min=low, max=low + more, pinned=low if pin else None, cpu=cpu
    ),
    st.just("worker"),
    st.integers(0, 5),
    st.integers(0, 5),
    st.booleans(),
    st.sampled_from([0.0, 0.5, 2.0]),
)


@given(limit, st.integers(1, 40), st.floats(0.1, 100), st.floats(0.1, 8))
def test_a_plan_never_leaves_its_limits_and_fits_what_is_free_if_that_can_be(
    bound: RoleLimits, wanted: int, free_cpu: float, cpu: float
) -> None:
    plan, _ = clamped(RolePlan("worker", wanted, cpu, GIB), bound)
    (role,) = fitted([plan], {"worker": bound}, Resources(free_cpu, math.inf)).roles
    assert bound.min <= role.replicas <= bound.max
    assert bound.pinned is None or role.replicas == bound.pinned
    assert role.cpu == (bound.cpu or cpu)
    assert role.replicas * role.cpu <= free_cpu + 1e-6 or role.replicas in (bound.min, bound.pinned)


def test_an_explanation_names_where_the_time_goes() -> None:
    profile = Profile("new", at=1, workers=2, ps=1, samples_per_s=1234, data_s=0.1, compute_s=0.7, push_s=0.2)
    text = explain(first_plan(job(), NO_LIMITS, UNBOUNDED, [], RULE), [profile])
    assert "1,234 samples/s" in text
    assert "most goes to compute" in text
    assert explain(None, []) == "No plan was asked for. It has sent no profile yet."


def test_a_first_plan_stays_within_what_is_left_of_the_quota_and_says_so() -> None:
    limits = [RoleLimits("ps"), RoleLimits("worker", max=64)]
    plan = first_plan(job(), limits, UNBOUNDED, [past("a", 12)] * 3, RULE, quota=Resources(8.0, 64 * GIB))
    counts = {role.role: role.replicas for role in plan.roles}
    assert counts == {"ps": 2, "worker": 2} and "worker 12 → 2 (what is left of the owner's quota)" in plan.explanation


def test_workers_with_accelerators_are_no_more_than_accelerators_are_free() -> None:
    limits = [RoleLimits("ps"), RoleLimits("worker", max=64, gpu=1.0, gpu_kind="a100")]
    plan = first_plan(job(), limits, Resources(999.0, 999 * GIB, {"a100": 3.0}), [past("a", 12)] * 3, RULE)
    worker = plan.role("worker")
    assert worker is not None and (worker.replicas, worker.gpu, worker.gpu_kind) == (3, 1.0, "a100")
    none = first_plan(job(), limits, Resources(999.0, 999 * GIB), [past("a", 12)] * 3, RULE)
    assert none.role("worker").replicas == 1 and "more than what is free" in none.explanation  # type: ignore[union-attr]  # always there
