"""What to do next for a job: a pure function from what is known to a list of actions.

`decide` reads as numbered prose. It returns the actions of the first matter that needs any; the runner
carries them out, which changes the status, and asks again until nothing is left to do.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from recmesh.spec.job import TrainingJob
from services.jobmaster.domain import plan
from services.jobmaster.domain.exits import Exit
from services.jobmaster.domain.job import AcceptedJob, Ending, JobStatus, RoleKey, RoleState
from services.jobmaster.domain.limits import Limits
from services.jobmaster.domain.phase import Phase
from services.jobmaster.domain.record import RunRecord
from services.jobmaster.domain.straggler import backups


@dataclass(frozen=True, slots=True)
class Process:
    """A process as the cluster shows it; `exit` when it has ended."""

    name: str
    exit: Exit | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """What the runner observes besides the stored documents."""

    processes: Mapping[str, Process]
    """By name: `worker-0-1`."""
    heard: Mapping[RoleKey, float] = field(default_factory=dict)
    """When the current incarnation of a place was last heard of."""
    watching_since: float = 0.0
    """Silence before this jobmaster began to listen proves nothing."""
    drained: bool | None = None
    """shardsvc: nothing queued, nothing leased, the line closed. None: not known."""
    operation: str = ""
    """The procedure under way: plan | open | snapshot | abort | void | close | register | end | record
    | purge."""
    operation_retry_at: float = 0.0
    """A procedure failed for want of a service; not before this."""
    quarantine_due: bool = False
    killing: frozenset[str] = frozenset()
    """Processes that were told to end, by name."""
    skipped_nan: int = 0
    """By all incarnations."""
    grown: Mapping[RoleKey, float] = field(default_factory=dict)
    """When the samples of a place's current incarnation last grew."""
    queued_since: float | None = None
    """Since when there are positions that nobody holds. None: there are none, or it is not known."""
    work_since: float | None = None
    """Since when there are positions to train, held or not. None: there are none, or it is not known."""


@dataclass(frozen=True, slots=True)
class NoteExit:
    """The place's process has ended."""

    key: RoleKey
    exit: Exit


@dataclass(frozen=True, slots=True)
class Launch:
    """Start a process for the place."""

    key: RoleKey


@dataclass(frozen=True, slots=True)
class Drain:
    """Ask the process to finish what it has in flight and go."""

    key: RoleKey
    reason: str


@dataclass(frozen=True, slots=True)
class Kill:
    """End the process: SIGTERM and, after a grace, SIGKILL; at once with `hard`."""

    name: str
    reason: str
    hard: bool = False


@dataclass(frozen=True, slots=True)
class Move:
    """Another phase."""

    phase: Phase
    reason: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class End:
    """The job will end like this, once its processes are gone."""

    ending: Ending


@dataclass(frozen=True, slots=True)
class Operate:
    """Carry out a procedure."""

    name: str
    reason: str = ""


