"""How each action of the rules is carried out (procedures apart)."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from recmesh.runtime.errors import MeshError, MeshFault, ResourceExhausted
from recmesh.runtime.telemetry import get_logger
from recmesh.spec.job import Role
from services.jobmaster.app.memory import after_oom, limit_of
from services.jobmaster.app.notices import is_told_to_go, note_notice
from services.jobmaster.app.queue import release_worker
from services.jobmaster.app.relief import relieve
from services.jobmaster.app.run import Run
from services.jobmaster.app.suspending import resume
from services.jobmaster.app.timeline import arrived, decide
from services.jobmaster.cluster import Amounts, Group, Owner, StartOrder
from services.jobmaster.domain import plan
from services.jobmaster.domain.exits import Cause, Exit, Verdict, judge, retry_delay_s
from services.jobmaster.domain.failures import ruled
from services.jobmaster.domain.job import Ending, RoleKey, RoleState
from services.jobmaster.domain.phase import Phase
from services.jobmaster.domain.situation import (
    Abandon,
    Action,
    Drain,
    End,
    Kill,
    Launch,
    Move,
    NoteExit,
    Operate,
    Refit,
    Relieve,
    Replace,
)

logger = get_logger(__name__)

TOKEN = "RECMESH_TOKEN"
LET_GO_S = 15.0
"""A process that is to end by itself, so that its pod stays, is ended after it."""
READERS = ("worker", "data")
"""Roles that read the job's data."""
ON_GENERATION = frozenset({"open", "snapshot", "void", "abort"})
"""Procedures that need all parameter servers of the generation."""
ON_MEMBERS = frozenset({"move"})
"""Procedures that may concern any parameter server."""
EVERYTHING = ON_GENERATION | ON_MEMBERS | {"plan", "close", "register"}

Cancel = Callable[[frozenset[str]], None]


