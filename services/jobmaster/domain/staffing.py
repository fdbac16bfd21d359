"""Processes: whose end is to be noted, who is silent or stuck, which places are to be filled, who is to go."""

from services.jobmaster.domain import fleet, plan
from services.jobmaster.domain.exits import Exit
from services.jobmaster.domain.situation import Action, Drain, Kill, Launch, NoteExit, Situation
from services.jobmaster.domain.straggler import backups


def ended(at: Situation) -> list[Action]:
    """Places whose process has ended."""
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


def strangers(at: Situation, *, keep: frozenset[str] = frozenset()) -> list[Action]:
    """Processes that live and should not."""
    return [
        Kill(process.name, "it belongs to no place of the job")
        for process in at.seen.processes.values()
        if process.exit is None and process.name not in keep | at.seen.killing
    ]


def silent(at: Situation) -> list[Action]:
    """Processes of which nothing was heard for too long, or that drain for too long."""
    result: list[Action] = []
    for role in at.status.roles:
        process = at.seen.processes.get(role.name)
        if not role.is_live or process is None or process.exit is not None or role.name in at.seen.killing:
            continue
        heard = at.seen.heard.get(role.key)
        since = max(role.since, at.seen.watching_since)
        if role.stage == "starting":
            if at.now - max(since, at.seen.waited.get(role.name, 0.0)) > at.limits.start_grace_s:
                why = f"did not register within {at.limits.start_grace_s:g} s"
                result.append(Kill(role.name, why, hard=True, matter="silence"))
        elif at.now - max(heard or 0.0, since) > at.limits.patience_s(at.now - role.since):
            why = f"silent for {at.now - max(heard or 0.0, since):.0f} s"
            result.append(Kill(role.name, why, hard=True, matter="silence"))
        elif role.stage == "draining" and at.now - role.since > at.limits.drain_s:
            result.append(Kill(role.name, f"still draining after {at.limits.drain_s:g} s"))
    return result


def stalled(at: Situation) -> list[Action]:
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
            why = f"trained nothing for {stalled_s:.0f} s"
            result.append(Kill(role.name, why, hard=True, matter="stall"))
    return result


def staff(at: Situation) -> list[Action]:
    """Places are filled, surplus processes drain."""
    named = frozenset(role.name for role in at.status.roles if role.is_live)
    result: list[Action] = strangers(at, keep=named)
    members = {member.ps for member in at.record.members}
    intent = at.job.intent
    why = "stop" if intent.stop else "suspended" if intent.suspend else "scaled down"
    for name in ("ps", "data", "worker", "evaluator"):
        wanted = _places(at, name)
        for index in wanted:
            if is_due(at, name, index) and not (name in ("data", "worker") and at.record.phase == "finishing"):
                result.append(Launch((name, index)))
        for role in at.status.live(name):
            lingers = at.now < role.left_at + at.limits.linger_s and not intent.winds_down
            is_needed = role.index in wanted or (name == "ps" and (role.index in members or lingers))
            if not is_needed and role.stage != "draining":
                result.append(Drain(role.key, role.leaving or why))
    return result


def _places(at: Situation, name: str) -> tuple[int, ...]:
    if name == "ps":
        return server_places(at)
    if at.job.intent.winds_down:
        return ()
    count = plan.wanted(at.spec, at.job.intent, at.status.plan, name)
    return tuple(range(count + (backups(at.status.slow) if name == "worker" else 0)))


def server_places(at: Situation) -> tuple[int, ...]:
    """The numbers at which parameter servers are wanted."""
    count = fleet.wanted(at.spec, at.job.intent, at.status, at.record)
    return fleet.places(at.record, at.status, count=count)


def is_due(at: Situation, name: str, index: int) -> bool:
    """The place is empty, and its next process may start now."""
    role = at.status.role((name, index))
    if role is None:
        return True
    if role.is_live:
        # Started but not to be found: this jobmaster's predecessor died between the note and the start.
        return role.stage == "starting" and role.name not in at.seen.processes
    if name == "worker" and (at.seen.drained or (role.done and at.seen.drained is None)):
        return False
    return at.now >= role.retry_at
