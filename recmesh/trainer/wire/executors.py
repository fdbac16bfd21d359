"""One data executor over gRPC, as workers and its peers call it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from recmesh.data.records import TaskRecord
from recmesh.pb import executor_pb2 as pb
from recmesh.pb.executor_pb2_grpc import DataExecutorStub
from recmesh.runtime.errors import InvalidArgument, Unavailable
from recmesh.trainer.ports import ExecutorRows, Taken
from recmesh.trainer.wire.common import task_to
from recmesh.trainer.wire.rows import read_rows

_ORDER_DEADLINE_S = 2.0
"""Of calls that only change a queue."""
_READ_SLACK_S = 5.0
"""Beyond the wait that is asked for: rows on their way."""


class RemoteExecutor:
    """See ports.DataExecutor. The channel is its own."""

    def __init__(self, channel: Any, *, fingerprint: str) -> None:
        self._stub = DataExecutorStub(channel)
        self._read = channel.unary_unary(
            "/recmesh.executor.v1.DataExecutor/Read", request_serializer=pb.ReadRequest.SerializeToString
        )
        self._channel, self._fingerprint = channel, fingerprint

    def announce(self, tasks: Sequence[TaskRecord]) -> int:
        """See DataExecutor.announce."""
        request = pb.AnnounceRequest(fingerprint=self._fingerprint, tasks=[task_to(task) for task in tasks])
        with _while_open():
            return int(self._stub.Announce(request, timeout=_ORDER_DEADLINE_S).taken)

    def read(self, task: TaskRecord, lo: int, hi: int, *, wait_s: float, here: bool = False) -> ExecutorRows:
        """See DataExecutor.read."""
        request = pb.ReadRequest(
            fingerprint=self._fingerprint, task=task_to(task), lo=lo, hi=hi, wait_s=wait_s, here=here
        )
        with _while_open():
            data = self._read(request, timeout=wait_s + _READ_SLACK_S)
        head, batch = read_rows(data)
        if head.status == pb.ReadReply.MOVED:
            return ExecutorRows(moved_to=head.moved_to)
        if head.status == pb.ReadReply.WAIT:
            return ExecutorRows()
        if batch is None:
            raise InvalidArgument(f"the executor answers with status {head.status}, which is not known here")
        return ExecutorRows(batch, head.bad)

    def take(self, tasks: Sequence[TaskRecord]) -> Taken:
        """See DataExecutor.take."""
        request = pb.TakeRequest(fingerprint=self._fingerprint, tasks=[task_to(task) for task in tasks])
        with _while_open():
            reply = self._stub.Take(request, timeout=_ORDER_DEADLINE_S)
        return Taken(reply.taken, reply.accepting, reply.queued)

    def room(self, address: str, *, accepting: bool, queued: int) -> None:
        """See DataExecutor.room."""
        request = pb.RoomRequest(fingerprint=self._fingerprint, address=address, accepting=accepting, queued=queued)
        with _while_open():
            self._stub.Room(request, timeout=_ORDER_DEADLINE_S)

    def close(self) -> None:
        """See DataExecutor.close."""
        self._channel.close()


@contextmanager
def _while_open() -> Iterator[None]:
    """Another thread may close the channel before a call: the executor has gone, as far as the caller knows."""
    try:
        yield
    except ValueError as error:         # gRPC's for a closed channel
        raise Unavailable(f"the executor has gone: {error}", reason="CLOSED") from error
