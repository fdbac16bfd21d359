"""What to do next for a job: a pure function from what is known to a list of actions.

`decide` reads as numbered prose. It returns the actions of the first matter that needs any; the runner
carries them out, which changes the status, and asks again until nothing is left to do.
"""

from services.jobmaster.domain import fleet, plan
from services.jobmaster.domain.closing import afterwards, finish, must_end, take_down
from services.jobmaster.domain.hot import Load, judge
from services.jobmaster.domain.job import RoleState
from services.jobmaster.domain.phase import Phase
from services.jobmaster.domain.placement import counts_of
from services.jobmaster.domain.publishing import publish
from services.jobmaster.domain.relief import is_futile, rollback_s
from services.jobmaster.domain.situation import (
    Abandon,
    Action,
    Drain,
    End,
    Move,
    Operate,
    Refit,
    Relieve,
    Replace,
    Situation,
    operate,
)
from services.jobmaster.domain.staffing import ended, server_places, silent, staff, stalled
from services.jobmaster.domain.straggler import backups
from services.jobmaster.domain.suspension import rest, rests


def decide(at: Situation) -> list[Action]:
    """The actions of the first matter that needs any; none when there is only waiting left."""
    # 1. Whoever ended, ended: nothing else may be decided on processes that are gone.
    gone = ended(at)
    if gone:
        return gone
    # 2. A job that has ended is only cleaned up.
    if at.status.has_ended:
        return afterwards(at)
    if at.status.ending is not None:
        return take_down(at, at.status.ending)
    # 3. Users' wishes and limits that end it.
    ending = must_end(at)
    if ending is not None:
        return [End(ending)]
    # 4. The closing snapshot is committed: only the way to success is left.
    if at.record.phase == "closed" or at.status.closing is not None:
        return finish(at)
    # 5. A job that is to be suspended saves its state, goes, and waits.
    if rests(at):
        return rest(at)
    # 6. The first plan comes before any process.
    if at.status.phase is Phase.PENDING:
        return operate(at, "plan", reason="no plan yet")
    # 7. Silent processes, and workers that train nothing though there is work, are killed; their end is noted in 1.
    useless = silent(at) + stalled(at) + _starved(at)
    if useless:
        return useless
    # 8. Places are filled, surplus processes drain.
    staffing = staff(at)
    if staffing:
        return staffing
    # 9. A generation on the parameter servers that are there.
    if not _is_whole(at):
        return _generation(at)
    # 10. The phase says what is the case.
    moves = _phase(at)
    if moves:
        return moves
    # 11. Parameter servers join, give up their slots and leave, beside everything else.
    steps = _fleet(at)
    if steps:
        return steps
    # 12. A model that is served while it trains is exported once.
    published = publish(at)
    if published:
        return published
    # 13. Quarantine and snapshots, one at a time, on an open generation.
    return _procedures(at)


def _is_whole(at: Situation) -> bool:
    """A generation is open, and every server whose slots matter is there."""
    return at.record.gen > 0 and at.record.phase != "restoring" and not fleet.wounds(at.record, at.status)


def _generation(at: Situation) -> list[Action]:
    lost = fleet.lost(at.record, at.status)
    wanted = server_places(at)
    result: list[Action] = []
    if lost and at.status.phase in (Phase.RUNNING, Phase.SCALING, Phase.STARTING):
        who = ", ".join(str(member.ps) for member in lost)
        result.append(Move(Phase.RECOVERING, "ParameterServerLost", f"PS {who}"))
    if set(wanted) <= fleet.present(at.status).keys():
        reason = "first generation" if at.record.gen == 0 else "rollback" if at.record.members else "resumed"
        result += operate(at, "open", reason=reason)
    return result