class Acts:
    """Changes the status and the cluster as the rules say."""

    def __init__(self, run: Run) -> None:
        self._run = run

    async def carry_out(self, action: Action, cancel: Cancel) -> None:
        """One action; its effect on the status is stored before its effect on the world."""
        match action:
            case NoteExit(key, exit):
                await self._note_exit(key, exit, cancel)
            case Launch(key):
                await self.launch([key])
            case Drain(key, reason):
                await self._drain(key, reason)
            case Replace(key, reason):
                await self._replace(key, reason)
            case Refit(key):
                await self._refit(key)
            case Relieve(hot, loads):
                await relieve(self._run, hot, loads)
            case Abandon(key, reason):
                await self._abandon(key, reason)
            case Kill(name, reason, hard, matter):
                if matter:
                    self._decide_kill(name, reason, matter)
                await self._kill(name, reason, hard=hard)
            case Move(phase, reason, message):
                await self._move(phase, reason, message)
            case End(ending):
                cancel(EVERYTHING)
                self._run.update(ending=ending)
                await self._run.flush()
            case Operate():
                raise RuntimeError("procedures are the runner's")

    async def launch(self, keys: Sequence[RoleKey]) -> None:
        """Notes all starts, then starts all at once."""
        if not keys:
            return
        roles = [self._next_attempt(key) for key in keys]
        for role in roles:
            self._run.put_role(role)
        await self._run.flush()
        await asyncio.gather(*map(self._start, roles))

    def _next_attempt(self, key: RoleKey) -> RoleState:
        run, (name, index) = self._run, key
        old, now = run.status.role(key), run.context.clock.now()
        if old is not None and old.is_live:
            return old  # noted by a jobmaster that died before it could start it
        size = plan.size(run.spec, run.job.intent, run.status.plan, name)
        if old is None:
            return RoleState(role=name, index=index, since=now, size=size)
        return RoleState(
            role=name, index=index, attempt=old.attempt + 1, since=now, streak=old.streak, samples=old.samples,
            size=size,
        )

    async def _start(self, role: RoleState) -> None:
        run, key = self._run, role.key
        size = role.size or plan.size(run.spec, run.job.intent, run.status.plan, role.role)
        order = StartOrder(
            job_id=run.job_id, name=role.name, role=role.role, index=role.index,
            env=self._env(role.role, role.index), cpu=size.cpu, memory_bytes=limit_of(run, role.role),
            gpu=size.gpu, gpu_kind=size.gpu_kind, image=run.spec.model.image,
            secrets=frozenset((TOKEN, *run.context.topics_env, *run.context.mesh_topics_env)),
            template=self._declared(role.role).pod_template,
            owner=Owner(ref.namespace, ref.name, ref.uid) if (ref := run.job.object) else None,
            spec=run.spec, sizes={name: self._amounts(name) for name in (*plan.ROLES, "finisher")},
            instances=sum(
                plan.wanted(run.spec, run.job.intent, run.status.plan, each) for each in plan.planned_roles(run.spec)
            ),
            group=self._group(),
        )
        try:
            process = await run.context.cluster.start(order)
        except MeshError as error:
            # What is away, or full, is not the job's failure.
            cause: Cause = "refused" if isinstance(error, MeshFault | ResourceExhausted) else ""
            failed = Exit(reason=f"it cannot be started: {error.message}", cause=cause)
            await self._note_exit(key, failed, lambda names: None)
            return
        # It may have registered by now: only the handle is added.
        current = run.status.role(key) or role
        run.put_role(current.model_copy(update={"handle": process.handle}))
        if process.limits_note:
            run.note(f"limits of cpu and memory are not enforced: {process.limits_note}")
        run.telling.role_started(current.model_copy(update={"handle": process.handle}))
        arrived(run, place=role.place, name=role.name)

    def _amounts(self, role: str) -> Amounts:
        """What a process of the role would get now."""
        run = self._run
        size = plan.size(run.spec, run.job.intent, run.status.plan, role)
        return Amounts(size.cpu, limit_of(run, role), size.gpu, size.gpu_kind)

    def _group(self) -> Group | None:
        run, policy = self._run, self._run.spec.pod_group_policy
        if policy is None:
            return None
        return Group(policy, plan.least(run.spec, run.job.intent, run.status.plan))

    def _env(self, role: str, index: int) -> dict[str, str]:
        context = self._run.context
        declared = self._declared(role)
        return {
            # One thread per process: two OpenMP threads under contention collapse (scale by processes).
            "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
            "NUMBA_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1",
            "TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONUNBUFFERED": "1",
            **context.role_env,
            **(self._topics_env() if role in READERS else {}),
            **declared.env,
            "RECMESH_ROLE": role, "RECMESH_ROLE_INDEX": str(index), "RECMESH_JOB_ID": self._run.job_id,
            "RECMESH_JOBMASTER": context.addresses.jobmaster(),
        }

    def _declared(self, role: str) -> Role:
        """What the spec says of the role; a finisher is as a worker."""
        found: Role = getattr(self._run.spec.roles, "worker" if role == "finisher" else role)
        return found

    def _topics_env(self) -> dict[str, str]:
        """What it takes to read the job's topics, and nothing where it has none."""
        context, data = self._run.context, self._run.spec.data
        if data is None or not data.has_topics:
            return {}
        sources = [source for stream in data.streams for source in stream.sources]
        of_mesh = any(source.jetstream and not source.servers for source in sources)
        return {**context.topics_env, **(context.mesh_topics_env if of_mesh else {})}

    async def _note_exit(self, key: RoleKey, exit: Exit, cancel: Cancel) -> None:
        run, now = self._run, self._run.context.clock.now()
        role = run.status.role(key)
        if role is None:
            return
        told = run.errors.pop(role.name, "")
        if told:
            exit = replace(exit, last_line=told)
        why = run.killed_for.pop(role.name, "")
        if why and exit.signal is not None and not exit.oom:
            exit = replace(exit, reason=f"ended by jobmaster: {why}")
        if is_told_to_go(run, role, exit=exit):
            role = note_notice(run, role)
        verdict = ruled(run.spec.pod_failure_policy, role.role, exit, self._judge(role, exit))
        # Training goes well without a model that is served meanwhile, whatever keeps it from being exported.
        publishes = role.role == "finisher" and run.status.closing is None
        run.killing.pop(role.name, None)
        beat = run.vitals.forget(key)
        lived_long = now - role.since >= run.context.limits.retry_reset_s
        streak = 0 if not verdict.is_uncommanded else (1 if lived_long else role.streak + 1)
        limits = run.context.limits
        delay_s = retry_delay_s(streak, base_s=limits.retry_base_s, ceiling_s=limits.retry_ceiling_s)
        if verdict.kind == "done":
            delay_s = limits.retry_base_s
        ended = role.model_copy(
            update={
                "stage": "exited", "exit_reason": verdict.text[:2000], "done": verdict.kind == "done",
                "streak": streak, "retry_at": now + delay_s, "since": now,
                "samples": role.samples + (beat.samples if beat else 0),
            }
        )
        run.put_role(ended)
        if beat is not None:
            run.update(
                skipped_nan=run.status.skipped_nan + beat.skipped_nan,
                bad_records=run.status.bad_records + beat.bad_records,
            )
        if role.role == "worker" and verdict.counts and exit.batch is not None:
            run.status = run.status.with_death(exit.batch)
        if publishes:
            if verdict.is_uncommanded:
                run.note(f"the model is not served yet, its export is tried again: {verdict.text}")
        elif run.status.ending is None:
            self._count(role, verdict)
            if verdict.action == "FailJob":
                rule = f"pod_failure_policy.rules.{verdict.rule}"
                message = f"{role.place}: {verdict.text} ({rule})"[:2000]
                cancel(EVERYTHING)
                run.update(ending=Ending(phase=Phase.FAILED, reason="PodFailurePolicy", message=message))
        has_tries = run.status.failures <= run.spec.backoff_limit and not run.status.mistakes
        if verdict.is_uncommanded and delay_s and has_tries and run.status.ending is None:
            again = f"{role.place} ended "
            how = f"{streak} times in a row, last: {verdict.text[:500]}"
            at = datetime.fromtimestamp(ended.retry_at, UTC)
            run.note(f"{again}{how}; the next start is at {at:%H:%M:%S} UTC, after {delay_s:.0f} s", instead_of=again)
        if role.role == "ps":
            run.context.peers.servers.forget(role.address)
            cancel(_concerned(run, role))
        logger.info("job %s: %s ended: %s", run.job_id, role.name, verdict.text)
        run.telling.role_exited(
            ended, code=exit.code, reason=verdict.text, expected=not verdict.is_uncommanded
        )
        if verdict.kind == "oom" and run.status.ending is None:
            await after_oom(run, role, how=verdict.text)
        await run.flush()
        if role.role == "worker" and role.incarnation:
            run.in_background(
                release_worker(
                    run, index=role.index, incarnation=role.incarnation, crashed=verdict.is_uncommanded,
                    blame=verdict.counts and not exit.knows_batch,
                )
            )

    def _judge(self, role: RoleState, exit: Exit) -> Verdict:
        verdict = judge(role, exit)
        closing, published = self._run.status.closing, self._run.status.publication
        has_published = published is not None and published.by != "" and published.by == role.incarnation
        has_reported = has_published or (closing is not None and closing.reported)
        if role.role == "finisher" and verdict.kind == "done" and not has_reported:
            return Verdict("crash", "it ended without a report")
        if role.role in ("ps", "data", "evaluator") and verdict.kind == "done":
            if self._run.record.phase == "closed" or self._run.status.ending is not None:
                return Verdict("commanded", "asked to go")  # by the answer to its heartbeat
            return Verdict("retry", "it ended by itself")
        return verdict

    def _count(self, role: RoleState, verdict: Verdict) -> None:
        status = self._run.status
        if verdict.counts:
            self._run.update(failures=status.failures + 1)
        if verdict.is_mistake:
            told = status.mistake or verdict.text
            self._run.update(mistakes=status.mistakes + 1, mistake=told)
        if verdict.kind == "oom":
            self._run.note(f"{role.role} {role.index} ran out of memory: {verdict.text}")

    async def _drain(self, key: RoleKey, reason: str) -> None:
        run = self._run
        role = run.status.role(key)
        if role is None or not role.is_live:
            return
        logger.info("job %s: %s drains: %s", run.job_id, role.name, reason)
        run.put_role(role.model_copy(update={"stage": "draining", "since": run.context.clock.now()}))
        await run.flush()
        await run.context.cluster.drain(run.job_id, role.name)

    async def _replace(self, key: RoleKey, reason: str) -> None:
        run = self._run
        role = run.status.role(key)
        if role is None or not role.is_live or role.leaving:
            return
        run.put_role(role.model_copy(update={"leaving": reason, "leaving_since": run.context.clock.now()}))
        decide(
            run, matter="replacement", place=role.place, seen=reason, decision="another process takes over its slots"
        )
        await run.flush()

    async def _refit(self, key: RoleKey) -> None:
        run = self._run
        role = run.status.role(key)
        if role is None or not role.is_live:
            return
        size, memory_bytes = plan.size(run.spec, run.job.intent, run.status.plan, key[0]), limit_of(run, key[0])
        done = await run.context.cluster.resize(run.job_id, role.name, cpu=size.cpu, memory_bytes=memory_bytes)
        if not done:
            run.unfit.add(role.name)
            return
        logger.info("job %s: %s has %g cores and %d bytes now", run.job_id, role.name, size.cpu, memory_bytes)
        run.telling.role_resized(role, cpu=size.cpu, memory_bytes=memory_bytes)
        run.put_role((run.status.role(key) or role).model_copy(update={"size": size}))
        await run.flush()

    async def _abandon(self, key: RoleKey, reason: str) -> None:
        run = self._run
        role = run.status.role(key)
        if role is None or not role.is_live:
            return
        # Its end is commanded; the server that takes its place is as good as any.
        run.put_role(role.model_copy(update={"stage": "draining", "since": run.context.clock.now()}))
        for other in run.status.live("ps"):
            run.put_role(other.model_copy(update={"weight": 1.0}))
        decide(
            run, matter="hot ps", place=role.place, seen=reason,
            decision="it is ended, and another takes its place; the job goes on from the last snapshot",
        )
        run.update(relief=None)
        await run.flush()
        await self._kill(role.name, reason, hard=True)

    def _decide_kill(self, name: str, reason: str, matter: str) -> None:
        role = next((role for role in self._run.status.roles if role.name == name), None)
        rest = "; the job goes on from the last snapshot" if role is not None and role.role == "ps" else ""
        decide(
            self._run, matter=matter, place=role.place if role is not None else name, seen=reason,
            decision=f"it is killed, and another takes its place{rest}",
        )

    async def _kill(self, name: str, reason: str, *, hard: bool) -> None:
        run = self._run
        logger.info("job %s: %s is ended: %s", run.job_id, name, reason)
        role = next((role for role in run.status.roles if role.name == name and role.is_live), None)
        if role is not None and not hard and role.stage != "draining":
            # Its end is commanded from now on; a silent process's is not.
            run.put_role(role.model_copy(update={"stage": "draining", "since": run.context.clock.now()}))
            await run.flush()
        if hard:
            run.killed_for[name] = reason
        run.killing[name] = run.context.clock.now()
        if not hard and self._leaves_pods():
            run.in_background(self._stop_later(name))
            return
        grace_s = 0.0 if hard else run.context.limits.terminate_grace_s
        await run.context.cluster.stop(run.job_id, name, grace_s=grace_s)

    def _leaves_pods(self) -> bool:
        """Processes end by the answers to their heartbeats, so that their pods stay."""
        run = self._run
        is_end = run.status.ending is not None or run.record.phase == "closed"
        return is_end and run.spec.clean_pod_policy == "None" and not run.job.intent.delete

    async def _stop_later(self, name: str) -> None:
        run = self._run
        cluster = run.context.cluster
        await run.context.clock.sleep(LET_GO_S)
        try:
            if any(item.name == name and item.exit is None for item in await cluster.processes(run.job_id)):
                await cluster.stop(run.job_id, name, grace_s=run.context.limits.terminate_grace_s)
        except MeshError as error:
            logger.warning("job %s: %s is not ended yet: %s", run.job_id, name, error.message)
            run.killing.pop(name, None)
            run.wake()

    async def _move(self, phase: Phase, reason: str, message: str) -> None:
        run = self._run
        if phase is Phase.SCALING:
            after = plan.wanted(run.spec, run.job.intent, run.status.plan, "worker")
            if after != run.status.settled_workers:
                run.telling.scaled(
                    role="worker", before=run.status.settled_workers, after=after, reason=run.why_scaled
                )
            run.update(settled_workers=after)
        if phase is Phase.PENDING:
            resume(run)
        run.move(phase, reason=reason, message=message)
        await run.flush()
        await asyncio.sleep(0)


def _concerned(run: Run, role: RoleState) -> frozenset[str]:
    """The procedures that make no sense any more without this parameter server."""
    record = run.record
    if record.phase not in ("open", "finishing") or role.index in {member.ps for member in record.owning}:
        return ON_GENERATION | ON_MEMBERS
    return ON_MEMBERS if record.member(role.index) is not None else frozenset()
