"""Scaling by the gateway: what is measured and told, what is carried out, and what is left as it is."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from recmesh.runtime.errors import ResourceExhausted, Unavailable
from recmesh.serving.settings import Scaling as Rules
from services.gateway.domain.load import Load, Sample, load_between
from services.gateway.domain.scaling import Decision, Measured, Own, Phases
from services.gateway.domain.statistics import Outcome, Times
from tests.support.gateway import Gateway, gateway, http

RULES = Rules.model_validate({"cn": {"max": 2}, "hn": {"max": 3}})


class Brain:
    """Wants these numbers."""

    def __init__(self, **wanted: int) -> None:
        self.wanted = wanted
        self.asked: list[tuple[float, float]] = []
        self.measured: list[Measured] = []
        self.away = False

    async def __call__(self, measured: Measured) -> Sequence[Decision]:
        if self.away:
            raise Unavailable("brain does not run")
        self.asked.append((measured.arrivals_per_s, measured.window_s))
        self.measured.append(measured)
        return [Decision(kind, self.wanted.get(kind, 1), "FORECAST", "so it is") for kind in measured.loads]


def world(root: Path, brain: Brain, *, rules: Rules = RULES) -> Gateway:
    made = gateway(root, planned=brain)
    made.runtimes.rules = {"ctr": rules}
    made.runtimes.loads = {"ctr": {"cn": Load(1, 0.1, 50.0), "hn": Load(1, 0.6, 50.0)}}
    return made


async def look(made: Gateway) -> None:
    """And wait for what it began."""
    made.clock.time += 10.0
    await made.scaling.look()
    tasks = [model.changing for model in made.scaling._seen.values() if model.changing]
    await asyncio.gather(*tasks)


@pytest.mark.asyncio
async def test_a_plan_is_carried_out_process_by_process_and_told(tmp_path: Path) -> None:
    brain = Brain(hn=3)
    made = world(tmp_path, brain)
    await look(made)
    assert not brain.asked, "nothing is there yet to compare with"
    made.observation.came["ctr", "1"] += 500
    made.observation.add(Outcome(1.0, "ctr", "1", 1, 0.5, Times(1_000_000, 2_000_000, 3_000_000, 4_000_000)))
    await look(made)
    assert brain.asked == [(50.0, 10.0)]
    assert made.runtimes.loads["ctr"]["hn"].replicas == 3 and made.runtimes.loads["ctr"]["cn"].replicas == 1
    facts = [(fact, change and (change.kind, change.before, change.after)) for fact, _, change in made.facts.scalings]
    assert facts == [("measured", None), ("scaling_decided", None), ("scaled", ("hn", 1, 2)), ("scaled", ("hn", 2, 3))]
    first = made.facts.scalings[0][1]
    assert first.phases == pytest.approx({"queue": 0.001, "input": 0.002, "infer": 0.003, "output": 0.004})
    brain.wanted = {"hn": 1}
    await look(made)
    assert made.runtimes.loads["ctr"]["hn"].replicas == 1


@pytest.mark.asyncio
async def test_versions_that_run_in_several_ways_are_scaled_each_by_its_own_requests(tmp_path: Path) -> None:
    brain = Brain(hn=2)
    made = world(tmp_path, brain)
    made.runtimes.ways = {
        "whole": Own("ctr", frozenset({"1"}), RULES, "torch, whole"),
        "split": Own("ctr", frozenset({"2", "3"}), RULES, "torch, in halves"),
    }
    made.runtimes.loads = {"whole": {"hn": Load(1, 0.6, 9.0)}, "split": {"cn": Load(1), "hn": Load(2, 0.1, 1.0)}}
    await look(made)
    made.observation.came.update({("ctr", "1"): 300, ("ctr", "2"): 60, ("ctr", "3"): 40, ("other", "1"): 9})
    made.observation.add(Outcome(1.0, "ctr", "1", 1, 0.5, Times(1_000_000, 0, 0, 0)))
    made.observation.add(Outcome(1.0, "ctr", "2", 1, 0.5, Times(5_000_000, 0, 0, 0)))
    await look(made)
    told = [(each.key, each.arrivals_per_s, round(each.elsewhere, 3)) for each in brain.measured]
    assert told == [("whole", 30.0, 0.25), ("split", 10.0, 0.75)]
    assert {look.way: look.phases["queue"] for look in made.scaling.looks("ctr")} == {
        "torch, whole": pytest.approx(0.001), "torch, in halves": pytest.approx(0.005),
    }
    assert [(each.way, each.kind, each.after) for each in made.scaling.changes] == [("torch, whole", "hn", 2)]
    made.observation.came["ctr", "2"] += 5           # too few to tell shares
    await look(made)
    assert [round(each.elsewhere, 3) for each in brain.measured[2:]] == [0.25, 0.75]
    assert [each.arrivals_per_s for each in brain.measured[2:]] == [0.0, 0.5]
    made.runtimes.ways = {"split": Own("ctr", frozenset({"1", "2", "3"}), RULES, "torch, in halves")}
    made.observation.came["ctr", "1"] += 95          # it was moved there since
    await look(made)
    assert (brain.measured[-1].arrivals_per_s, brain.measured[-1].elsewhere) == (9.5, 0.0)
    assert made.scaling.looks("ctr")[-1].way == ""


@pytest.mark.asyncio
async def test_limits_of_the_settings_hold_whatever_brain_says(tmp_path: Path) -> None:
    made = world(tmp_path, Brain(hn=30, cn=0))
    await look(made)
    await look(made)
    assert {kind: load.replicas for kind, load in made.runtimes.loads["ctr"].items()} == {"cn": 1, "hn": 3}


@pytest.mark.asyncio
async def test_a_dry_run_decides_once_and_changes_nothing(tmp_path: Path) -> None:
    made = world(tmp_path, Brain(hn=2), rules=RULES.model_copy(update={"dry_run": True}))
    for _ in range(4):
        await look(made)
    assert made.runtimes.loads["ctr"]["hn"].replicas == 1 and not made.scaling.changes
    assert [fact for fact, _, _ in made.facts.scalings].count("scaling_decided") == 1


@pytest.mark.asyncio
async def test_without_brain_all_stays_and_the_reason_is_shown(tmp_path: Path) -> None:
    brain = Brain(hn=2)
    made = world(tmp_path, brain)
    brain.away = True
    await look(made)
    await look(made)
    newest = made.scaling.looks("ctr")[-1]
    assert "brain does not run" in newest.trouble and not newest.decisions and not made.scaling.changes


@pytest.mark.asyncio
async def test_a_process_that_cannot_be_started_is_not_tried_at_every_look(tmp_path: Path) -> None:
    made = world(tmp_path, Brain(hn=2))
    made.runtimes.no_room = ResourceExhausted("1 GPU is asked for, and of 1 here 1 are taken")
    for _ in range(5):
        await look(made)
    assert [change.trouble for change in made.scaling.changes] == ["1 GPU is asked for, and of 1 here 1 are taken"]
    made.runtimes.no_room = None
    for _ in range(5):
        await look(made)
    assert made.runtimes.loads["ctr"]["hn"].replicas == 2


@pytest.mark.asyncio
async def test_a_kind_that_cannot_grow_does_not_keep_the_other_from_it(tmp_path: Path) -> None:
    made = world(tmp_path, Brain(cn=2, hn=3))

    async def grow(model: str, kind: str) -> None:
        if kind == "cn":
            raise Unavailable("it does not start")
        made.runtimes._count(model, kind, 1)

    made.runtimes.grow = grow
    for _ in range(3):
        await look(made)
    assert {kind: load.replicas for kind, load in made.runtimes.loads["ctr"].items()} == {"cn": 1, "hn": 3}
    assert [change.kind for change in made.scaling.changes] == ["cn", "hn", "hn"]


@pytest.mark.asyncio
async def test_rest_tells_looks_and_changes(tmp_path: Path) -> None:
    made = world(tmp_path, Brain(hn=2))
    made.runtimes.rules["tiny"] = made.runtimes.rules.pop("ctr")
    made.runtimes.loads["tiny"] = made.runtimes.loads.pop("ctr")
    await made.models.start()
    async with http(made) as client:
        assert (await client.get("/v1/models/tiny/scaling")).status_code == 404
        body = {"name": "tiny", "uri": made.folder(), "framework": "torch"}
        assert (await client.post("/v1/models", json=body)).status_code == 201
        await made.settled()
        await look(made)
        await look(made)
        told = (await client.get("/v1/models/tiny/scaling")).json()
    [change] = told["changes"]
    assert (change["kind"], change["before"], change["after"], change["reason"]) == ("hn", 1, 2, "FORECAST")
    kind = told["looks"][0]["kinds"]["hn"]
    assert (kind["replicas"], kind["wanted"], kind["why"]) == (1, 2, "so it is")
    await made.models.stop()


def test_load_is_the_mean_of_processes_that_were_there_at_both_looks() -> None:
    before = {1: Sample(100.0, 5.0, 50, 0), 2: Sample(100.0, 9.0, 70, 0)}
    now = {1: Sample(110.0, 9.0, 90, 3), 2: Sample(110.0, 1.0, 2, 0), 3: Sample(110.0, 1.0, 9, 2)}
    found = load_between(before, now, replicas=3, start_s=4.0)
    assert found == Load(3, 0.4, 12.0, 5.0, 4.0, 10.0)
    assert found.busy * found.replicas / found.answered_per_s == pytest.approx(4.0 / 40), "what a request took"
    assert load_between({}, now, replicas=3, start_s=4.0).window_s == 0.0
    side_by_side = {1: Sample(110.0, 45.0, 90, 0)}
    assert load_between(before, side_by_side, replicas=1, start_s=0.0).busy == 1.0


def test_what_a_process_says_of_each_model_is_added_up() -> None:
    told = {"busy_s": {"a/1": 1.0, "b/1": 2.0}, "answered": {"a/1": 3, "b/1": 4}, "queued": {"a/1": 5}}
    assert Sample.of(told, at=1.0, waiting=2) == Sample(1.0, 3.0, 7, 7)
    assert Sample.of({"busy_s": 1.5, "answered": 2}, at=1.0, waiting=0) == Sample(1.0, 1.5, 2, 0)


def test_phases_are_means_of_what_came_between() -> None:
    spent = Phases(4, (4_000, 0, 8_000, 0)).since(Phases(2, (0, 0, 4_000, 0)))
    assert spent.means == pytest.approx({"queue": 2e-6, "input": 0.0, "infer": 2e-6, "output": 0.0})
    assert replace(spent, count=0).means["queue"] == 0.0