Action = NoteExit | Launch | Drain | Kill | Move | End | Operate


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything `decide` looks at."""

    spec: TrainingJob
    job: AcceptedJob
    status: JobStatus
    record: RunRecord
    seen: Seen
    limits: Limits
    now: float


def decide(at: Situation) -> list[Action]:
    """The actions of the first matter that needs any; none when there is only waiting left."""
    # 1. Whoever ended, ended: nothing else may be decided on processes that are gone.
    exits = _exits(at)
    if exits:
        return exits
    # 2. A job that has ended is only cleaned up.
    if at.status.has_ended:
        return _afterwards(at)
    if at.status.ending is not None:
        return _take_down(at, at.status.ending)
    # 3. Users' wishes and limits that end it.
    ending = _must_end(at)
    if ending is not None:
        return [End(ending)]
    # 4. The closing snapshot is committed: only the way to success is left.
    if at.record.phase == "closed" or at.status.closing is not None:
        return _finish(at)
    # 5. The first plan comes before any process.
    if at.status.phase is Phase.PENDING:
        return _operate(at, "plan", reason="no plan yet")
    # 6. Silent processes, and workers that train nothing though there is work, are killed; their end is noted in 1.
    silent = _silent(at) + _stalled(at)
    if silent:
        return silent
    # 7. Places are filled, surplus processes drain.
    staffing = _staff(at)
    if staffing:
        return staffing
    # 8. A generation on the parameter servers that are there.
    if not _is_whole(at):
        return _generation(at)
    # 9. The phase says what is the case.
    moves = _phase(at)
    if moves:
        return moves
    # 10. Quarantine and snapshots, one at a time, on an open generation.
    return _procedures(at)


def _exits(at: Situation) -> list[Action]:
    result: list[Action] = []
    for role in at.status.roles:
        if not role.is_live:
            continue
        process = at.seen.processes.get(role.name)
        if process is None and role.stage != "starting":
            result.append(NoteExit(role.key, Exit(reason="its process is not to be found")))
        elif process is not None and process.exit is not None:
            result.append(NoteExit(role.key, process.exit))
    return result


def _strangers(at: Situation, *, keep: frozenset[str] = frozenset()) -> list[Action]:
    """Processes that live and should not."""
    return [
        Kill(process.name, "it belongs to no place of the job")
        for process in at.seen.processes.values()
        if process.exit is None and process.name not in keep | at.seen.killing
    ]


def _afterwards(at: Situation) -> list[Action]:
    result = _strangers(at)
    if result or at.seen.operation:
        return result
    if not at.status.recorded and not at.job.intent.delete:
        return _operate(at, "record", reason="its history goes to brain")
    ttl_s = at.spec.ttl_after_end_s
    if at.job.intent.delete:
        return _operate(at, "purge", reason="deleted")
    if ttl_s is not None and at.now >= at.status.ended + ttl_s:
        return _operate(at, "purge", reason=f"ended {ttl_s:g} s ago")
    return []


def _take_down(at: Situation, ending: Ending) -> list[Action]:
    leaving = _leaving(at)
    if leaving:
        return [Kill(name, ending.reason) for name in leaving if name not in at.seen.killing]
    return _operate(at, "end", reason=ending.reason)


def _leaving(at: Situation) -> list[str]:
    """Processes of which all shall go, those first that use others: workers before parameter servers."""
    alive = [name for name, process in at.seen.processes.items() if process.exit is None]
    return [name for name in alive if not name.startswith("ps-")] or alive


def _must_end(at: Situation) -> Ending | None:
    intent, status, training = at.job.intent, at.status, at.spec.training
    if intent.delete:
        return Ending(phase=Phase.STOPPED, reason="Deleted", message=intent.reason)
    if status.closing is not None and status.closing.registered:
        return None
    if intent.stop:
        has_state = at.record.phase in ("open", "finishing") and status.phase is not Phase.PENDING
        if not has_state or status.stop_snapshot_tried:
            return Ending(phase=Phase.STOPPED, reason="Stopped", message=intent.reason)
    if status.mistakes and (status.mistakes > 1 or not _others_work(at)):
        return Ending(phase=Phase.FAILED, reason="UserError", message=status.mistake)
    if status.failures > at.spec.backoff_limit:
        last = next((role for role in reversed(status.roles) if role.exit_reason), None)
        why = f"; the last: {last.role} {last.index}, {last.exit_reason}" if last else ""
        return Ending(
            phase=Phase.FAILED, reason="BackoffLimitExceeded",
            message=f"{status.failures} processes failed, {at.spec.backoff_limit} are allowed{why}",
        )
    if status.quarantined > training.quarantine_limit:
        return Ending(
            phase=Phase.FAILED, reason="QuarantineLimitExceeded",
            message=f"{status.quarantined} batches killed workers, {training.quarantine_limit} are allowed",
        )
    skipped = status.skipped_nan + at.seen.skipped_nan
    if skipped and training.nan.action == "fail":
        return Ending(
            phase=Phase.FAILED, reason="NotFinite",
            message="the loss or its gradients are not finite (training.nan.action is fail)",
        )
    if skipped > training.nan.limit:
        return Ending(
            phase=Phase.FAILED, reason="NotFinite",
            message=f"{skipped} batches had no finite loss or gradients, {training.nan.limit} are allowed",
        )
    limit_s = at.spec.active_deadline_s
    if limit_s is not None and status.started and at.now >= status.started + limit_s:
        return Ending(
            phase=Phase.FAILED, reason="DeadlineExceeded", message=f"active for more than {limit_s:g} s"
        )
    return None


def _others_work(at: Situation) -> bool:
    """Some worker runs in spite of the mistake: it may be one machine's."""
    return any(role.stage == "running" for role in at.status.live("worker"))


