"""gRPC face of shardsvc: decode, call the app, encode."""

import re
from collections.abc import Callable

import grpc

from recmesh.pb import shardsvc_pb2 as pb
from recmesh.pb import shardsvc_pb2_grpc as pb_grpc
from recmesh.runtime.errors import InvalidArgument, Violation
from services.shardsvc import wire
from services.shardsvc.app import Datasets, Lags, Offsets, OpenRun, Runs, Streams
from services.shardsvc.domain.lease import State

SERVICE_NAME = "recmesh.shardsvc.v1.Shards"
MOST_EPOCHS = 10_000
MOST_BATCH = 1 << 24
MOST_RENEWALS = 4_096

_JOB = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_-]{0,127}$")
_NAME = re.compile(r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")


class ShardsServicer(pb_grpc.ShardsServicer):
    """One method per RPC; anything longer belongs in app."""

    def __init__(self, runs: Runs, datasets: Datasets, streams: Streams, lags: Lags, offsets: Offsets) -> None:
        self._runs = runs
        self._datasets = datasets
        self._streams, self._lags, self._offsets = streams, lags, offsets

    async def Inspect(self, request: pb.InspectRequest, context: object) -> pb.InspectReply:
        """Columns, rows and files; creates nothing."""
        index = (await self._datasets.inspect(wire.spec_from_json(request.dataset_json))).index
        columns = [pb.Column(name=name, type=kind) for name, kind in index.columns.items()]
        return pb.InspectReply(
            rows=index.rows, size_bytes=index.size_bytes, files=len(index.files), columns=columns
        )

    async def RegisterDataset(self, request: pb.RegisterDatasetRequest, context: object) -> pb.Dataset:
        """See Datasets.register."""
        _check(_bad("name", request.name, bool(_NAME.match(request.name)), "a DNS label"))
        spec = wire.spec_from_json(request.dataset_json)
        return wire.dataset_to_pb(await self._datasets.register(request.name, spec))

    async def GetDataset(self, request: pb.GetDatasetRequest, context: object) -> pb.Dataset:
        """See Datasets.get."""
        _check(_bad("name", request.name, bool(_NAME.match(request.name)), "a DNS label"))
        return wire.dataset_to_pb(await self._datasets.get(request.name))

    async def RemoveDataset(self, request: pb.RemoveDatasetRequest, context: object) -> pb.RemoveDatasetReply:
        """See Datasets.remove."""
        _check(_bad("name", request.name, bool(_NAME.match(request.name)), "a DNS label"))
        return pb.RemoveDatasetReply(existed=await self._datasets.remove(request.name))

    async def ListDatasets(self, request: pb.ListDatasetsRequest, context: object) -> pb.ListDatasetsReply:
        """All, by name."""
        return pb.ListDatasetsReply(datasets=map(wire.dataset_to_pb, await self._datasets.list()))

    async def OpenRun(self, request: pb.OpenRunRequest, context: object) -> pb.OpenRunReply:
        """See Runs.open."""
        _check(
            _job(request.job_id),
            _bad("gen", request.gen, request.gen >= 1, "at least 1"),
            _bad("epochs", request.epochs, 1 <= request.epochs <= MOST_EPOCHS, f"1 to {MOST_EPOCHS}"),
            _bad("batch_size", request.batch_size, 1 <= request.batch_size <= MOST_BATCH, "1 to 2^24"),
            _bad("shard_batches", request.shard_batches, 1 <= request.shard_batches <= 1 << 20, "1 to 2^20"),
            _bad("lease_ttl_s", request.lease_ttl_s, 0.1 <= request.lease_ttl_s <= 86_400, "0.1 to 86400"),
        )
        line, to_do = await self._runs.open(OpenRun(
            request.job_id, request.gen, wire.spec_from_json(request.dataset_json), request.epochs,
            request.seed, request.shuffle, request.batch_size, request.shard_batches, request.lease_ttl_s,
            wire.ledger_from_pb(request.done, path="done"), request.epoch_floor,
        ))
        return pb.OpenRunReply(
            total=line.end, to_do=to_do, log_last_sequence=line.last_sequence, more=not line.closed
        )

    async def CloseRun(self, request: pb.CloseRunRequest, context: object) -> pb.CloseRunReply:
        """See Runs.close."""
        _check(_job(request.job_id))
        await self._runs.close(request.job_id, forget=request.forget)
        return pb.CloseRunReply()

    async def Lease(self, request: pb.LeaseRequest, context: object) -> pb.LeaseReply:
        """See Runs.lease."""
        _check(_job(request.job_id), _worker(request.worker))
        answer = await self._runs.lease(
            request.job_id, request.gen, worker=request.worker, shards=request.shards,
            request_id=request.request_id, below=request.below,
        )
        return wire.leases_into(pb.LeaseReply(
            state=wire.STATES[answer.state], retry_after_s=answer.retry_after_s, ttl_s=answer.ttl_s,
            line_end=answer.line_end, tasks=map(wire.task_to_pb, answer.tasks),
        ), answer.leases)

    async def Renew(self, request: pb.RenewRequest, context: object) -> pb.RenewReply:
        """See Runs.renew."""
        _check(
            _job(request.job_id), _worker(request.worker),
            _bad("leases", len(request.leases), len(request.leases) <= MOST_RENEWALS, f"<= {MOST_RENEWALS}"),
        )
        renewed = await self._runs.renew(
            request.job_id, request.gen, worker=request.worker,
            progress=[(item.epoch, item.done_to, item.complete, item.hi) for item in request.leases],
        )
        return pb.RenewReply(
            lost=renewed.lost, stale_gen=renewed.state is State.STALE_GEN,
            cuts=[pb.LeaseCut(epoch=epoch, hi=hi) for epoch, hi in renewed.cuts],
        )

    async def SizeShards(self, request: pb.SizeShardsRequest, context: object) -> pb.SizeShardsReply:
        """See Runs.size_shards."""
        _check(
            _job(request.job_id), _worker(request.worker),
            _bad("shard_batches", request.shard_batches, request.shard_batches <= 1 << 20, "0 to 2^20"),
        )
        sized = await self._runs.size_shards(
            request.job_id, request.gen, worker=request.worker, shard_batches=request.shard_batches
        )
        return pb.SizeShardsReply(requeued=sum(one.hi - one.lo for one in sized.requeued))

    async def ReleaseWorker(
        self, request: pb.ReleaseWorkerRequest, context: object
    ) -> pb.ReleaseWorkerReply:
        """See Runs.release."""
        _check(_job(request.job_id), _worker(request.worker))
        released = await self._runs.release(
            request.job_id, request.gen, worker=request.worker, crashed=request.crashed
        )
        return pb.ReleaseWorkerReply(
            requeued=sum(one.hi - one.lo for one in released.requeued),
            suspects=[wire.piece_to_pb(lo, hi) for lo, hi in released.suspects],
            deaths=released.deaths,
        )

    async def Reconcile(self, request: pb.ReconcileRequest, context: object) -> pb.ReconcileReply:
        """See Runs.reconcile."""
        _check(_job(request.job_id))
        done = wire.ledger_from_pb(request.done, path="done")
        orphans, missing = await self._runs.reconcile(request.job_id, request.gen, done=done)
        return pb.ReconcileReply(orphans=orphans, missing=missing)

    async def Progress(self, request: pb.ProgressRequest, context: object) -> pb.ProgressReply:
        """See Runs.progress."""
        _check(_job(request.job_id))
        now = await self._runs.progress(request.job_id)
        view, stream = now.view, await self._streams.state(request.job_id)
        return pb.ProgressReply(
            gen=now.run.gen, total=view.total, done=view.done, queued=view.queued, leased=view.leased,
            leases=len(view.leases), epochs=now.line.epochs, closed=now.line.closed, drained=now.drained,
            holders=wire.holders(view), requeues=view.requeues, expirations=view.expirations,
            waits_for=stream.waits_for, event_time=stream.event_time,
            partitions=map(wire.lag_to_pb, self._lags.known.get(request.job_id, ())),
        )

    async def CommitOffsets(
        self, request: pb.CommitOffsetsRequest, context: object
    ) -> pb.CommitOffsetsReply:
        """See Offsets."""
        _check(_job(request.job_id))
        await self._runs.current(request.job_id, request.gen)
        done = wire.ledger_from_pb(request.done, path="done")
        await self._offsets.trim(request.job_id, done)
        partitions = await self._offsets.commit(request.job_id, done)
        return pb.CommitOffsetsReply(partitions=partitions)


def register(servicer: ShardsServicer) -> Callable[[grpc.aio.Server], None]:
    """For RpcServer."""
    return lambda server: pb_grpc.add_ShardsServicer_to_server(servicer, server)


def _check(*violations: Violation | None) -> None:
    found = [violation for violation in violations if violation is not None]
    if found:
        raise InvalidArgument(f"the request has {len(found)} wrong field(s)", violations=found)


def _bad(path: str, value: object, fine: bool, rule: str) -> Violation | None:
    return None if fine else Violation(path, f"is {value!r}; must be {rule}")


def _job(job_id: str) -> Violation | None:
    return _bad("job_id", job_id, bool(_JOB.match(job_id)), "letters, digits, - and _")


def _worker(worker: str) -> Violation | None:
    return _bad("worker", worker, 0 < len(worker) <= 256, "1 to 256 characters")
