"""What brain says and hears of jobs that train, over the wire and back."""

import pytest

from recmesh.pb import brain_pb2 as pb
from services.brain import wire
from services.brain.domain.model import (
    Change,
    Fit,
    FitPoint,
    Free,
    FrontPoint,
    Look,
    Plan,
    Profile,
    RolePlan,
    RoleUse,
)

ROLES = (RolePlan("worker", 2, 1.5, 1 << 30, 0.5, "A10"), RolePlan("ps", 1, 1.0, 2 << 30))
LOOK = Look(
    "a", 5.0, "pareto-greedy", "GROW", "it pays", 900.0, ROLES, ROLES[:1], 1200.0,
    Fit("dlrover", 0.04, {"compute": 0.2}, (FitPoint(2, 1, 1.5, 1.0, 900.0, 910.0, 0.1, 5.0),), ("a note",), ""),
    (FrontPoint(3, 1, 1.5, 1.0, 2.0, 300.0, 1200.0, "GROW", "worth it", is_chosen=True),), "p9",
)  # fmt: skip


def test_a_change_comes_back_equal() -> None:
    change = Change("p1", "a", 7.5, "taken back", "slower", ROLES, ROLES[::-1], 900.0, 1200.0, 800.0, 2.5)
    assert wire.change(pb.ChangeOutcome.FromString(wire.change_message(change).SerializeToString())) == change


def test_every_field_of_a_profile_travels() -> None:
    profile = Profile(
        "a", 1.5, 2, 1, 0.7, 0.2, 512, 900.0, 0.1, 0.2, 0.3, 0.4, 0.5, 1 << 40, 1 << 41, 10, 20, 1.5, 1.0, "cpu",
        is_synchronous=True, is_steady=True, owner="ads",
        roles=(RoleUse(ROLES[0], 1.2, 1 << 33), RoleUse(RolePlan("data", 3, 0.5, 1 << 29), 0.4, 1 << 28)),
    )  # fmt: skip
    assert wire.profile(pb.Profile.FromString(wire.profile_message(profile).SerializeToString())) == profile


def test_a_look_tells_all_that_people_are_shown() -> None:
    message = pb.Look.FromString(wire.look_message(LOOK).SerializeToString())
    assert (message.planner, message.reason, message.why, message.plan_id) == ("pareto-greedy", "GROW", "it pays", "p9")
    assert [role.replicas for role in message.chosen] == [2] and len(message.now) == 2
    assert message.fit.form == "dlrover" and message.fit.points[0].predicted == 910.0
    assert message.front[0].is_chosen and message.front[0].samples_per_s == 1200.0


@pytest.mark.parametrize(
    ("given", "free"),
    [
        ({}, Free(None, None)),
        ({"free_cpu": 0.0, "free_memory_bytes": 0}, Free(0.0, 0)),
        ({"free_cpu": 2.5}, Free(2.5, None)),
        ({"free_gpus": {"A10": 2.0}}, Free(gpus={"A10": 2.0})),
        ({"free_cpu": 1.0, "cluster": "east"}, Free(1.0, cluster="east")),
    ],
)
def test_nothing_free_is_not_the_same_as_not_known(given: dict[str, float], free: Free) -> None:
    request = pb.DecideRequest(
        job=pb.JobMeta(job_id="a"), limits=[pb.RoleLimits(role="worker", min=1, max=4, pinned=2)],
        now=[wire.role_plan_message(role) for role in ROLES], samples_per_s=900.0, remaining=10, **given,  # type: ignore[arg-type]  # by name
    )  # fmt: skip
    ask = wire.ask(pb.DecideRequest.FromString(request.SerializeToString()))
    assert ask.free == free and ask.now == {role.role: role for role in ROLES}
    assert (ask.limits[0].pinned, ask.samples_per_s, ask.remaining) == (2, 900.0, 10)


def test_an_answer_says_whether_anything_changes() -> None:
    plan = Plan(ROLES, "pareto-greedy", "it pays", plan_id="p9")
    assert wire.decide_reply(LOOK, plan).change and not wire.decide_reply(LOOK, None).change
    assert [role.role for role in wire.decide_reply(LOOK, plan).roles] == ["worker"]


def test_a_first_plan_on_a_full_machine_is_bounded_and_limits_name_accelerators() -> None:
    request = pb.PlanRequest.FromString(pb.PlanRequest(free_cpu=0.0, free_gpus={"A10": 1.0}).SerializeToString())
    assert wire.free(request) == Free(0.0, None, {"A10": 1.0})
    limits = pb.RoleLimits(role="worker", min=1, max=4, gpu=0.5, gpu_kind="A10")
    assert (wire.limits(limits).gpu, wire.limits(limits).gpu_kind) == (0.5, "A10")


def test_a_question_about_executors_has_an_owner_and_no_accelerators() -> None:
    ask = wire.feed_ask(pb.FeedRequest(job_id="a", owner="ads", min=1, max=2, free_cpu=1.0))
    assert (ask.owner, ask.free) == ("ads", Free(1.0))