def _fleet(at: Situation) -> list[Action]:
    if at.seen.moving or at.now < at.seen.moving_retry_at or at.record.phase not in ("open", "finishing"):
        return []
    short = _short_of_memory(at)
    if short:
        return short
    step = fleet_step(at)
    if step is not None:
        return [Operate("move", fleet.sentence(step))]
    if fleet.ends_soon(at.job.intent, at.record) or not fleet.is_settled(at.record, at.status, server_places(at)):
        return []
    return _misfits(at) or _hot(at)


def fleet_step(at: Situation) -> fleet.Step | None:
    """What the parameter servers need next."""
    return fleet.next_step(
        at.record, at.status, count=fleet.wanted(at.spec, at.job.intent, at.status, at.record), now=at.now,
        limits=at.limits, only_mend=fleet.ends_soon(at.job.intent, at.record),
    )


def _misfits(at: Situation) -> list[Action]:
    """Processes of another size than is wanted, while all else is settled: they get it in place, or else are replaced,
    one after the other."""
    members, workers = {member.ps for member in at.record.members}, at.status.live("worker")
    unlike = [role for role in at.status.live("ps") if role.index in members and _is_misfit(at, role)]
    others = (*workers, *at.status.live("data"), *at.status.live("evaluator"))
    unlike += [role for role in others if role.stage == "running" and _is_misfit(at, role)]
    refits: list[Action] = [Refit(role.key) for role in unlike if role.name not in at.seen.unfit]
    if refits or not unlike:
        return refits
    first, why = unlike[0], "another size is wanted"
    if first.role == "ps":
        return [Replace(first.key, why)]
    peers = at.status.live(first.role)
    return [Drain(first.key, why)] if all(role.stage == "running" for role in peers) else []


def _short_of_memory(at: Situation) -> list[Action]:
    """Servers that are to have more memory get it before slots come to them."""
    wanted = plan.size(at.spec, at.job.intent, at.status.plan, "ps").memory_bytes
    return [
        Refit(role.key) for role in at.status.live("ps")
        if role.size is not None and role.size.memory_bytes < wanted and role.stage == "running"
        and role.size.memory_bytes and role.name not in at.seen.unfit
    ]


def _is_misfit(at: Situation, role: RoleState) -> bool:
    size = plan.size(at.spec, at.job.intent, at.status.plan, role.role)
    has = role.size or size
    return (has.cpu, has.memory_bytes) != (size.cpu, size.memory_bytes)


def _hot(at: Situation) -> list[Action]:
    """Loads are compared once a whole window lies behind the last placement, and not while a plan is on trial."""
    window_s, status = at.limits.hot_window_s, at.status
    is_early = at.now < max(status.placed_at + window_s, status.judged_at + at.limits.hot_pause_s)
    members = {member.ps for member in at.record.members}
    if not window_s or is_early or status.trial is not None:
        return []
    if status.phase is not Phase.RUNNING or members != at.seen.busy.keys():
        return []
    owned = counts_of(at.record.owner_of)
    loads = {ps: Load(owned.get(ps, 0), busy) for ps, busy in at.seen.busy.items()}
    hot = judge(loads, waiting=at.seen.waiting, limits=at.limits)
    return [Relieve(hot, loads)] if hot is not None else []


def _starved(at: Situation) -> list[Action]:
    """A hot server that cannot even give its slots away in time."""
    relief, record = at.status.relief, at.record
    role = at.status.role(("ps", relief.ps)) if relief is not None else None
    is_moot = role is None or role.stage != "running" or record.phase != "open" or record.moving
    if relief is None or role is None or is_moot or role.since > relief.since:
        return []
    if fleet.ends_soon(at.job.intent, record):
        return []
    copied = at.seen.copied if record.move is not None and record.move.source == relief.ps else 0.0
    owned = counts_of(record.owner_of).get(relief.ps, 0)
    cost_s = rollback_s(at.status, since=relief.since, waiting=at.seen.waiting, now=at.now, limits=at.limits)
    why = is_futile(relief, owned=owned, copied=copied, waiting=at.seen.waiting, cost_s=cost_s, now=at.now,
                    marking=bool(record.marking))
    return [Abandon(role.key, why)] if why else []


