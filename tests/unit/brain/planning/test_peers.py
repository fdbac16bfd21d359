"""The planners that others are compared with, and how planners are found."""

import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from recmesh.plugins import registry
from recmesh.plugins.planning import (
    GROUP,
    Allocation,
    ClusterView,
    Decision,
    JobView,
    Planner,
    Reason,
    Resources,
)
from services.brain.domain.planning.built_in import PLANNERS
from services.brain.domain.planning.survey import predicted_rate
from tests.support.planning import SMALL, WIDE, Flat, Paper, cluster, job

NOW = Allocation(2, 1, 2.0, 2.0)


def planned(name: str, *jobs: JobView, room: ClusterView | None = None) -> list[Decision]:
    planner: Planner = registry.load(GROUP, name, PLANNERS)()
    room, rng = room or cluster(), np.random.default_rng(0)
    return list(planner.select([planner.propose(each, room, rng) for each in jobs], room, rng))


def counts(decision: Decision) -> tuple[int, int]:
    return decision.allocation.workers, decision.allocation.ps


@pytest.mark.parametrize("name", ["optimus", "elastic-scheduler"])
def test_a_stepping_planner_changes_one_process_at_a_time_and_no_sizes(name: str) -> None:
    one = job(now=NOW)
    changes = 0
    while (decision := planned(name, one)[0]).chosen is not None:
        moved = abs(decision.allocation.workers - one.now.workers) + abs(decision.allocation.ps - one.now.ps)
        assert moved == 1
        assert (decision.allocation.worker_cpu, decision.allocation.ps_cpu) == (2.0, 2.0)
        one = replace(one, now=decision.allocation)
        changes += 1
        assert changes < 30, "it does not come to rest"
    assert predicted_rate(one, one.now) > predicted_rate(one, NOW)


def test_elastic_scheduler_leaves_parameter_servers_alone() -> None:
    one = job(now=Allocation(6, 1, 2.0, 2.0))
    (decision,) = planned("elastic-scheduler", one)
    assert decision.allocation.ps == 1


def test_elastic_scheduler_gives_back_a_worker_that_brings_nothing() -> None:
    (decision,) = planned("elastic-scheduler", job(now=Allocation(4, 2, 2.0, 2.0), throughput=Flat()))
    assert (counts(decision), decision.reason) == ((3, 2), Reason.SHRINK)


def test_optimus_gives_the_last_cores_to_the_job_whose_end_comes_closer_by_most() -> None:
    long, short = job("a", NOW, remaining=1e8), job("b", NOW, remaining=1e4)
    first, second = planned("optimus", long, short, room=cluster(2.0))
    assert first.reason is Reason.GROW
    assert (second.reason, second.chosen) == (Reason.NO_ROOM, None)


def test_optimus_breaks_ties_by_name() -> None:
    found = {each.job_id: each for each in planned("optimus", job("b", NOW), job("a", NOW), room=cluster(2.0))}
    assert found["a"].reason is Reason.GROW
    assert found["b"].reason is Reason.NO_ROOM


@pytest.mark.parametrize("name", ["optimus", "elastic-scheduler", "static"])
def test_a_queued_job_starts_as_asked_in_the_order_given(name: str) -> None:
    queued = [job(each, NOW, queued=True) for each in ("b", "a")]
    first, second = planned(name, *queued, room=cluster(7.0))
    assert (first.reason, first.allocation) == (Reason.STARTED, NOW)
    assert (second.reason, second.chosen) == (Reason.QUEUED, None)


def test_static_never_changes_a_job() -> None:
    (decision,) = planned("static", job(now=NOW))
    assert (decision.reason, decision.allocation) == (Reason.KEEP, NOW)


def test_tuned_takes_the_cheapest_of_the_fastest() -> None:
    light = Paper(grad=0.05, upd=0.05)
    one = job(now=Allocation(1, 1, 1.0, 1.0), bounds=WIDE, remaining=1e9, throughput=light)
    (decision,) = planned("tuned", one, room=cluster(1e5))
    best = predicted_rate(one, Allocation(30, 15, 8.0, 8.0))
    assert predicted_rate(one, decision.allocation) >= 0.99 * best
    assert decision.allocation.resources.cpu < 150.0, "of 360"
    (after,) = planned("tuned", replace(one, now=decision.allocation), room=cluster(1e5))
    assert after.reason is Reason.KEEP


def test_tuned_takes_the_fastest_that_there_is_room_for() -> None:
    (decision,) = planned("tuned", job(now=Allocation(1, 1, 1.0, 1.0), bounds=SMALL), room=cluster(3.0))
    assert decision.reason is Reason.GROW
    assert decision.allocation.resources.cpu <= 5.0


@pytest.mark.parametrize("name", ["optimus", "elastic-scheduler"])
def test_without_a_model_a_stepping_planner_adds_a_worker_to_learn(name: str) -> None:
    (decision,) = planned(name, job(now=NOW, throughput=None, rate=10.0))
    assert (counts(decision), decision.reason) == ((3, 1), Reason.EXPLORE)


# ---- by name


def test_all_planners_are_found_by_name() -> None:
    assert set(registry.names(GROUP, PLANNERS)) >= {"pareto-greedy", "optimus", "elastic-scheduler", "static", "tuned"}
    for name in PLANNERS:
        assert registry.load(GROUP, name, PLANNERS).name == name


def test_an_unknown_name_is_refused_with_those_that_exist() -> None:
    with pytest.raises(
        registry.UnknownPlugin, match=r"no 'best' in recmesh.planners: there are elastic-scheduler, opt"
    ):
        registry.load(GROUP, "best", PLANNERS)


class _Point:
    group, value = GROUP, "mine.planner:Mine"

    def __init__(self, name: str, found: object) -> None:
        self.name, self.found = name, found

    def load(self) -> object:
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


def test_a_package_adds_a_planner_and_cannot_replace_one(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [_Point("mine", Flat), _Point("static", Flat), _Point("broken", ImportError("no torch"))]

    def installed(*, group: str, name: str | None = None) -> list[_Point]:
        return [point for point in points if group == GROUP and name in (None, point.name)]

    monkeypatch.setattr(registry, "entry_points", installed)
    assert registry.load(GROUP, "mine", PLANNERS) is Flat
    assert registry.load(GROUP, "static", PLANNERS) is PLANNERS["static"]
    assert "mine" in registry.names(GROUP, PLANNERS)
    with pytest.raises(registry.BrokenPlugin, match="no torch"):
        registry.load(GROUP, "broken", PLANNERS)


def test_the_project_declares_its_planners_as_entry_points() -> None:
    project = tomllib.loads((Path(__file__).parents[4] / "pyproject.toml").read_text())["project"]
    declared = project["entry-points"][GROUP]
    assert declared == {name: f"{each.__module__}:{each.__qualname__}" for name, each in PLANNERS.items()}


def test_quotas_bound_a_stepping_planner() -> None:
    room = cluster(64.0, quotas={"ann": Resources(1.0, 0.0)})
    (decision,) = planned("optimus", job(now=NOW, owner="ann"), room=room)
    assert (decision.reason, decision.chosen) == (Reason.OVER_QUOTA, None)
