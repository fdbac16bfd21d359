"""The peers over gRPC: protobuf in and out, nothing else. Channels raise MeshError (recmesh.runtime.rpc)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import grpc
import numpy as np
import orjson
from numpy.typing import NDArray

from recmesh.partitions import series_of
from recmesh.pb import (
    ckptcache_pb2,
    ckptcache_pb2_grpc,
    common_pb2,
    gateway_pb2,
    gateway_pb2_grpc,
    ps_pb2,
    ps_pb2_grpc,
    shardsvc_pb2,
    shardsvc_pb2_grpc,
)
from services.jobmaster.domain.ledgers import Interval, Ledger, normal
from services.jobmaster.domain.record import Member
from services.jobmaster.domain.snapshot import Cut, GroupCut
from services.jobmaster.peers import (
    AwaitState,
    Copied,
    Frozen,
    Inspection,
    JoinOrder,
    ModelVersion,
    MoveOrder,
    OpenedRun,
    QueueProgress,
    RegisteredDataset,
    Released,
    RestoreOrder,
    RunOrder,
    StoredSnapshot,
    TakenOver,
)

INDEX_TIMEOUT_S = 600.0
"""Inspecting and indexing read every file once."""
QUICK_S = 10.0


def _pieces(intervals: Sequence[Interval]) -> list[common_pb2.Piece]:
    return [common_pb2.Piece(line=line, lo=lo, hi=hi) for line, lo, hi in intervals]


def _intervals(pieces: Sequence[common_pb2.Piece]) -> tuple[Interval, ...]:
    return tuple((piece.line, piece.lo, piece.hi) for piece in pieces)


class GrpcShards:
    """shardsvc over gRPC."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = shardsvc_pb2_grpc.ShardsStub(channel)

    async def inspect(self, dataset_json: str) -> Inspection:
        """See `peers.Shards`."""
        request = shardsvc_pb2.InspectRequest(dataset_json=dataset_json)
        reply = await self._stub.Inspect(request, timeout=INDEX_TIMEOUT_S)
        return Inspection(reply.rows, reply.size_bytes, reply.files)

    async def dataset(self, name: str) -> str:
        """See `peers.Shards`."""
        reply = await self._stub.GetDataset(shardsvc_pb2.GetDatasetRequest(name=name), timeout=QUICK_S)
        return reply.dataset_json

    async def register_dataset(self, name: str, dataset_json: str) -> RegisteredDataset:
        """See `peers.Shards`."""
        request = shardsvc_pb2.RegisterDatasetRequest(name=name, dataset_json=dataset_json)
        reply = await self._stub.RegisterDataset(request, timeout=INDEX_TIMEOUT_S)
        return RegisteredDataset(
            reply.name, reply.revision, reply.created, reply.rows, reply.files, reply.size_bytes, reply.tasks,
            reply.columns,
        )

    async def remove_dataset(self, name: str) -> None:
        """See `peers.Shards`."""
        await self._stub.RemoveDataset(shardsvc_pb2.RemoveDatasetRequest(name=name), timeout=QUICK_S)

    async def open_run(self, order: RunOrder) -> OpenedRun:
        """See `peers.Shards`."""
        request = shardsvc_pb2.OpenRunRequest(
            job_id=order.job_id, gen=order.gen, dataset_json=order.dataset_json, epochs=order.epochs,
            seed=order.seed, shuffle=order.shuffle, batch_size=order.batch_size,
            shard_batches=order.shard_batches, lease_ttl_s=order.lease_ttl_s,
            done=common_pb2.Ledger(intervals=_pieces(order.done)), epoch_floor=order.epoch_floor,
        )
        reply = await self._stub.OpenRun(request, timeout=INDEX_TIMEOUT_S)
        return OpenedRun(reply.total, reply.to_do, reply.log_last_sequence, reply.more)

    async def close_run(self, job_id: str, *, forget: bool) -> None:
        """See `peers.Shards`."""
        request = shardsvc_pb2.CloseRunRequest(job_id=job_id, forget=forget)
        await self._stub.CloseRun(request, timeout=QUICK_S)

    async def release_worker(self, job_id: str, *, gen: int, worker: str, crashed: bool) -> Released:
        """See `peers.Shards`."""
        request = shardsvc_pb2.ReleaseWorkerRequest(job_id=job_id, gen=gen, worker=worker, crashed=crashed)
        reply = await self._stub.ReleaseWorker(request, timeout=QUICK_S)
        return Released(reply.requeued, _intervals(reply.suspects), reply.deaths)

    async def size_shards(self, job_id: str, *, gen: int, worker: str, shard_batches: int) -> int:
        """See `peers.Shards`."""
        request = shardsvc_pb2.SizeShardsRequest(
            job_id=job_id, gen=gen, worker=worker, shard_batches=shard_batches
        )
        reply = await self._stub.SizeShards(request, timeout=QUICK_S)
        return reply.requeued

    async def reconcile(self, job_id: str, *, gen: int, done: Ledger) -> tuple[int, int]:
        """See `peers.Shards`."""
        ledger = common_pb2.Ledger(intervals=_pieces(done))
        request = shardsvc_pb2.ReconcileRequest(job_id=job_id, gen=gen, done=ledger)
        reply = await self._stub.Reconcile(request, timeout=60.0)
        return reply.orphans, reply.missing

    async def commit_offsets(self, job_id: str, *, gen: int, done: Ledger) -> int:
        """See `peers.Shards`."""
        ledger = common_pb2.Ledger(intervals=_pieces(done))
        request = shardsvc_pb2.CommitOffsetsRequest(job_id=job_id, gen=gen, done=ledger)
        reply = await self._stub.CommitOffsets(request, timeout=60.0)
        return reply.partitions

    async def progress(self, job_id: str) -> QueueProgress:
        """See `peers.Shards`."""
        reply = await self._stub.Progress(shardsvc_pb2.ProgressRequest(job_id=job_id), timeout=QUICK_S)
        return QueueProgress(
            gen=reply.gen, total=reply.total, done=reply.done, queued=reply.queued, leased=reply.leased,
            epochs=reply.epochs, drained=reply.drained, requeues=reply.requeues, more=not reply.closed,
            waits_for=reply.waits_for, event_time=reply.event_time, partitions=len(reply.partitions),
            lag_messages=sum(each.end - each.offset for each in reply.partitions),
            lag_s=max((each.lag_s for each in reply.partitions), default=0.0),
            arrived=sum(each.end for each in reply.partitions),
            series=tuple(sorted({series_of(each.uri)[1] for each in reply.partitions})),
        )