def _silent(at: Situation) -> list[Action]:
    result: list[Action] = []
    for role in at.status.roles:
        process = at.seen.processes.get(role.name)
        if not role.is_live or process is None or process.exit is not None or role.name in at.seen.killing:
            continue
        heard = at.seen.heard.get(role.key)
        since = max(role.since, at.seen.watching_since)
        if role.stage == "starting":
            if at.now - since > at.limits.start_grace_s:
                why = f"did not register within {at.limits.start_grace_s:g} s"
                result.append(Kill(role.name, why, hard=True))
        elif at.now - max(heard or 0.0, since) > at.limits.patience_s(at.now - role.since):
            result.append(Kill(role.name, f"silent for {at.now - max(heard or 0.0, since):.0f} s", hard=True))
        elif role.stage == "draining" and at.now - role.since > at.limits.drain_s:
            result.append(Kill(role.name, f"still draining after {at.limits.drain_s:g} s"))
    return result


def _stalled(at: Situation) -> list[Action]:
    """Workers that live and train nothing for long. One that waits for what others hold is not to blame."""
    limit_s, seen = at.limits.stall_s, at.seen
    if not limit_s or at.record.phase != "open" or seen.work_since is None:
        return []
    workers = [role for role in at.status.live("worker") if role.stage == "running"]
    last = {role.key: max(role.since, seen.watching_since, seen.grown.get(role.key, 0.0)) for role in workers}
    since = seen.queued_since
    if since is None:
        # All that is left is held: by whom is not known here, so it must be by one of those that stand still.
        since = max([seen.work_since, *last.values()])
    result: list[Action] = []
    for role in workers:
        process = seen.processes.get(role.name)
        is_alive = process is not None and process.exit is None and role.name not in seen.killing
        stalled_s = at.now - max(since, last[role.key])
        if is_alive and stalled_s > limit_s:
            result.append(Kill(role.name, f"trained nothing for {stalled_s:.0f} s", hard=True))
    return result


def _staff(at: Situation) -> list[Action]:
    result: list[Action] = []
    named = frozenset(role.name for role in at.status.roles if role.is_live)
    result += _strangers(at, keep=named)
    stopping = at.job.intent.stop
    for name in ("ps", "worker", "evaluator"):
        count = plan.wanted(at.spec, at.job.intent, at.status.plan, name)
        if name == "ps" and at.record.members:
            count = len(at.record.members)  # the map is static while the job lives
        if name == "worker":
            count += backups(at.status.slow)
        if stopping and name != "ps":
            count = 0
        for index in range(count):
            if _is_due(at, name, index) and not (name == "worker" and at.record.phase == "finishing"):
                result.append(Launch((name, index)))
        for role in at.status.live(name):
            if role.index >= count and role.stage != "draining":
                result.append(Drain(role.key, "stop" if stopping else "scaled down"))
    return result


def _is_due(at: Situation, name: str, index: int) -> bool:
    role = at.status.role((name, index))
    if role is None:
        return True
    if role.is_live:
        # Started but not to be found: this jobmaster's predecessor died between the note and the start.
        return role.stage == "starting" and role.name not in at.seen.processes
    if name == "worker" and (at.seen.drained or (role.done and at.seen.drained is None)):
        return False
    return at.now >= role.retry_at


def _present(at: Situation) -> dict[int, str]:
    return {role.index: role.incarnation for role in at.status.live("ps") if role.stage == "running"}


def _members(at: Situation) -> dict[int, str]:
    return {member.ps: member.incarnation for member in at.record.members}


def _is_whole(at: Situation) -> bool:
    """A generation is open, on exactly the parameter servers that are there."""
    return at.record.gen > 0 and at.record.phase != "restoring" and _present(at) == _members(at)


def _generation(at: Situation) -> list[Action]:
    present, members = _present(at), _members(at)
    count = len(members) or plan.wanted(at.spec, at.job.intent, at.status.plan, "ps")
    result: list[Action] = []
    training = at.status.phase in (Phase.RUNNING, Phase.SCALING, Phase.STARTING)
    if members and present != members and training:
        lost = sorted(ps for ps, incarnation in members.items() if present.get(ps) != incarnation)
        result.append(Move(Phase.RECOVERING, "ParameterServerLost", f"PS {', '.join(map(str, lost))}"))
    if len(present) == count and set(present) == set(range(count)):
        reason = "first generation" if at.record.gen == 0 else "rollback"
        result += _operate(at, "open", reason=reason)
    return result


