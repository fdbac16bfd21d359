"""Memory of a job's processes: limits raised before parameter servers reach them, and after one was killed for it."""

from recmesh.runtime.telemetry import get_logger
from services.jobmaster.app.looking import look_every
from services.jobmaster.app.run import Run
from services.jobmaster.app.timeline import conclude, decide
from services.jobmaster.domain import fleet
from services.jobmaster.domain import memory as rules
from services.jobmaster.domain import plan as plans
from services.jobmaster.domain.job import RoleState, Size
from services.jobmaster.domain.memory import MIB, Answer, Growth, Point, hottest

logger = get_logger(__name__)

LOOK_S = 1.0


def limit_of(run: Run, role: str) -> int:
    """Bytes that one process of the role may use; 0: no limit."""
    planned = plans.size(run.spec, run.job.intent, run.status.plan, role).memory_bytes
    return max(planned, run.status.memory.get(role, 0)) if planned else 0


async def after_oom(run: Run, role: RoleState, *, how: str) -> None:
    """A process was killed for memory: the next one of its role gets more, where it may."""
    limit = limit_of(run, role.role)
    if not limit:
        decide(
            run, matter="memory", place=role.place, seen=how,
            decision="started again as it was: it had no limit of its own that could be raised",
        )
        return
    ceiling = await _ceiling(run, role.role, limit)
    answer = rules.after_oom(role.role, limit, ceiling=ceiling, limits=run.context.limits)
    number = decide(
        run, matter="memory", place=role.place, seen=f"killed for memory: {how}",
        decision=_text(answer, limit) if answer.kind == "raise" else f"started again as it was: {answer.reason}",
    )
    if answer.kind == "raise":
        await _raise(run, role.role, limit, answer, number, cause="oom")


class MemoryWatch:
    """Looks at the growth of each parameter server of one job."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._growths: dict[int, Growth] = {}
        self._answered_at = self._placed_at = 0.0
        self._told: dict[int, str] = {}
        """By parameter server: why nothing could be done about it, as last told."""

    async def watch(self) -> None:
        """Runs until it is cancelled. A horizon of 0 leaves memory alone until it is too late."""
        if self._run.context.limits.memory_horizon_s > 0:
            await look_every(self._run, LOOK_S, self.look, at="its memory")

    async def look(self) -> None:
        """Hear, forecast, answer; one answer within a cooldown, and none before the last one's servers have slots."""
        run, now = self._run, self._run.context.clock.now()
        if run.record.phase != "open" or run.status.ending is not None:
            self._growths.clear()
            return
        if run.status.placed_at != self._placed_at:
            self._placed_at = run.status.placed_at
            self._growths.clear()                            # other slots, other rows
            if self._answered_at:
                self._answered_at = self._placed_at
        self._hear(now)
        if not self._is_settled():
            return
        limit, limits = limit_of(run, "ps"), run.context.limits
        if now - self._answered_at < limits.memory_cooldown_s:
            return
        found = []
        for index, growth in self._growths.items():
            short = rules.forecast(
                growth, limit_bytes=limit, total=run.status.samples + run.status.remaining,
                samples_per_s=run.status.samples_per_s, limits=limits,
            )
            if short is not None:
                found.append((index, short))
        if found:
            self._answered_at = now
            await self._answer(*hottest(found), limit=limit)

    def _is_settled(self) -> bool:
        run = self._run
        count = fleet.wanted(run.spec, run.job.intent, run.status, run.record)
        return fleet.is_settled(run.record, run.status, fleet.places(run.record, run.status, count=count))

    def _hear(self, now: float) -> None:
        run = self._run
        running = {role.index: role for role in run.status.live("ps") if role.stage == "running"}
        for index in set(self._growths) - set(running):
            del self._growths[index]
        for index, role in running.items():
            growth = self._growths.get(index)
            if growth is None or growth.incarnation != role.incarnation:
                growth = self._growths[index] = Growth(
                    role.incarnation, settle_s=run.context.limits.memory_settle_s
                )
            beat = run.vitals.beats.get(role.key)
            if beat is not None and beat.incarnation == role.incarnation:
                growth.hear(Point(now, run.status.samples, beat.rows, beat.memory_bytes))

    async def _answer(self, index: int, short: rules.Forecast, *, limit: int) -> None:
        run = self._run
        declared, planned = run.spec.roles.ps, run.status.plan
        count = plans.wanted(run.spec, run.job.intent, planned, "ps")
        why_not = rules.why_no_server(
            pinned=plans.pin(run.spec, run.job.intent, "ps") is not None, count=count, most=declared.max
        )
        ceiling = await _ceiling(run, "ps", limit)
        answer = rules.grown(
            limit, wanted_bytes=short.wanted_bytes, ceiling=ceiling, may_add_servers=why_not, limits=run.context.limits
        )
        if answer.kind == "nothing":
            if self._told.get(index) == answer.reason:
                return
            self._told[index] = answer.reason
        else:
            self._told.pop(index, None)
        number = decide(
            run, matter="memory", place=_place("ps", index), seen=short.seen, decision=_text(answer, limit)
        )
        if answer.kind == "raise":
            await _raise(run, "ps", limit, answer, number, cause="forecast")
        elif answer.kind == "more servers" and "ps" in planned:
            more = planned["ps"].model_copy(update={"replicas": count + 1})
            run.update(plan={**planned, "ps": more})
            conclude(run, number, done=f"the plan has {count + 1} parameter servers, {count} before")
            run.telling.scaled(role="ps", before=count, after=count + 1, reason=f"memory: {short.seen}")
            await run.flush()
            run.wake()


async def _ceiling(run: Run, role: str, limit: int) -> tuple[int, str]:
    declared = run.spec.roles.worker if role == "finisher" else getattr(run.spec.roles, role)
    asked = run.job.intent.sizes.get(role, Size())
    capacity = await run.context.cluster.capacity(run.job_id)
    return rules.ceiling_of(
        pin_bytes=asked.memory_bytes or declared.memory or 0, most_bytes=declared.memory_max or 0,
        free_bytes=capacity.memory_bytes, limit_bytes=limit, limits=run.context.limits,
    )


async def _raise(run: Run, role: str, limit: int, answer: Answer, number: int, *, cause: str) -> None:
    """For all processes of the role: those that run now, where their controller can, and those to come."""
    run.update(memory=run.status.memory | {role: answer.memory_bytes})
    run.telling.memory_raised(
        role=role, before=limit, after=answer.memory_bytes, cause=cause, reason=_text(answer, limit)
    )
    await run.flush()
    changed, living = 0, run.status.live(role)
    for state in living:
        changed += await run.context.cluster.resize(
            run.job_id, state.name, cpu=None, memory_bytes=answer.memory_bytes
        )
    done = f"{changed} of {len(living)} that run have it now" if living else "for the next process"
    conclude(run, number, done=done)


def _text(answer: Answer, limit: int) -> str:
    if answer.kind == "raise":
        told = f"the limit is raised from {limit / MIB:,.0f} to {answer.memory_bytes / MIB:,.0f} MiB"
        return f"{told} ({answer.reason})" if answer.reason else told
    if answer.kind == "more servers":
        return f"one more parameter server is asked for; {answer.reason}"
    return f"nothing can be done; {answer.reason}"


def _place(role: str, index: int) -> str:
    return f"{role} {index}"