def _phase(at: Situation) -> list[Action]:
    status, phase = at.status, at.status.phase
    if at.record.phase not in ("open", "finishing"):
        return []
    workers = at.status.live("worker")
    running = [role for role in workers if role.stage == "running"]
    count = 0 if at.job.intent.winds_down else plan.wanted(at.spec, at.job.intent, at.status.plan, "worker")
    if phase in (Phase.STARTING, Phase.RECOVERING):
        if running or at.seen.drained:
            return [Move(Phase.RUNNING, "GenerationOpen", f"generation {at.record.gen}")]
        return []
    if at.job.intent.winds_down or at.record.phase == "finishing":
        return [Move(Phase.RUNNING, "ScalingEnded")] if phase is Phase.SCALING else []
    wanted = server_places(at)
    is_placed = fleet.is_settled(at.record, status, wanted)
    if phase is Phase.RUNNING and not at.seen.drained and (count != status.settled_workers or not is_placed):
        return [Move(Phase.SCALING, "Scaling", _scaling(at, count, wanted))]
    count += backups(status.slow)
    settled = sum(role.stage != "draining" for role in workers) == len(workers) == count == len(running)
    if phase is Phase.SCALING and ((settled and is_placed) or at.seen.drained):
        return [Move(Phase.RUNNING, "Scaled", f"{count} workers, {len(wanted)} parameter servers")]
    return []


def _scaling(at: Situation, workers: int, servers: tuple[int, ...]) -> str:
    """What is scaled, for people."""
    status, parts = at.status, []
    if workers != status.settled_workers:
        parts.append(f"from {status.settled_workers} to {workers} workers")
    if len(servers) != len(status.settled_ps):
        parts.append(f"from {len(status.settled_ps)} to {len(servers)} parameter servers")
    parts += [f"PS {role.index} is replaced: {role.leaving}" for role in status.live("ps") if role.leaving]
    return "; ".join([*parts, status.rebalance] if status.rebalance else parts) or "slots are placed"


def _procedures(at: Situation) -> list[Action]:
    if at.seen.operation or at.record.phase not in ("open", "finishing"):
        return []
    if at.record.pending.startswith("void:"):
        return operate(at, "void", reason="a quarantine was begun")
    if at.record.marking:
        return operate(at, "abort", reason=f"{at.record.pending} was begun by a jobmaster that is gone")
    if at.seen.quarantine_due:
        return operate(at, "void", reason="a batch killed its workers")
    due = _snapshot_due(at)
    return operate(at, "snapshot", reason=due) if due else []


def _snapshot_due(at: Situation) -> str:
    """Why a snapshot should be cut now; empty when none should."""
    intent, status = at.job.intent, at.status
    if intent.stop:
        return "" if status.live("worker") else "stop"
    if at.record.phase == "finishing":
        return "finish"
    if intent.finish:
        return "finish"
    if intent.suspend:
        return "" if status.live("worker") else "suspend"
    if at.seen.drained:
        return "drained"
    if intent.checkpoint > status.checkpoint_served:
        return "asked for"
    is_time = at.now - max(status.snapshot_at, status.started) >= at.spec.snapshot_every_s
    if is_time and status.samples != status.snapshot_samples:
        return "policy"
    return ""


def next_look_s(at: Situation) -> float:
    """When time alone may change the decision: the seconds until the next look, at most 1."""
    waits = [1.0]
    if at.spec.freshness is not None and not at.seen.operation:
        due = max(at.status.snapshot_at, at.status.started) + at.spec.snapshot_every_s
        waits += [due - at.now] if due > at.now else []
    waits += [r.retry_at - at.now for r in at.status.roles if not r.is_live and r.retry_at > at.now]
    waits += [
        retry - at.now
        for retry in (at.seen.operation_retry_at, at.seen.moving_retry_at, at.seen.publishing_retry_at)
        if retry > at.now
    ]
    return max(0.02, min(waits))