class GrpcCheckpoints:
    """ckptcache over gRPC."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = ckptcache_pb2_grpc.CheckpointsStub(channel)

    async def begin(self, job_id: str, *, gen: int, snapshot: int, ps: Sequence[int], label: str) -> None:
        """See `peers.Checkpoints`."""
        request = ckptcache_pb2.BeginRequest(job_id=job_id, gen=gen, snapshot=snapshot, ps=ps, label=label)
        await self._stub.Begin(request, timeout=QUICK_S)

    async def await_parts(self, job_id: str, snapshot: int, *, wait_s: float) -> tuple[AwaitState, str]:
        """See `peers.Checkpoints`."""
        request = ckptcache_pb2.AwaitRequest(job_id=job_id, snapshot=snapshot, wait_s=wait_s)
        reply = await self._stub.Await(request, timeout=wait_s + QUICK_S)
        states: dict[int, AwaitState] = {0: "collecting", 1: "stored", 2: "failed", 3: "unknown"}
        return states.get(reply.state, "unknown"), reply.reason

    async def commit(
        self, job_id: str, *, gen: int, snapshot: int, manifest_json: str, keep: int
    ) -> StoredSnapshot:
        """See `peers.Checkpoints`."""
        request = ckptcache_pb2.CommitRequest(
            job_id=job_id, gen=gen, snapshot=snapshot, manifest_json=manifest_json, keep=keep
        )
        return _stored(await self._stub.Commit(request, timeout=60.0))

    async def abort(self, job_id: str, snapshot: int, *, reason: str) -> None:
        """See `peers.Checkpoints`."""
        request = ckptcache_pb2.AbortRequest(job_id=job_id, snapshot=snapshot, reason=reason)
        await self._stub.Abort(request, timeout=QUICK_S)

    async def get(self, job_id: str, snapshot: int) -> StoredSnapshot:
        """See `peers.Checkpoints`."""
        request = ckptcache_pb2.GetRequest(job_id=job_id, snapshot=snapshot)
        return _stored(await self._stub.Get(request, timeout=QUICK_S))

    async def delete(self, job_id: str) -> None:
        """See `peers.Checkpoints`."""
        await self._stub.Delete(ckptcache_pb2.DeleteRequest(job_id=job_id, snapshot=0), timeout=60.0)


def _stored(reply: ckptcache_pb2.Snapshot) -> StoredSnapshot:
    return StoredSnapshot(
        snapshot=reply.snapshot, state=reply.state, uri=reply.uri, parts=tuple(reply.parts), rows=reply.rows,
        size_bytes=reply.size_bytes, samples=reply.samples, manifest_json=reply.manifest_json,
    )


class GrpcServers:
    """Parameter servers over gRPC; one channel per address, made when it is first needed."""

    def __init__(self, connect: Callable[[str], grpc.aio.Channel], *, ckptcache: str) -> None:
        self._connect = connect
        self._ckptcache = ckptcache
        self._channels: dict[str, grpc.aio.Channel] = {}

    def _stub(self, address: str) -> "ps_pb2_grpc.ParameterServerAsyncStub":  # exists for checkers only
        if address not in self._channels:
            self._channels[address] = self._connect(address)
        return ps_pb2_grpc.ParameterServerStub(self._channels[address])

    def forget(self, address: str) -> None:
        """See `peers.Servers`. The channel closes when its last call has ended."""
        self._channels.pop(address, None)

    async def close(self) -> None:
        """Closes all channels."""
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await channel.close(grace=None)

    async def restore(self, address: str, order: RestoreOrder, *, timeout_s: float) -> int:
        """See `peers.Servers`."""
        request = ps_pb2.RestoreRequest(
            job_id=order.job_id, gen=order.gen, term=order.term, incarnation=order.incarnation, ps=order.ps,
            map=common_pb2.SlotMap(version=order.map_version, owners=order.owners), snapshot=order.snapshot,
            parts=order.parts, voids=_pieces(order.voids), fresh_ledger=order.fresh_ledger,
            ckptcache=self._ckptcache,
        )
        return int((await self._stub(address).Restore(request, timeout=timeout_s)).rows)

    async def takeover(self, address: str, *, job_id: str, gen: int, term: int) -> TakenOver:
        """See `peers.Servers`."""
        request = ps_pb2.TakeoverRequest(job_id=job_id, gen=gen, term=term)
        reply = await self._stub(address).Takeover(request, timeout=QUICK_S)
        return TakenOver(
            reply.gen, reply.term, reply.marking, sending=tuple(reply.sending), frozen=tuple(reply.frozen)
        )

    async def mark(
        self, address: str, *, ps: int, job_id: str, gen: int, term: int, snapshot: int, base: int
    ) -> Cut:
        """See `peers.Servers`."""
        request = ps_pb2.MarkRequest(job_id=job_id, gen=gen, term=term, snapshot=snapshot, base=base)
        reply = await self._stub(address).Mark(request, timeout=60.0)
        groups = tuple(
            GroupCut(normal(_intervals(group.ledger.intervals)), group.step, group.slots)
            for group in reply.groups
        )
        return Cut(ps, reply.slots, groups, reply.latch_ms, reply.rows, reply.size_bytes, reply.base)

    async def abort_mark(self, address: str, *, job_id: str, gen: int, term: int, snapshot: int) -> None:
        """See `peers.Servers`."""
        request = ps_pb2.AbortMarkRequest(job_id=job_id, gen=gen, term=term, snapshot=snapshot)
        await self._stub(address).AbortMark(request, timeout=QUICK_S)

    async def void(
        self, address: str, *, job_id: str, gen: int, term: int, batches: Sequence[Interval]
    ) -> tuple[Interval, ...]:
        """See `peers.Servers`."""
        request = ps_pb2.VoidRequest(job_id=job_id, gen=gen, term=term, batches=_pieces(batches))
        return _intervals((await self._stub(address).Void(request, timeout=60.0)).partly_applied)

    async def ledgers(self, address: str, *, job_id: str, gen: int) -> tuple[Ledger, int]:
        """See `peers.Servers`."""
        request = ps_pb2.LedgersRequest(job_id=job_id, gen=gen)
        reply = await self._stub(address).Ledgers(request, timeout=QUICK_S)
        return normal(_intervals(reply.applied_by_all.intervals)), reply.max_epoch

    async def demand(self, address: str, *, job_id: str) -> NDArray[np.uint32]:
        """See `peers.Servers`."""
        reply = await self._stub(address).Stats(ps_pb2.StatsRequest(job_id=job_id), timeout=QUICK_S)
        return np.frombuffer(reply.demand, dtype="<u4").astype(np.uint32)

    async def join(self, address: str, order: JoinOrder) -> None:
        """See `peers.Servers`."""
        request = ps_pb2.JoinRequest(
            job_id=order.job_id, gen=order.gen, term=order.term, incarnation=order.member.incarnation,
            ps=order.member.ps, map_version=order.map_version, voids=_pieces(order.voids),
        )
        await self._stub(address).Join(request, timeout=QUICK_S)

    async def migrate(self, address: str, order: MoveOrder, *, slots: bytes, target: Member) -> Copied:
        """See `peers.Servers`."""
        request = ps_pb2.MigrateRequest(
            job_id=order.job_id, gen=order.gen, term=order.term, move=order.move,
            slots=slots, target_address=target.address, target_incarnation=target.incarnation,
        )
        reply = await self._stub(address).Migrate(request, timeout=QUICK_S)
        return Copied(
            reply.caught_up, reply.rows, reply.base_bytes, reply.delta_bytes, reply.error, reply.expected_rows
        )

    async def freeze(
        self, address: str, order: MoveOrder, *, map_version: int, timeout_s: float
    ) -> Frozen:
        """See `peers.Servers`."""
        request = ps_pb2.FreezeRequest(
            job_id=order.job_id, gen=order.gen, term=order.term, move=order.move, map_version=map_version
        )
        reply = await self._stub(address).Freeze(request, timeout=timeout_s)
        return Frozen(
            installed=reply.installed, latch_ms=reply.latch_ms, frozen_ms=reply.frozen_ms,
            last_rows=reply.last_rows, last_bytes=reply.last_bytes, base_bytes=reply.base_bytes,
            delta_bytes=reply.delta_bytes,
        )

    async def abort_install(self, address: str, order: MoveOrder) -> bool:
        """See `peers.Servers`."""
        request = ps_pb2.AbortInstallRequest(
            job_id=order.job_id, gen=order.gen, term=order.term, move=order.move
        )
        return bool((await self._stub(address).AbortInstall(request, timeout=QUICK_S)).installed)

    async def resume(self, address: str, order: MoveOrder, *, map_version: int) -> None:
        """See `peers.Servers`."""
        request = ps_pb2.ResumeRequest(
            job_id=order.job_id, gen=order.gen, term=order.term, move=order.move, map_version=map_version
        )
        await self._stub(address).Resume(request, timeout=QUICK_S)

    async def free(self, address: str, order: MoveOrder) -> None:
        """See `peers.Servers`."""
        request = ps_pb2.FreeRequest(job_id=order.job_id, gen=order.gen, term=order.term, move=order.move)
        await self._stub(address).Free(request, timeout=QUICK_S)


class GrpcModels:
    """The gateway's model registry over gRPC."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = gateway_pb2_grpc.ModelsStub(channel)

    async def versions(self, name: str) -> list[ModelVersion]:
        """See `peers.Models`."""
        reply = await self._stub.List(gateway_pb2.ListRequest(name=name), timeout=QUICK_S)
        return [_version(model) for model in reply.models if model.name == name]

    async def register(
        self,
        model: ModelVersion,
        *,
        framework: str,
        metrics: Mapping[str, float],
        request_id: str,
        load: bool,
        serving: Mapping[str, Any],
    ) -> ModelVersion:
        """See `peers.Models`."""
        request = gateway_pb2.RegisterRequest(
            name=model.name, version=model.version, uri=model.uri, framework=framework, job_id=model.job_id,
            snapshot=model.snapshot, metrics=dict(metrics), request_id=request_id, load=load,
            serving_json=orjson.dumps(dict(serving)).decode() if serving else "",
        )
        return _version(await self._stub.Register(request, timeout=60.0))


def _version(model: gateway_pb2.Model) -> ModelVersion:
    return ModelVersion(model.name, model.version, model.uri, model.job_id, model.snapshot)
