"""What the environment may say of planning, and how wrong words are refused."""

import pytest

from recmesh.plugins.planning import Resources
from recmesh.runtime.errors import InvalidArgument
from services.brain.__main__ import planner, policy, pool, quotas
from services.brain.config import BrainSettings


def settings(**env: str) -> BrainSettings:
    return BrainSettings.from_env({f"RECMESH_{name}": value for name, value in env.items()}, "RECMESH_")


def test_planner_quotas_and_bounds_come_from_the_environment() -> None:
    given = settings(
        PLANNER="optimus", QUOTAS='{"ads": {"cpu": 64, "memory_gib": 2, "gpus": {"a100": 4}}}', CPU_MIN="1",
        CPU_MAX="16", PLAN_EPSILON="0.1",
    )
    made = policy(given)
    assert planner(given).name == "optimus" and planner(settings()).name == "pareto-greedy"
    assert quotas(given) == {"ads": Resources(64.0, 2.0 * (1 << 30), {"a100": 4.0})}
    assert (made.sizes.least, made.sizes.most, made.epsilon) == (1.0, 16.0, 0.1)


def test_a_mesh_whose_jobs_never_ask_by_themselves_is_planned_as_if_they_asked_at_the_usual_interval() -> None:
    assert policy(settings(PLAN_INTERVAL_S="0")).interval_s == policy(settings()).interval_s == 180.0
    assert policy(settings(PLAN_INTERVAL_S="60")).interval_s == 60.0


def test_a_planner_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(InvalidArgument) as refused:
        planner(settings(PLANNER="nope"))
    [violation] = refused.value.violations
    assert violation.path == "RECMESH_PLANNER" and "pareto-greedy" in violation.reason


@pytest.mark.parametrize(
    ("given", "path"),
    [('{"ads": {"cpu": -1, "memory_gib": 1}}', "RECMESH_QUOTAS.ads.cpu"), ('{"ads"', "RECMESH_QUOTAS")],
)
def test_wrong_quotas_are_refused_by_their_field(given: str, path: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        settings(QUOTAS=given)
    assert [violation.path for violation in refused.value.violations] == [path]


def test_what_may_be_lent_comes_as_json_and_nothing_is_lent_without() -> None:
    assert pool(settings()) is None
    made = pool(settings(LOANS='{"own": 4, "most": 8, "unit": {"gpus": {"a100": 0.25}}, "latency_ms": 25}'))
    assert made is not None
    assert (made.rules.own, made.rules.most, made.rules.most_draining) == (4, 8, 4)
    assert made.unit == Resources(1.0, 0.0, {"a100": 0.25})
    assert made.tolerance.goal_s == 0.025


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ('{"own": -1, "most": 1}', "RECMESH_LOANS.own"), ('{"own": 1}', "RECMESH_LOANS.most"),
        ('{"own": 1, "most": 1, "unit": {"cpu": 0}}', "RECMESH_LOANS.unit.cpu"), ("4", "RECMESH_LOANS"),
        ('{"own": 1, "most": 1, "step_s": 300}', "RECMESH_LOANS.step_s"),
    ],
)  # fmt: skip
def test_wrong_rules_of_loans_are_refused_by_their_field(given: str, path: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        settings(LOANS=given)
    assert [violation.path for violation in refused.value.violations] == [path]
