"""gRPC face of ckptcache: decode, call the app, encode."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc

from recmesh.pb import ckptcache_pb2 as pb
from recmesh.pb import ckptcache_pb2_grpc as pb_grpc
from recmesh.runtime.errors import InvalidArgument, NotFound, Violation
from recmesh.runtime.rpc import remaining_s
from services.ckptcache import wire
from services.ckptcache.app.checkpoints import Checkpoints
from services.ckptcache.app.flush import Flusher
from services.ckptcache.app.replicas import Replicas
from services.ckptcache.app.replicate import Replicator
from services.ckptcache.app.restore import MESSAGE_BYTES, Restore
from services.ckptcache.domain.snapshot import Snapshot
from services.ckptcache.store.files import SnapshotFiles
from services.ckptcache.store.memory import read_range

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["Checkpoints"].full_name
MAX_WAIT_S = 60.0
REPLY_MARGIN_S = 0.25
"""A long poll ends this much before the caller's deadline, so that it gets an answer and no error."""


class CheckpointsServicer(pb_grpc.CheckpointsServicer):
    """One line per method, as far as that goes; anything longer belongs in app/."""

    def __init__(
        self, checkpoints: Checkpoints, restore: Restore, flusher: Flusher, files: SnapshotFiles, *,
        replicas: Replicas, replicator: Replicator,
    ) -> None:  # fmt: skip
        self._app, self._restore, self._flusher, self._files = checkpoints, restore, flusher, files
        self._replicas, self._replicator = replicas, replicator

    async def Begin(self, request: pb.BeginRequest, context: Any) -> pb.BeginReply:
        """Expect parts."""
        await self._app.begin(request.job_id, request.snapshot, gen=request.gen, ps=request.ps, label=request.label)
        return pb.BeginReply()

    async def StorePart(self, request: pb.StorePartRequest, context: Any) -> pb.StorePartReply:
        """Take over shared memory."""
        await self._app.store_part(
            request.job_id,
            request.snapshot,
            gen=request.gen,
            part=wire.part_of(request),
            shm_path=request.shm_path,
            size_bytes=request.size_bytes,
        )
        return pb.StorePartReply()

    async def StreamPart(self, request_iterator: AsyncIterator[pb.PartChunk], context: Any) -> pb.StorePartReply:
        """Take a part's bytes."""
        head, data = await _opened(request_iterator)
        await self._app.receive_part(
            head.job_id,
            head.snapshot,
            gen=head.gen,
            part=wire.part_of(head),
            size_bytes=head.size_bytes,
            data=data,
        )
        return pb.StorePartReply()

    async def HoldReplica(self, request_iterator: AsyncIterator[pb.PartChunk], context: Any) -> pb.HoldReplicaReply:
        """Hold a copy for another node."""
        head, data = await _opened(request_iterator)
        await self._replicas.hold(
            head.job_id, head.snapshot, wire.part_of(head), node=head.node, size_bytes=head.size_bytes, data=data
        )
        return pb.HoldReplicaReply()

    async def LocateReplica(self, request: pb.LocateRequest, context: Any) -> pb.LocateReply:
        """What is held of a part."""
        part = self._replicas.find(self._restore.parsed(request.part_uri)).part
        return pb.LocateReply(
            size_bytes=part.size_bytes, files=wire.part_files(part), tier="memory", part_json=part.document
        )

    async def FetchReplica(self, request: pb.FetchPartRequest, context: Any) -> AsyncIterator[pb.PartChunk]:
        """A file of a copy."""
        held = self._replicas.find(self._restore.parsed(request.part_uri))
        file = held.part.file(request.file)
        if file is None:
            raise NotFound(f"{request.part_uri} has no file {request.file!r}")
        chunks = read_range(held.path, file.offset, file.size_bytes)
        while (chunk := await asyncio.to_thread(next, chunks, None)) is not None:
            for start in range(0, len(chunk), MESSAGE_BYTES):
                yield pb.PartChunk(data=chunk[start : start + MESSAGE_BYTES])

    async def DropReplica(self, request: pb.DropReplicaRequest, context: Any) -> pb.DropReplicaReply:
        """Forget copies."""
        self._replicas.drop(request.job_id, request.snapshot)
        return pb.DropReplicaReply()

    async def Await(self, request: pb.AwaitRequest, context: Any) -> pb.AwaitReply:
        """Long poll."""
        left_s = remaining_s()
        limit_s = MAX_WAIT_S if left_s is None else min(MAX_WAIT_S, left_s - REPLY_MARGIN_S)
        wait_s = max(0.0, min(request.wait_s, limit_s))
        return wire.await_reply(await self._app.wait(request.job_id, request.snapshot, wait_s=wait_s))

    async def Commit(self, request: pb.CommitRequest, context: Any) -> pb.Snapshot:
        """Make it last."""
        done, text = await self._app.commit(
            request.job_id,
            request.snapshot,
            gen=request.gen,
            manifest_json=request.manifest_json,
            keep=request.keep,
        )
        return self._reply(done, text)

    async def Abort(self, request: pb.AbortRequest, context: Any) -> pb.AbortReply:
        """Give it up."""
        await self._app.abort(request.job_id, request.snapshot, reason=request.reason)
        return pb.AbortReply()

    async def List(self, request: pb.ListRequest, context: Any) -> pb.ListReply:
        """All of a job, ascending."""
        return pb.ListReply(snapshots=[self._reply(s) for s in await self._app.snapshots(request.job_id)])

    async def Get(self, request: pb.GetRequest, context: Any) -> pb.Snapshot:
        """One, with its manifest."""
        return self._reply(*await self._app.get(request.job_id, request.snapshot, verify=request.verify))

    async def Locate(self, request: pb.LocateRequest, context: Any) -> pb.LocateReply:
        """The nearest copy."""
        found = await self._restore.locate(request.part_uri)
        return pb.LocateReply(
            path=found.path,
            size_bytes=found.part.size_bytes,
            files=wire.part_files(found.part),
            tier=found.tier,
            part_json=found.part.document,
        )

    async def FetchPart(self, request: pb.FetchPartRequest, context: Any) -> AsyncIterator[pb.PartChunk]:
        """Header first, then the bytes."""
        part, data = await self._restore.fetch(
            request.part_uri, request.file, storage_only=request.storage_only
        )
        yield pb.PartChunk(header=wire.header(part))
        async for chunk in data:
            yield pb.PartChunk(data=chunk)

    async def Delete(self, request: pb.DeleteRequest, context: Any) -> pb.DeleteReply:
        """Forget one, or all."""
        deleted = await self._app.delete(request.job_id, request.snapshot)
        if not request.snapshot:
            self._replicator.forget(request.job_id, 0)
        return pb.DeleteReply(deleted=deleted)

    def _reply(self, value: Snapshot, manifest_json: str = "") -> pb.Snapshot:
        key = (value.job_id, value.number)
        held = any((copy.job_id, copy.number) == key for copy in self._flusher.copies)
        at_peer = bool(self._replicator.holders(*key))
        return wire.snapshot(
            value, uri=lambda number: self._files.uri(value.job_id, number), in_memory=held,
            at_peer=at_peer, manifest_json=manifest_json,
        )  # fmt: skip


async def _opened(
    messages: AsyncIterator[pb.PartChunk],
) -> tuple[pb.StorePartRequest, AsyncIterator[bytes]]:
    """The header of a stream, and the bytes behind it."""
    first = await anext(aiter(messages), None)
    if first is None or not first.HasField("header"):
        reason = "the first message of the stream has none"
        raise InvalidArgument("the part is refused", violations=[Violation("header", reason)])
    opening = first

    async def data() -> AsyncIterator[bytes]:
        if opening.data:
            yield opening.data
        async for chunk in messages:
            yield chunk.data

    return opening.header, data()


def register(servicer: CheckpointsServicer) -> Callable[[grpc.aio.Server], None]:
    """What adds the servicer to a server."""

    def add(server: grpc.aio.Server) -> None:
        pb_grpc.add_CheckpointsServicer_to_server(servicer, server)

    return add
