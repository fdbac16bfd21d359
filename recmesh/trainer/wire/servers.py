"""One parameter server over gRPC: arrays as raw little-endian bytes, large pushes in several messages."""

from collections.abc import Mapping, Sequence
from typing import Any

from recmesh.pb import ps_pb2 as pb
from recmesh.pb.ps_pb2_grpc import ParameterServerStub
from recmesh.runtime.errors import Unavailable
from recmesh.spec.job import HYPERPARAMETERS, LrPoint, Optimizer
from recmesh.trainer.ports import (
    UNCONDITIONAL,
    AppliedSets,
    Chunk,
    DenseDeclaration,
    Piece,
    Pulled,
    PushAck,
    PushStatus,
    PushTerms,
    Settled,
    TableDeclaration,
    TableGrads,
)
from recmesh.trainer.session import Ints
from recmesh.trainer.wire import arrays
from recmesh.trainer.wire.common import piece_to, pieces_from

_DEADLINE_S = 30.0
_SERVICE = "/recmesh.ps.v1.ParameterServer"
MESSAGE_BYTES = 64 << 20
"""A part above this goes as several messages; the server applies it once all have come."""

_STATUSES: Mapping[int, PushStatus] = {
    pb.PushReply.APPLIED: "applied",
    pb.PushReply.WRONG_MAP: "wrong_map",
    pb.PushReply.OVERLAP: "overlap",
    pb.PushReply.STALE_GEN: "stale_gen",
    pb.PushReply.OLD_LEASE: "old_lease",
    pb.PushReply.STALE: "stale",
    pb.PushReply.KEPT: "kept",
}


class RemoteServer:
    """See ports.ParameterServer. The channel is its own."""

    def __init__(self, channel: Any, *, job_id: str) -> None:
        self._stub = ParameterServerStub(channel)
        self._pull = channel.unary_unary(f"{_SERVICE}/Pull")
        self._push = channel.unary_unary(f"{_SERVICE}/Push", response_deserializer=pb.PushReply.FromString)
        self._channel, self._job_id = channel, job_id

    def close(self) -> None:
        """See ParameterServer.close."""
        self._channel.close()

    def declare(
        self,
        gen: int,
        *,
        tables: Sequence[TableDeclaration],
        dense: Sequence[DenseDeclaration],
        values: Sequence[Chunk],
    ) -> None:
        """See ParameterServer.declare."""
        request = pb.DeclareRequest(
            job_id=self._job_id,
            gen=gen,
            tables=[table_to(table) for table in tables],
            dense=[
                pb.DenseSpec(name=d.name, shape=d.shape, optimizer=optimizer_to(d.optimizer, d.schedule))
                for d in dense
            ],
            values=[_chunk(chunk) for chunk in values],
        )
        self._stub.Declare(request, timeout=_DEADLINE_S)

    def pull(
        self,
        gen: int,
        *,
        map_version: int,
        tables: Sequence[tuple[int, Ints]],
        dense: bool,
        dense_since: int = 0,
        absent_as_zero: bool = False,
    ) -> Pulled:
        """See ParameterServer.pull."""
        request = pb.PullRequest(
            job_id=self._job_id,
            gen=gen,
            map_version=map_version,
            dense=dense,
            dense_since=dense_since,
            absent_as_zero=absent_as_zero,
        )
        head, rows, chunks = arrays.read_pull_reply(
            self._pull(arrays.pull_request(request, tables), timeout=_DEADLINE_S)
        )
        return Pulled(rows=rows, dense=[Chunk(*chunk) for chunk in chunks], step=head.step,
                      group_step=head.group_step)

    def push(
        self,
        gen: int,
        *,
        map_version: int,
        batch: Sequence[Piece],
        epoch: int,
        tables: Sequence[TableGrads],
        dense: Sequence[Chunk],
        worker: str,
        terms: PushTerms = UNCONDITIONAL,
    ) -> PushAck:
        """See ParameterServer.push."""
        portions = _portions(tables, dense)
        reply = pb.PushReply()
        for number, (some_tables, some_dense) in enumerate(portions):
            request = pb.PushRequest(
                job_id=self._job_id,
                gen=gen,
                map_version=map_version,
                batch=[piece_to(piece) for piece in batch],
                epoch=epoch,
                worker=worker,
                chunk=number,
                chunks=len(portions),
                pulled_step=terms.pulled_step,
                staleness=terms.staleness,
                step=None if terms.step is None else piece_to(terms.step),
                step_batches=terms.step_batches,
            )
            message = arrays.push_request(request, some_tables, some_dense)
            reply = self._push(message, timeout=_DEADLINE_S)
            if reply.status != pb.PushReply.CHUNK_KEPT:
                break
        else:
            # The server let earlier portions expire, or forgot them with its generation: all must come again.
            raise Unavailable("a part came whole, but the server lacks portions of it", reason="PORTIONS_LOST")
        return PushAck(_STATUSES[reply.status], reply.since, pieces_from(reply.cuts), reply.duplicate)

    def settled(
        self, gen: int, *, map_version: int, pieces: Sequence[Piece], others: bool, wait_s: float
    ) -> Settled:
        """See ParameterServer.settled."""
        request = pb.SettledRequest(
            job_id=self._job_id, gen=gen, map_version=map_version, others=others, wait_s=wait_s,
            pieces=[piece_to(piece) for piece in pieces],
        )
        reply = self._stub.Settled(request, timeout=_DEADLINE_S + wait_s)
        return Settled(reply.applied, pieces_from(reply.lost))

    def ledgers(self, gen: int, within: Sequence[Piece]) -> AppliedSets:
        """See ParameterServer.ledgers."""
        pieces = [piece_to(piece) for piece in within]
        request = pb.LedgersRequest(job_id=self._job_id, gen=gen, within=pieces)
        reply = self._stub.Ledgers(request, timeout=_DEADLINE_S)
        return AppliedSets(
            pieces_from(reply.applied_by_all.intervals), pieces_from(reply.applied_by_any.intervals)
        )


