"""Domain to protobuf and back."""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from recmesh.pb import common_pb2, jobmaster_pb2
from recmesh.spec.job import TrainingJob
from services.jobmaster.domain.executors import Executor
from services.jobmaster.domain.facts import namespace_of
from services.jobmaster.domain.job import AcceptedJob, JobStatus, RoleKey, RoleState
from services.jobmaster.domain.record import RunRecord
from services.jobmaster.domain.vitals import Beat, Scores, Serving, StepTimes


def run_record(record: RunRecord) -> jobmaster_pb2.RunRecord:
    """The record as roles read it."""
    return jobmaster_pb2.RunRecord(
        job_id=record.job_id, gen=record.gen, term=record.term, phase=record.phase,
        base_snapshot=record.base_snapshot, last_committed=record.last_committed,
        map=common_pb2.SlotMap(version=record.map_version, owners=record.owners_bytes),
        members=[
            common_pb2.Member(ps=member.ps, address=member.address, incarnation=member.incarnation)
            for member in record.members
        ],
        voids=[common_pb2.Piece(line=line, lo=lo, hi=hi) for line, lo, hi in record.voids],
        reserved_version=record.reserved_version, pending=record.pending, revision=record.revision,
    )


def job(
    accepted: AcceptedJob,
    spec: TrainingJob,
    status: JobStatus,
    record: RunRecord,
    *,
    beats: Mapping[RoleKey, Beat],
    wanted: Mapping[str, int],
    pinned: Mapping[str, bool],
) -> jobmaster_pb2.Job:
    """The job as users see it."""
    closing, published = status.closing, status.publication
    name = closing.model_name if closing is not None and closing.registered else ""
    if not name and published is not None and published.registered:
        name = published.model_name
    return jobmaster_pb2.Job(
        job_id=accepted.job_id, name=spec.name, owner=spec.owner, labels=dict(spec.labels),
        spec_json=accepted.spec_json, phase=status.phase, reason=status.reason, message=status.message,
        created=accepted.created, started=status.started, ended=status.ended, gen=record.gen,
        snapshot=record.last_committed, progress=_progress(spec, status, beats),
        roles=[_role(state, beats.get(state.key), status) for state in status.roles],
        metrics=dict(status.metrics), model_name=name, model_version=status.model_version,
        model_uri=status.model_uri,
        transitions=[
            jobmaster_pb2.Transition(
                from_phase=step.source, to_phase=step.target, reason=step.reason, at=step.at
            )
            for step in status.transitions
        ],
        notes=list(status.notes), wanted=dict(wanted), pinned=dict(pinned), namespace=namespace_of(spec, accepted),
    )


def _progress(
    spec: TrainingJob, status: JobStatus, beats: Mapping[RoleKey, Beat]
) -> jobmaster_pb2.Progress:
    rate = 0.0 if status.has_ended and not status.samples_per_s else status.samples_per_s
    left = 0 if status.goes_on else status.remaining
    workers = [beat for (role, _), beat in beats.items() if role == "worker"]
    skipped, bad = sum(beat.skipped_nan for beat in workers), sum(beat.bad_records for beat in workers)
    return jobmaster_pb2.Progress(
        samples=status.samples, total=0 if status.goes_on else status.total, samples_per_s=rate,
        eta_s=left / rate if rate > 0 and not status.has_ended else 0.0, epochs=spec.training.epochs,
        requeues=status.requeues, quarantined=status.quarantined, skipped_nan=status.skipped_nan + skipped,
        waits_for="" if status.has_ended else status.waits_for, event_time=status.event_time,
        bad_records=status.bad_records + bad, partitions=status.partitions,
        lag_messages=0 if status.has_ended else status.lag_messages, lag_s=0.0 if status.has_ended else status.lag_s,
    )


def _role(state: RoleState, beat: Beat | None, status: JobStatus) -> jobmaster_pb2.Role:
    role = jobmaster_pb2.Role(
        role=state.role, index=state.index, incarnation=state.incarnation, state=state.stage,
        handle=state.handle, address=state.address, restarts=state.attempt - 1, exit_reason=state.exit_reason,
        since=state.since, samples=state.samples, node=state.node,
    )
    if state.size is not None and state.stage != "exited":
        role.cpu_limit = state.size.cpu
        grown = status.memory.get(state.role, 0)                # after it ran out of memory
        role.memory_limit_bytes = max(state.size.memory_bytes, grown) if state.size.memory_bytes else 0
    if beat is not None:
        role.samples_per_s = beat.samples_per_s
        role.step.CopyFrom(step_times(beat.step))
        role.memory_bytes = beat.memory_bytes
        role.cpu_s = beat.cpu_s
        role.rows = beat.rows
        role.samples = state.samples + beat.samples
        if beat.serving is not None:
            role.serving.CopyFrom(_serving(beat.serving))
    return role


def step_times(step: StepTimes) -> jobmaster_pb2.StepTimes:
    """Means per step."""
    return jobmaster_pb2.StepTimes(
        data_s=step.data_s, pull_s=step.pull_s, compute_s=step.compute_s, push_s=step.push_s,
        total_s=step.total_s, steps=step.steps,
    )


def beat(request: jobmaster_pb2.HeartbeatRequest, *, at: float) -> Beat:
    """A heartbeat, at the time of its arrival."""
    step = request.step
    return Beat(
        at=at, incarnation=request.incarnation, gen=request.gen, samples=request.samples,
        step=StepTimes(step.data_s, step.pull_s, step.compute_s, step.push_s, step.total_s, step.steps),
        loss=request.loss, auc=request.auc, window_samples=request.window_samples,
        memory_bytes=request.memory_bytes, cpu_s=request.cpu_s, rows=request.rows, busy_s=request.busy_s,
        skipped_nan=request.skipped_nan, bad_records=request.bad_records, note=request.note, draining=request.draining,
        serving=_serving_from(request.serving) if request.HasField("serving") else None,
        occupied_s=request.occupied_s,
        scores=tuple(
            Scores(tuple(each.bins), tuple(each.positives), tuple(each.negatives)) for each in request.scores
        ),
    )


def executors(found: Sequence[Executor]) -> list[jobmaster_pb2.Executor]:
    """Data executors, for whom they are to be used by."""
    return [
        jobmaster_pb2.Executor(
            address=each.address, incarnation=each.incarnation, accepting=each.accepting, queued=each.queued
        )
        for each in found
    ]


def _serving(serving: Serving) -> jobmaster_pb2.ServingBuffer:
    return jobmaster_pb2.ServingBuffer(
        queued=serving.queued, held_bytes=serving.held_bytes, limit_bytes=serving.limit_bytes,
        accepting=serving.accepting, forwarded=serving.forwarded, taken=serving.taken, decoded=serving.decoded,
        waited_s=serving.waited_s,
    )


def _serving_from(message: jobmaster_pb2.ServingBuffer) -> Serving:
    return Serving(
        message.queued, message.held_bytes, message.limit_bytes, message.accepting, message.forwarded,
        message.taken, message.decoded, message.waited_s,
    )


def events(history: Sequence[Mapping[str, Any]]) -> jobmaster_pb2.EventsReply:
    """The history as a reply."""
    return jobmaster_pb2.EventsReply(
        events=[
            jobmaster_pb2.JobEvent(
                id=str(item["id"]), type=str(item["type"]), at=float(item["at"]),
                data_json=orjson.dumps(item["data"]).decode(),
            )
            for item in history
        ]
    )
