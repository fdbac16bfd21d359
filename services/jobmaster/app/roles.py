"""What a job's own processes say and ask."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from recmesh.runtime.errors import FailedPrecondition, NotFound
from recmesh.runtime.telemetry import get_logger
from services.jobmaster.app.executors import executors_for, tell_room
from services.jobmaster.app.jobs import Jobs
from services.jobmaster.app.notices import is_told_to_go, note_notice
from services.jobmaster.app.run import Run
from services.jobmaster.domain.evaluation import judged
from services.jobmaster.domain.executors import Executor
from services.jobmaster.domain.job import RoleState
from services.jobmaster.domain.record import RunRecord
from services.jobmaster.domain.vitals import Beat

logger = get_logger(__name__)

MAX_WAIT_S = 60.0
Directive = Literal["continue", "drain", "exit"]


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a process is to do."""

    spec_json: str
    record: RunRecord
    heartbeat_s: float
    shardsvc: str
    ckptcache: str
    storage_uri: str
    task: str = ""
    snapshot: int = 0
    parts: tuple[str, ...] = ()
    export_uri: str = ""
    executors: Sequence[Executor] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """To a heartbeat."""

    directive: Directive
    gen: int = 0
    map_version: int = 0
    phase: str = "closed"
    executors: Sequence[Executor] = ()