def optimizer_to(optimizer: Optimizer | None, schedule: Sequence[LrPoint]) -> pb.OptimizerSpec:
    """None: pushes are deltas."""
    if optimizer is None:
        return pb.OptimizerSpec(kind="accumulate", lr=1.0)
    return pb.OptimizerSpec(
        kind=optimizer.kind,
        lr=optimizer.lr,
        params={name: float(getattr(optimizer, name)) for name in HYPERPARAMETERS[optimizer.kind]},
        schedule=[pb.LrPoint(step=point.step, factor=point.factor) for point in schedule],
    )


def table_to(table: TableDeclaration) -> pb.TableSpec:
    """For the wire."""
    return pb.TableSpec(
        name=table.name,
        dim=table.dim,
        optimizer=optimizer_to(table.optimizer, table.schedule),
        init=pb.InitSpec(kind=table.init.kind, scale=table.init.scale, seed=table.seed),
        min_frequency=table.policy.min_frequency,
        ttl_steps=table.policy.ttl_steps,
        max_bytes=table.policy.max_bytes or 0,
        dtype=table.policy.dtype,
    )


def _chunk(chunk: Chunk) -> pb.DenseChunk:
    return pb.DenseChunk(block=chunk.block, chunk=chunk.chunk, values=chunk.values.tobytes())


def _portions(
    tables: Sequence[TableGrads], dense: Sequence[Chunk]
) -> list[tuple[list[TableGrads], list[Chunk]]]:
    """A part as messages of at most about MESSAGE_BYTES; at least one, though it be empty."""
    portions: list[tuple[list[TableGrads], list[Chunk]]] = [([], [])]
    room = MESSAGE_BYTES
    for whole in tables:
        row_bytes = 12 + 4 * whole.grads.shape[1]
        lo = 0
        while lo < whole.ids.size:
            rows = min(whole.ids.size - lo, max(room // row_bytes, 0))
            if rows == 0:
                portions.append(([], []))
                room = MESSAGE_BYTES
                continue
            some = slice(lo, lo + rows)
            part = TableGrads(whole.table, whole.ids[some], whole.grads[some], whole.counts[some])
            portions[-1][0].append(part)
            lo, room = lo + rows, room - rows * row_bytes
    for chunk in dense:
        if chunk.values.nbytes > room:
            portions.append(([], []))
            room = MESSAGE_BYTES
        portions[-1][1].append(chunk)
        room -= chunk.values.nbytes
    return portions
