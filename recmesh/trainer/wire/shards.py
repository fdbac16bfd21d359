"""shardsvc, for one worker of one job."""

from collections.abc import Sequence
from typing import Any

from recmesh.data.records import TaskRecord
from recmesh.pb import shardsvc_pb2 as pb
from recmesh.pb.shardsvc_pb2_grpc import ShardsStub
from recmesh.trainer.ports import Lease, LeaseProgress, LeaseReply, LeaseState, Piece, RenewReply
from recmesh.trainer.wire.common import piece_from, task_from

_DEADLINE_S = 5.0
_STATES: dict[int, LeaseState] = {0: "granted", 1: "wait", 2: "drained", 3: "stale_gen"}


def touched(tasks: Sequence[TaskRecord], piece: Piece) -> tuple[TaskRecord, ...]:
    """Those of a reply's tasks that a piece touches; a lease's own."""
    return tuple(task for task in tasks if task.base < piece.hi and piece.lo < task.base + task.rows)


class RemoteShards:
    """See ports.Shards."""

    def __init__(self, channel: Any, *, job_id: str, worker: str) -> None:
        self._stub = ShardsStub(channel)
        self._job_id, self._worker = job_id, worker

    def lease(self, gen: int, *, shards: int, request_id: str, below: int = 0) -> LeaseReply:
        """See Shards.lease."""
        request = pb.LeaseRequest(
            job_id=self._job_id, gen=gen, worker=self._worker, shards=shards, request_id=request_id, below=below
        )
        reply = self._stub.Lease(request, timeout=_DEADLINE_S)
        tasks = [task_from(task) for task in reply.tasks]
        leases = tuple(
            Lease(lease.epoch, piece, touched(tasks, piece), reply.line_end)
            for lease in reply.leases for piece in (piece_from(lease.piece),)
        )
        return LeaseReply(_STATES[reply.state], leases, reply.retry_after_s or 0.5, reply.ttl_s or 60.0)

    def renew(self, gen: int, leases: Sequence[LeaseProgress]) -> RenewReply:
        """See Shards.renew."""
        request = pb.RenewRequest(
            job_id=self._job_id,
            gen=gen,
            worker=self._worker,
            leases=[
                pb.LeaseProgress(epoch=item.epoch, done_to=item.done_to, complete=item.complete, hi=item.hi)
                for item in leases
            ],
        )
        reply = self._stub.Renew(request, timeout=_DEADLINE_S)
        return RenewReply(frozenset(reply.lost), reply.stale_gen, {cut.epoch: cut.hi for cut in reply.cuts})

    def release(self, gen: int) -> None:
        """See Shards.release."""
        request = pb.ReleaseWorkerRequest(job_id=self._job_id, gen=gen, worker=self._worker)
        self._stub.ReleaseWorker(request, timeout=_DEADLINE_S)