class Roles:
    """Use cases of `Runs`."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    async def register(
        self, job_id: str, *, role: str, index: int, incarnation: str, address: str, host: str = ""
    ) -> Assignment:
        """A process says who it is. FailedPrecondition when it is not the one that is wanted at its place."""
        run = self._jobs.held(job_id)
        state = run.status.role((role, index))
        if state is None or not state.is_live or run.status.ending is not None:
            raise FailedPrecondition(f"no {role} {index} is wanted", reason="NOT_WANTED")
        if state.incarnation not in ("", incarnation):
            raise FailedPrecondition(f"another process is {role} {index}", reason="NOT_CURRENT")
        now = run.context.clock.now()
        if state.incarnation != incarnation:
            stage = "running" if state.stage == "starting" else state.stage
            run.put_role(
                state.model_copy(
                    update={"stage": stage, "incarnation": incarnation, "address": address, "since": now, "node": host}
                )
            )
            run.vitals.hear((role, index), Beat(at=now, incarnation=incarnation))
            run.wake()
            await run.flush()
            logger.info("job %s: %s registered at %s", job_id, state.name, address or "no address")
        elif address and state.address != address:
            # A data executor knows what it is to serve, and so where, only after its first registration.
            run.put_role(state.model_copy(update={"address": address}))
            await run.flush()
            logger.info("job %s: %s serves at %s", job_id, state.name, address)
        return await self._assignment(run, role)

    async def _assignment(self, run: Run, role: str) -> Assignment:
        context, closing = run.context, run.status.closing
        assignment = Assignment(
            spec_json=run.job.spec_json, record=run.record, heartbeat_s=context.limits.heartbeat_s,
            shardsvc=context.addresses.shardsvc, ckptcache=context.addresses.ckptcache,
            storage_uri=context.storage_uri, executors=executors_for(self._jobs, run, role),
        )
        if role != "finisher":
            return assignment
        published = run.status.publication
        if closing is None and published is not None:
            number = run.record.last_committed   # of this moment: an older one may be gone before it is read
            document = await context.store.manifest(run.job_id, number) or {}
            return replace(
                assignment, task="publish", snapshot=number, parts=tuple(document.get("parts", ())),
                export_uri=published.export_uri,
            )
        if closing is None:
            return assignment
        document = await context.store.manifest(run.job_id, closing.snapshot) or {}
        return Assignment(
            spec_json=run.job.spec_json, record=run.record, heartbeat_s=context.limits.heartbeat_s,
            shardsvc=context.addresses.shardsvc, ckptcache=context.addresses.ckptcache,
            storage_uri=context.storage_uri, task="finish", snapshot=closing.snapshot,
            parts=tuple(document.get("parts", ())), export_uri=closing.export_uri,
        )

    def heartbeat(self, job_id: str, *, role: str, index: int, beat: Beat) -> Answer:
        """Takes the beat in; a process that is not (or no more) wanted is told to exit."""
        try:
            run = self._jobs.held(job_id)
        except NotFound:
            return Answer("exit")
        record, state = run.record, run.status.role((role, index))
        answer = Answer(
            "continue", record.gen, record.map_version, record.phase, executors_for(self._jobs, run, role)
        )
        if state is None or not state.is_live or state.incarnation != beat.incarnation:
            return Answer("exit", record.gen, record.map_version, record.phase)
        old = run.vitals.beats.get((role, index))
        run.vitals.hear((role, index), beat)
        if role == "worker":
            run.minutes.hear(beat)
        if role == "data":
            tell_room(run, state, old, beat)
        if (
            run.status.ending is not None or (record.phase == "closed" and role != "finisher")
            or state.name in run.killing
        ):
            return Answer("exit", record.gen, record.map_version, record.phase)
        if is_told_to_go(run, state, draining=beat.draining):
            note_notice(run, state)
            run.wake()
        if state.stage == "draining":
            return Answer("drain", record.gen, record.map_version, record.phase)
        return answer

    async def record(self, job_id: str, *, newer_than_gen: int, wait_s: float) -> RunRecord:
        """The record; with a wait, as soon as a newer generation is open or the job is over."""
        run = self._jobs.held(job_id)
        if wait_s <= 0:
            return run.record
        return await run.record_newer_than(newer_than_gen, wait_s=min(wait_s, MAX_WAIT_S))

    async def report(
        self,
        job_id: str,
        *,
        role: str,
        incarnation: str,
        snapshot: int,
        samples: int,
        metrics: Mapping[str, float],
        model_uri: str,
        framework: str,
        error: str,
        final: bool,
    ) -> None:
        """What an evaluator or finisher has measured or written; or why a process cannot go on."""
        run = self._jobs.held(job_id)
        state = next((s for s in run.status.roles if s.role == role and s.incarnation == incarnation), None)
        if state is None:
            raise FailedPrecondition(f"this process is no {role} of the job", reason="NOT_CURRENT")
        if error:
            run.errors[state.name] = error
            return
        finite = {_metric(name): value for name, value in metrics.items() if math.isfinite(value)}
        if finite:
            run.update(metrics=run.status.metrics | finite)
            # An evaluator knows what it judged, not how far training was.
            run.telling.evaluated(samples=samples or run.status.samples, metrics=finite, snapshot=snapshot)
        if final and role == "finisher":
            await self._finished(run, state, snapshot=snapshot, model_uri=model_uri, framework=framework)
        elif role == "evaluator":
            await self._judge(run, finite)

    async def _finished(
        self, run: Run, state: RoleState, *, snapshot: int, model_uri: str, framework: str
    ) -> None:
        closing, published = run.status.closing, run.status.publication
        if published is not None and model_uri == published.export_uri:
            made = {"by": state.incarnation, "snapshot": snapshot, "framework": framework}
            run.update(publication=published.model_copy(update=made))
            await run.flush()
            run.wake()
            return
        if closing is None:
            raise FailedPrecondition(f"{state.name} was not asked to finish", reason="NOT_CURRENT")
        run.update(
            model_uri=model_uri,
            closing=closing.model_copy(
                update={"reported": True, "reported_at": run.context.clock.now(), "framework": framework}
            ),
        )
        await run.flush()
        run.wake()

    async def _judge(self, run: Run, metrics: Mapping[str, float]) -> None:
        """Early stopping."""
        rule = run.spec.training.early_stopping
        value = metrics.get(f"eval_{rule.metric}") if rule is not None else None
        if rule is None or value is None:
            return
        best, stale = judged(rule, value, best=run.status.best_metric, stale=run.status.stale_evaluations)
        run.update(best_metric=best, stale_evaluations=stale)
        await run.flush()
        if stale >= rule.patience:
            reason = f"early stopping: {rule.metric} has not improved in {stale} evaluations"
            # Whoever asked for the end first has given its reason; evaluations go on until it has come.
            await run.wish(
                lambda intent: intent if intent.finish or intent.stop
                else intent.model_copy(update={"finish": True, "reason": reason})
            )


def _metric(name: str) -> str:
    """Of evaluation data, so that it is not taken for a training metric."""
    return name if name.startswith("eval_") else f"eval_{name}"
