"""jobmaster's Runs, for one role's process."""

import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from recmesh.pb import jobmaster_pb2 as pb
from recmesh.pb.jobmaster_pb2_grpc import RunsStub
from recmesh.trainer.ports import Assignment, Beat, BeatReply, ExecutorAddress, RunRecord, Serving
from recmesh.trainer.wire.common import record_from

_DEADLINE_S = 5.0
_DIRECTIVES: dict[int, Literal["continue", "drain", "exit"]] = {0: "continue", 1: "drain", 2: "exit"}


class RemoteRuns:
    """See ports.Runs."""

    def __init__(
        self, channel: Any, *, job_id: str, role: str, index: int, incarnation: str, host: str, pid: int
    ) -> None:
        self._stub = RunsStub(channel)
        self._job_id, self._role, self._index, self._incarnation = job_id, role, index, incarnation
        self._host, self._pid = host, pid

    def register(self, *, address: str = "") -> Assignment:
        """See Runs.register."""
        reply = self._stub.Register(
            pb.RegisterRequest(
                job_id=self._job_id,
                role=self._role,
                index=self._index,
                incarnation=self._incarnation,
                address=address,
                pid=self._pid,
                host=self._host,
            ),
            timeout=_DEADLINE_S,
        )
        return Assignment(
            spec_json=reply.spec_json,
            record=record_from(reply.record),
            heartbeat_s=reply.heartbeat_s or 2.0,
            shardsvc=reply.shardsvc,
            ckptcache=reply.ckptcache,
            storage_uri=reply.storage_uri,
            task=reply.task,
            snapshot=reply.snapshot,
            parts=tuple(reply.parts),
            export_uri=reply.export_uri,
            executors=_executors(reply.executors),
        )

    def heartbeat(self, beat: Beat) -> BeatReply:
        """See Runs.heartbeat."""
        times = beat.step
        reply = self._stub.Heartbeat(
            pb.HeartbeatRequest(
                job_id=self._job_id,
                role=self._role,
                index=self._index,
                incarnation=self._incarnation,
                gen=beat.gen,
                samples=beat.samples,
                step=pb.StepTimes(
                    data_s=times.data_s,
                    pull_s=times.pull_s,
                    compute_s=times.compute_s,
                    push_s=times.push_s,
                    total_s=times.total_s,
                    steps=times.steps,
                ),
                loss=beat.loss,
                auc=beat.auc,
                window_samples=beat.window_samples,
                memory_bytes=beat.memory_bytes,
                cpu_s=beat.cpu_s,
                rows=beat.rows,
                busy_s=beat.busy_s,
                skipped_nan=beat.skipped_nan,
                bad_records=beat.bad_records,
                note=beat.note,
                draining=beat.draining,
                serving=None if beat.serving is None else _serving(beat.serving),
                scores=[
                    pb.ScoreCounts(bins=each.bins, positives=each.positives, negatives=each.negatives)
                    for each in beat.scores
                ],
                occupied_s=beat.occupied_s,
            ),
            timeout=_DEADLINE_S,
        )
        return BeatReply(
            _DIRECTIVES[reply.directive], reply.gen, reply.map_version, reply.phase, _executors(reply.executors)
        )

    def record(self, *, newer_than_gen: int = 0, wait_s: float = 0.0) -> RunRecord:
        """See Runs.record."""
        request = pb.RecordRequest(job_id=self._job_id, newer_than_gen=newer_than_gen, wait_s=wait_s)
        return record_from(self._stub.Record(request, timeout=_DEADLINE_S + wait_s))

    def report(
        self,
        metrics: Mapping[str, float],
        *,
        snapshot: int = 0,
        samples: int = 0,
        model_uri: str = "",
        framework: str = "",
        error: str = "",
        final: bool = False,
    ) -> None:
        """See Runs.report; metrics that are not finite are left out, as JSON has no word for them."""
        self._stub.Report(
            pb.ReportRequest(
                job_id=self._job_id,
                role=self._role,
                incarnation=self._incarnation,
                snapshot=snapshot,
                samples=samples,
                metrics={name: value for name, value in metrics.items() if math.isfinite(value)},
                model_uri=model_uri,
                error=error,
                framework=framework,
                final=final,
            ),
            timeout=_DEADLINE_S,
        )


def _executors(messages: Iterable[pb.Executor]) -> tuple[ExecutorAddress, ...]:
    return tuple(
        ExecutorAddress(each.address, each.incarnation, each.accepting, each.queued) for each in messages
    )


def _serving(serving: Serving) -> pb.ServingBuffer:
    return pb.ServingBuffer(
        queued=serving.queued, held_bytes=serving.held_bytes, limit_bytes=serving.limit_bytes,
        accepting=serving.accepting, forwarded=serving.forwarded, taken=serving.taken, decoded=serving.decoded,
        waited_s=serving.waited_s,
    )