def _phase(at: Situation) -> list[Action]:
    status, phase = at.status, at.status.phase
    if at.record.phase not in ("open", "finishing"):
        return []
    workers = at.status.live("worker")
    running = [role for role in workers if role.stage == "running"]
    count = 0 if at.job.intent.stop else plan.wanted(at.spec, at.job.intent, at.status.plan, "worker")
    if phase in (Phase.STARTING, Phase.RECOVERING):
        if running or at.seen.drained:
            return [Move(Phase.RUNNING, "GenerationOpen", f"generation {at.record.gen}")]
        return []
    if phase is Phase.RUNNING and count != status.settled_workers and not at.job.intent.stop:
        return [Move(Phase.SCALING, "Scaling", f"from {status.settled_workers} to {count} workers")]
    if at.job.intent.stop or at.record.phase == "finishing":
        return [Move(Phase.RUNNING, "ScalingEnded")] if phase is Phase.SCALING else []
    count += backups(status.slow)
    settled = sum(role.stage != "draining" for role in workers) == len(workers) == count == len(running)
    if phase is Phase.SCALING and (settled or at.seen.drained):
        return [Move(Phase.RUNNING, "Scaled", f"{count} workers")]
    return []


def _procedures(at: Situation) -> list[Action]:
    if at.seen.operation or at.record.phase not in ("open", "finishing"):
        return []
    if at.record.pending.startswith("void:"):
        return _operate(at, "void", reason="a quarantine was begun")
    if at.record.pending:
        return _operate(at, "abort", reason=f"{at.record.pending} was begun by a jobmaster that is gone")
    if at.seen.quarantine_due:
        return _operate(at, "void", reason="a batch killed its workers")
    due = _snapshot_due(at)
    return _operate(at, "snapshot", reason=due) if due else []


def _snapshot_due(at: Situation) -> str:
    """Why a snapshot should be cut now; empty when none should."""
    intent, status = at.job.intent, at.status
    if intent.stop:
        return "" if status.live("worker") else "stop"
    if at.record.phase == "finishing":
        return "finish"
    if intent.finish:
        return "finish"
    if at.seen.drained:
        return "drained"
    if intent.checkpoint > status.checkpoint_served:
        return "asked for"
    is_time = at.now - max(status.snapshot_at, status.started) >= at.spec.checkpoint.every_s
    if is_time and status.samples != status.snapshot_samples:
        return "policy"
    return ""


def _finish(at: Situation) -> list[Action]:
    closing = at.status.closing
    if closing is None:
        return _operate(at, "close", reason="the closing snapshot is committed")
    leaving = [name for name in _leaving(at) if not name.startswith("finisher-")]
    if leaving:
        return [Kill(name, "the job is trained") for name in leaving if name not in at.seen.killing]
    late = _silent(at)
    if late:
        return late
    if at.status.phase is not Phase.RUNNING:
        return [Move(Phase.RUNNING, "Trained")]
    if not closing.reported and not needs_finisher(at.spec):
        return _operate(at, "register", reason="nothing to export or evaluate")
    if not closing.reported:
        return [Launch(("finisher", 0))] if _is_due(at, "finisher", 0) else []
    if not closing.registered:
        return _operate(at, "register", reason="the model is written")
    if at.now < closing.reported_at + at.limits.finisher_exit_s and _finisher_goes(at):
        return []
    if closing.early:
        return [End(Ending(phase=Phase.SUCCEEDED, reason="Finished", message=at.job.intent.reason))]
    return [End(Ending(phase=Phase.SUCCEEDED, reason="Completed"))]


def _finisher_goes(at: Situation) -> bool:
    """It has reported, and ends by itself within moments."""
    processes = (at.seen.processes.get(role.name) for role in at.status.live("finisher"))
    return any(process is not None and process.exit is None for process in processes)


def needs_finisher(spec: TrainingJob) -> bool:
    """There is something to export or to evaluate."""
    return spec.export is not None or spec.evaluation is not None


def _operate(at: Situation, name: str, *, reason: str) -> list[Action]:
    if at.seen.operation or at.now < at.seen.operation_retry_at:
        return []
    return [Operate(name, reason)]


def next_look_s(at: Situation) -> float:
    """When time alone may change the decision: the seconds until the next look, at most 1."""
    waits = [1.0]
    waits += [r.retry_at - at.now for r in at.status.roles if not r.is_live and r.retry_at > at.now]
    if at.seen.operation_retry_at > at.now:
        waits.append(at.seen.operation_retry_at - at.now)
    return max(0.02, min(waits))


def place(role: RoleState) -> str:
    """For people: `worker 1`."""
    return f"{role.role} {role.index}"
