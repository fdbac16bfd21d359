"""recmesh.executor.v1.DataExecutor over `serving.Executor`."""

from collections.abc import Callable
from typing import Any

import grpc

from recmesh.pb import executor_pb2 as pb
from recmesh.pb import executor_pb2_grpc
from recmesh.runtime.errors import FailedPrecondition, InvalidArgument, Violation
from recmesh.runtime.rpc import Lane
from recmesh.trainer.executor.rebalance import Peer
from recmesh.trainer.executor.serving import Executor, MovedTo
from recmesh.trainer.wire.common import task_from
from recmesh.trainer.wire.rows import read_reply

SERVICE_NAME = "recmesh.executor.v1.DataExecutor"
MOST_WAITING = 256
"""Calls that wait for rows at once; more wait in gRPC's queue."""
LANES = (Lane("orders", 4, {"Announce", "Take", "Room"}),)
"""What only changes the queue never waits behind calls that wait for rows."""


class DataExecutorServicer(executor_pb2_grpc.DataExecutorServicer):
    """Refuses calls about data that are read in another way: an address may be another job's by now."""

    def __init__(self, executor: Executor, *, fingerprint: str) -> None:
        self._executor, self._fingerprint = executor, fingerprint

    def Announce(self, request: pb.AnnounceRequest, context: Any) -> pb.AnnounceReply:
        """See Executor.announce."""
        self._check(request.fingerprint)
        return pb.AnnounceReply(taken=self._executor.announce([task_from(task) for task in request.tasks]))

    # Its answer is bytes, in which arrays stay where they are.
    def Read(self, request: pb.ReadRequest, context: Any) -> bytes:  # type: ignore[override]  # see above
        """See Executor.read."""
        self._check(request.fingerprint)
        task = task_from(request.task)
        if task.file is None or not task.base <= request.lo < request.hi <= task.base + task.rows:
            why = f"[{request.lo}, {request.hi}) is not within the task"
            raise InvalidArgument("rows of a task are asked for", violations=[Violation("lo", why)])
        found = self._executor.read(task, request.lo, request.hi, wait_s=request.wait_s, here=request.here)
        if found is None:
            return bytes(pb.ReadReply(status=pb.ReadReply.WAIT).SerializeToString())
        if isinstance(found, MovedTo):
            return bytes(pb.ReadReply(status=pb.ReadReply.MOVED, moved_to=found.address).SerializeToString())
        return read_reply(found.batch, bad=found.bad)

    def Take(self, request: pb.TakeRequest, context: Any) -> pb.TakeReply:
        """See Executor.take."""
        self._check(request.fingerprint)
        answer = self._executor.take([task_from(task) for task in request.tasks])
        return pb.TakeReply(taken=answer.count, accepting=answer.accepting, queued=answer.queued)

    def Room(self, request: pb.RoomRequest, context: Any) -> pb.RoomReply:
        """See Executor.heard."""
        self._check(request.fingerprint)
        self._executor.heard(request.address, Peer(request.accepting, request.queued))
        return pb.RoomReply()

    def _check(self, fingerprint: str) -> None:
        if fingerprint != self._fingerprint:
            raise FailedPrecondition("this executor reads other data, or in another way", reason="OTHER_DATASET")


def add_to_server(servicer: DataExecutorServicer) -> Callable[[grpc.Server], None]:
    """For `recmesh.runtime.rpc.sync_server`."""
    def add(server: grpc.Server) -> None:
        methods = {
            "Announce": _method(servicer.Announce, pb.AnnounceRequest, pb.AnnounceReply),
            "Read": _method(servicer.Read, pb.ReadRequest, None),
            "Take": _method(servicer.Take, pb.TakeRequest, pb.TakeReply),
            "Room": _method(servicer.Room, pb.RoomRequest, pb.RoomReply),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE_NAME, methods),))

    return add


def _method(serve: Callable[[Any, Any], Any], request: Any, reply: Any) -> Any:
    return grpc.unary_unary_rpc_method_handler(
        serve, request_deserializer=request.FromString,
        response_serializer=reply.SerializeToString if reply is not None else None,
    )
