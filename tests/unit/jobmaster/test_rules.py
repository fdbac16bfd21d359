"""Decisions, as a table of sentences: a situation, and what follows from it."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from recmesh.spec.job import TrainingJob
from services.jobmaster.domain import record as records
from services.jobmaster.domain.exits import Exit, judge, retry_delay_s
from services.jobmaster.domain.job import AcceptedJob, Closing, Ending, Intent, JobStatus, RolePlan, RoleState
from services.jobmaster.domain.limits import Limits
from services.jobmaster.domain.phase import Phase
from services.jobmaster.domain.record import Member, RunRecord
from services.jobmaster.domain.rules import decide
from services.jobmaster.domain.situation import (
    Drain,
    End,
    Kill,
    Launch,
    Move,
    NoteExit,
    Operate,
    Process,
    Seen,
    Situation,
)
from tests.support.job_world import spec as spec_of

NOW = 1000.0


def role(name: str, index: int, **changes: Any) -> RoleState:
    values: dict[str, Any] = {
        "role": name, "index": index, "stage": "running", "incarnation": f"{name}{index}", "since": 900.0,
        "address": f"host:{name}{index}",
    }
    return RoleState(**(values | changes))


ROLES = (role("ps", 0), role("ps", 1), role("worker", 0), role("worker", 1))


def an_open_record(**changes: Any) -> RunRecord:
    fleet = [Member(ps=i, address=f"host:ps{i}", incarnation=f"ps{i}") for i in range(2)]
    record = records.next_generation(RunRecord(job_id="ads", term=1), term=1, members=fleet)
    return records.opened(record, term=1, gen=1).model_copy(update=changes)


def situation(
    *,
    status: Mapping[str, Any] | None = None,
    roles: tuple[RoleState, ...] = ROLES,
    record: RunRecord | None = None,
    intent: Intent | None = None,
    spec: Mapping[str, Any] | None = None,
    limits: Limits | None = None,
    **seen: Any,
) -> Situation:
    given: dict[str, Any] = {
        "phase": Phase.RUNNING, "started": 900.0, "settled_workers": 2, "settled_ps": (0, 1), "snapshot_at": 999.5,
        "roles": roles,
        "plan": {"ps": RolePlan(replicas=2), "worker": RolePlan(replicas=2)}, "recorded": True,
    }
    processes = {item.name: Process(item.name) for item in roles if item.is_live}
    observed: dict[str, Any] = {
        "processes": processes, "heard": {item.key: NOW - 1 for item in roles}, "watching_since": 900.0,
        "drained": False,
    }
    return Situation(
        spec=TrainingJob.parse(spec_of(**(spec or {}))),
        job=AcceptedJob(job_id="ads", spec_json="", created=800.0, intent=intent or Intent()),
        status=JobStatus(job_id="ads", **(given | dict(status or {}))),
        record=record or an_open_record(),
        seen=Seen(**(observed | seen)),
        limits=limits or Limits(), now=NOW,
    )


def without(name: str, end: Exit | None = None) -> dict[str, Process]:
    processes = {item.name: Process(item.name) for item in ROLES}
    processes[name] = Process(name, end or Exit(signal=9))
    return processes


HEARD = {item.key: NOW - 1 for item in ROLES}
EXITED_WORKER = (*ROLES[:3], role("worker", 1, stage="exited", retry_at=NOW - 1))
WAITING_WORKER = (*ROLES[:3], role("worker", 1, stage="exited", retry_at=NOW + 5))
LOST_PS = (ROLES[0], role("ps", 1, stage="exited", retry_at=NOW - 1), *ROLES[2:])
NEW_PS = (ROLES[0], role("ps", 1, attempt=2, incarnation="another"), *ROLES[2:])

SUSPEND = Intent(suspend=True, suspensions=1)
PARKED = records.parked(an_open_record(), term=1)
TABLE: dict[str, tuple[Callable[[], Situation], list[Any]]] = {
    "a job that runs well needs nothing": (lambda: situation(), []),
    "a job without a plan is planned before anything else": (
        lambda: situation(status={"phase": Phase.PENDING}, roles=(), record=RunRecord(job_id="ads")),
        [Operate("plan", "no plan yet")],
    ),
    "all processes of a planned job are started at once": (
        lambda: situation(status={"phase": Phase.STARTING}, roles=(), record=RunRecord(job_id="ads")),
        [Launch(("ps", 0)), Launch(("ps", 1)), Launch(("worker", 0)), Launch(("worker", 1))],
    ),
    "a generation opens as soon as all parameter servers are registered": (
        lambda: situation(
            status={"phase": Phase.STARTING}, record=RunRecord(job_id="ads"),
            roles=(*ROLES[:2], role("worker", 0, stage="starting"), role("worker", 1, stage="starting")),
        ),
        [Operate("open", "first generation")],
    ),
    "an end is noted before anything is decided on it": (
        lambda: situation(processes=without("worker-1-1")), [NoteExit(("worker", 1), Exit(signal=9))],
    ),
    "a worker that trains nothing for long while positions are queued is killed": (
        lambda: situation(
            grown={("worker", 0): NOW - 1, ("worker", 1): 10.0}, queued_since=20.0, work_since=10.0,
            watching_since=0.0, roles=(*ROLES[:2], *(role("worker", i, since=5.0) for i in range(2))),
            heard=HEARD,
        ),
        [Kill("worker-1-1", "trained nothing for 980 s", hard=True, matter="stall")],
    ),
    "a worker that waits for what another holds and trains is left alone": (
        lambda: situation(
            grown={("worker", 0): NOW - 1, ("worker", 1): 10.0}, work_since=10.0, watching_since=0.0,
            roles=(*ROLES[:2], *(role("worker", i, since=5.0) for i in range(2))), heard=HEARD,
        ),
        [],
    ),
    "a finisher that has reported is left a moment to end": (
        lambda: situation(
            record=an_open_record(phase="closed"), roles=(role("finisher", 0),),
            status={"closing": Closing(
                snapshot=3, samples=1, reported=True, reported_at=NOW - 1, registered=True
            )},
        ),
        [],
    ),
    "a dead worker is replaced": (lambda: situation(roles=EXITED_WORKER), [Launch(("worker", 1))]),
    "a dead worker is not replaced before its pause is over": (lambda: situation(roles=WAITING_WORKER), []),
    "a dead worker is not replaced when there is nothing left to train": (
        lambda: situation(roles=EXITED_WORKER, drained=True), [Operate("snapshot", "drained")],
    ),
    "a worker that finished while shardsvc does not answer is left alone": (
        lambda: situation(
            roles=(*ROLES[:3], role("worker", 1, stage="exited", done=True, retry_at=0.0)), drained=None
        ), [],
    ),
    "a worker that finished too early is needed again": (
        lambda: situation(roles=(*ROLES[:3], role("worker", 1, stage="exited", done=True, retry_at=0.0))),
        [Launch(("worker", 1))],
    ),
    "a lost parameter server is started again": (lambda: situation(roles=LOST_PS), [Launch(("ps", 1))]),
    "another incarnation of a parameter server is a rollback": (
        lambda: situation(roles=NEW_PS),
        [Move(Phase.RECOVERING, "ParameterServerLost", "PS 1"), Operate("open", "rollback")],
    ),
    "a rollback waits until all parameter servers are there": (
        lambda: situation(
            status={"phase": Phase.RECOVERING}, roles=(ROLES[0], role("ps", 1, stage="starting"), *ROLES[2:])
        ), [],
    ),
    "a generation that nobody finished opening is opened anew": (
        lambda: situation(
            status={"phase": Phase.RECOVERING}, record=an_open_record(phase="restoring", pending="rollback")
        ), [Operate("open", "rollback")],
    ),
    "a silent worker is killed at once": (
        lambda: situation(
            roles=(*ROLES[:3], role("worker", 1, since=500.0)), heard=HEARD | {("worker", 1): NOW - 21},
            watching_since=500.0,
        ), [Kill("worker-1-1", "silent for 21 s", hard=True, matter="silence")],
    ),
    "a young worker may be silent while it loads its framework": (
        lambda: situation(heard=HEARD | {("worker", 1): NOW - 60}, watching_since=500.0), [],
    ),
    "silence before this jobmaster listened proves nothing": (
        lambda: situation(heard={}, watching_since=NOW - 2), [],
    ),
    "a process that never registers is killed after its grace": (
        lambda: situation(roles=(*ROLES[:3], role("worker", 1, stage="starting", since=NOW - 181)),
                          watching_since=0.0),
        [Kill("worker-1-1", "did not register within 180 s", hard=True, matter="silence")],
    ),
    "a process that waited for its place in the cluster registers later": (
        lambda: situation(roles=(*ROLES[:3], role("worker", 1, stage="starting", since=NOW - 181)),
                          watching_since=0.0, waited={"worker-1-1": NOW - 100}), [],
    ),
    "a process that belongs to no place is ended": (
        lambda: situation(processes=without("x", None) | {
            **{item.name: Process(item.name) for item in ROLES}, "x": Process("worker-7-3")
        }), [Kill("worker-7-3", "it belongs to no place of the job")],
    ),
    "another wanted number is a scaling": (
        lambda: situation(intent=Intent(replicas={"worker": 2}), status={"settled_workers": 1}),
        [Move(Phase.SCALING, "Scaling", "from 1 to 2 workers")],
    ),
    "more wanted workers are started": (
        lambda: situation(intent=Intent(replicas={"worker": 3})), [Launch(("worker", 2))],
    ),
    "surplus workers drain, the highest first": (
        lambda: situation(intent=Intent(replicas={"worker": 1})), [Drain(("worker", 1), "scaled down")],
    ),
    "a scaling ends when the wanted workers are there": (
        lambda: situation(status={"phase": Phase.SCALING}),
        [Move(Phase.RUNNING, "Scaled", "2 workers, 2 parameter servers")],
    ),
    "no scaling begins when nothing is left to train: the closing snapshot is next": (
        lambda: situation(status={"settled_workers": 1}, drained=True), [Operate("snapshot", "drained")],
    ),
    "a snapshot is due by the policy": (
        lambda: situation(status={"snapshot_at": NOW - 3, "samples": 5}), [Operate("snapshot", "policy")],
    ),
    "a snapshot is not due when nothing was trained since the last": (
        lambda: situation(status={"snapshot_at": NOW - 3, "samples": 5, "snapshot_samples": 5}), [],
    ),
    "a snapshot that somebody asked for is cut at once": (
        lambda: situation(intent=Intent(checkpoint=1)), [Operate("snapshot", "asked for")],
    ),
    "procedures go one at a time": (
        lambda: situation(intent=Intent(checkpoint=1), operation="snapshot"), [],
    ),
    "quarantine goes before a snapshot": (
        lambda: situation(intent=Intent(checkpoint=1), quarantine_due=True),
        [Operate("void", "a batch killed its workers")],
    ),
    "a mark that a dead jobmaster left is aborted": (
        lambda: situation(record=an_open_record(pending="mark:4")),
        [Operate("abort", "mark:4 was begun by a jobmaster that is gone")],
    ),
    "a quarantine that a dead jobmaster left is completed": (
        lambda: situation(record=an_open_record(pending="void:4")), [Operate("void", "a quarantine was begun")],
    ),
    "a stopped job drains its workers": (
        lambda: situation(intent=Intent(stop=True)), [Drain(("worker", 0), "stop"), Drain(("worker", 1), "stop")],
    ),
    "a stopped job is saved when its workers are gone": (
        lambda: situation(intent=Intent(stop=True), roles=ROLES[:2]), [Operate("snapshot", "stop")],
    ),
    "a stopped job ends when it was saved, or could not be": (
        lambda: situation(intent=Intent(stop=True), roles=ROLES[:2], status={"stop_snapshot_tried": True}),
        [End(Ending(phase=Phase.STOPPED, reason="Stopped"))],
    ),
    "a job that is stopped before it trains is not saved": (
        lambda: situation(intent=Intent(stop=True), status={"phase": Phase.STARTING},
                          record=RunRecord(job_id="ads")),
        [End(Ending(phase=Phase.STOPPED, reason="Stopped"))],
    ),
    "a job that is to be suspended drains its workers": (
        lambda: situation(intent=SUSPEND), [Drain(("worker", 0), "suspended"), Drain(("worker", 1), "suspended")],
    ),
    "it is saved when they are gone": (
        lambda: situation(intent=SUSPEND, roles=ROLES[:2]), [Operate("snapshot", "suspend")],
    ),
    "then its parameter servers go": (
        lambda: situation(intent=SUSPEND, roles=ROLES[:2], status={"suspension_saved": 1}),
        [Kill("ps-0-1", "suspended"), Kill("ps-1-1", "suspended")],
    ),
    "a snapshot of an earlier pause saves nothing of now": (
        lambda: situation(intent=Intent(suspend=True, suspensions=2), roles=ROLES[:2], status={"suspension_saved": 1}),
        [Operate("snapshot", "suspend")],
    ),
    "without a parameter server there is nothing to be saved": (
        lambda: situation(intent=SUSPEND, roles=LOST_PS),
        [Kill("worker-0-1", "suspended"), Kill("worker-1-1", "suspended")],
    ),
    "a job whose processes are gone is suspended": (
        lambda: situation(intent=SUSPEND, roles=(), processes={}, status={"suspension_saved": 1}),
        [Operate("suspend", "its processes are gone")],
    ),
    "a job that never ran is suspended at once": (
        lambda: situation(intent=SUSPEND, roles=(), status={"phase": Phase.PENDING}, record=RunRecord(job_id="ads")),
        [Operate("suspend", "its processes are gone")],
    ),
    "a suspended job waits": (
        lambda: situation(intent=SUSPEND, roles=(), status={"phase": Phase.SUSPENDED}, record=PARKED), [],
    ),
    "a resumed job begins with a plan": (
        lambda: situation(roles=(), status={"phase": Phase.SUSPENDED}, record=PARKED), [Move(Phase.PENDING, "Resumed")],
    ),
    "its generation is no rollback": (
        lambda: situation(status={"phase": Phase.STARTING}, record=PARKED), [Operate("open", "resumed")],
    ),
    "a suspended job that is stopped ends": (
        lambda: situation(intent=Intent(suspend=True, stop=True), roles=(), status={"phase": Phase.SUSPENDED},
                          record=PARKED),
        [End(Ending(phase=Phase.STOPPED, reason="Stopped"))],
    ),
    "one worker's mistake is not the job's while another works": (
        lambda: situation(status={"mistakes": 1, "mistake": "no"}, roles=EXITED_WORKER), [Launch(("worker", 1))],
    ),
    "a repeated mistake fails the job": (
        lambda: situation(status={"mistakes": 2, "mistake": "no such column"}),
        [End(Ending(phase=Phase.FAILED, reason="UserError", message="no such column"))],
    ),
    "an ending job ends its workers before its parameter servers": (
        lambda: situation(status={"ending": Ending(phase=Phase.FAILED, reason="X")}),
        [Kill("worker-0-1", "X"), Kill("worker-1-1", "X")],
    ),
    "what was told to end is not told again": (
        lambda: situation(
            status={"ending": Ending(phase=Phase.FAILED, reason="X")},
            killing=frozenset({"worker-0-1", "worker-1-1"}),
        ), [],
    ),
    "an ending job ends when nothing of it runs": (
        lambda: situation(status={"ending": Ending(phase=Phase.FAILED, reason="X")}, processes={}, roles=()),
        [Operate("end", "X")],
    ),
    "a closing snapshot leads to the finisher": (
        lambda: situation(
            record=an_open_record(phase="closed", last_committed=3), roles=(), processes={},
            status={"closing": Closing(snapshot=3, samples=9)},
        ), [Launch(("finisher", 0))],
    ),
    "a job with nothing to export or evaluate needs no finisher": (
        lambda: situation(
            record=an_open_record(phase="closed", last_committed=3), roles=(), processes={},
            status={"closing": Closing(snapshot=3, samples=9)}, spec={"export": None},
        ), [Operate("register", "nothing to export or evaluate")],
    ),
    "a registered model is success": (
        lambda: situation(
            record=an_open_record(phase="closed", last_committed=3), roles=(), processes={},
            status={"closing": Closing(snapshot=3, samples=9, reported=True, registered=True)},
        ), [End(Ending(phase=Phase.SUCCEEDED, reason="Completed"))],
    ),
    "an ended job tells brain its history": (
        lambda: situation(status={"phase": Phase.SUCCEEDED, "recorded": False}, roles=(), processes={}),
        [Operate("record", "its history goes to brain")],
    ),
    "an ended job is kept until its time to live is over": (
        lambda: situation(status={"phase": Phase.SUCCEEDED, "ended": NOW - 5}, roles=(), processes={},
                          spec={"ttl_after_end_s": 10}), [],
    ),
    "an ended job past its time to live is purged": (
        lambda: situation(status={"phase": Phase.SUCCEEDED, "ended": NOW - 15}, roles=(), processes={},
                          spec={"ttl_after_end_s": 10}), [Operate("purge", "ended 10 s ago")],
    ),
    "an ended job without a time to live is kept as long as the mesh keeps jobs": (
        lambda: situation(status={"phase": Phase.SUCCEEDED, "ended": NOW - 5}, roles=(), processes={},
                          limits=Limits(keep_ended_s=10)), [],
    ),
    "and no longer": (
        lambda: situation(status={"phase": Phase.SUCCEEDED, "ended": NOW - 15}, roles=(), processes={},
                          limits=Limits(keep_ended_s=10)), [Operate("purge", "ended 10 s ago")],
    ),
    "its own time to live counts for more": (
        lambda: situation(status={"phase": Phase.SUCCEEDED, "ended": NOW - 15}, roles=(), processes={},
                          spec={"ttl_after_end_s": 20}, limits=Limits(keep_ended_s=10)), [],
    ),
}


@pytest.mark.parametrize("sentence", TABLE)
def test_what_follows(sentence: str) -> None:
    make, expected = TABLE[sentence]
    assert decide(make()) == expected


EXITS: dict[str, tuple[RoleState, Exit, str]] = {
    "an asked-for end by signal is commanded": (role("worker", 0, stage="draining"), Exit(signal=15), "commanded"),
    "a crash while draining is still a crash": (role("worker", 0, stage="draining"), Exit(code=70), "crash"),
    "exit code 0 means done": (role("worker", 0), Exit(code=0), "done"),
    "exit code 64 is the user's mistake": (role("worker", 0), Exit(code=64, last_line="no"), "mistake"),
    "exit code 75 asks for another attempt": (role("worker", 0), Exit(code=75), "retry"),
    "out of memory is told from other kills": (role("worker", 0), Exit(signal=9, oom=True), "oom"),
    "a kill that nobody asked for is a crash": (role("worker", 0), Exit(signal=9), "crash"),
    "an end that nobody saw is a crash": (role("worker", 0), Exit(), "crash"),
}


@pytest.mark.parametrize("sentence", EXITS)
def test_what_an_end_means(sentence: str) -> None:
    state, end, kind = EXITS[sentence]
    assert judge(state, end).kind == kind


def test_the_first_restart_is_at_once_and_later_ones_wait_up_to_a_ceiling() -> None:
    assert [retry_delay_s(streak) for streak in range(1, 10)] == [0, 1, 2, 4, 8, 16, 32, 60, 60]
