"""Between protobuf and `messages`. Raw bytes become array views; sizes are checked here."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recmesh.formats import Ledger, SlotMap
from recmesh.formats.intervals import Triple
from recmesh.formats.slotmap import to_bitmap
from recmesh.pb import common_pb2, ps_pb2
from recmesh.runtime.errors import InvalidArgument, Violation
from recmesh.store import DenseSchema, Init, Optimizer, TableSchema
from recmesh.trainer.ps.messages import (
    Declaration,
    DenseValues,
    MarkResult,
    Part,
    RestoreOrder,
    RowGrads,
    Stats,
)

_PARAMS = ("beta1", "beta2", "eps", "initial_accumulator", "weight_decay", "l1", "l2")


def array(data: bytes, dtype: str, path: str) -> NDArray[Any]:
    """A read-only view; InvalidArgument when the length is no multiple of the element's."""
    kind = np.dtype(dtype)
    if len(data) % kind.itemsize:
        raise InvalidArgument("the bytes are no array", violations=[
            Violation(path, f"{len(data)} bytes are no multiple of {kind.itemsize}")])
    return np.frombuffer(data, kind)


def triples(pieces: Iterable[common_pb2.Piece]) -> tuple[Triple, ...]:
    """Pieces as (line, lo, hi)."""
    return tuple((piece.line, piece.lo, piece.hi) for piece in pieces)


def pieces(values: Iterable[Triple]) -> list[common_pb2.Piece]:
    """The inverse of `triples`."""
    return [common_pb2.Piece(line=line, lo=lo, hi=hi) for line, lo, hi in values]


def ledger(value: Ledger) -> common_pb2.Ledger:
    """A ledger for the wire."""
    return common_pb2.Ledger(intervals=pieces(value.triples()))


def optimizer(spec: ps_pb2.OptimizerSpec, path: str) -> Optimizer:
    """InvalidArgument names parameters that no optimizer has."""
    unknown = sorted(set(spec.params) - set(_PARAMS))
    if unknown:
        raise InvalidArgument("the optimizer is not known", violations=[
            Violation(f"{path}.params.{name}", f"one of {', '.join(_PARAMS)}") for name in unknown])
    return Optimizer(kind=spec.kind, lr=spec.lr, **dict(spec.params),
                     schedule=tuple((point.step, point.factor) for point in spec.schedule))


def declaration(request: ps_pb2.DeclareRequest) -> tuple[Declaration, list[DenseValues]]:
    """The model, and the values that came with it."""
    tables = tuple(
        TableSchema(table.name, table.dim, optimizer(table.optimizer, f"tables.{table.name}.optimizer"),
                    Init(table.init.kind, table.init.scale, table.init.seed),
                    table.min_frequency or 1, table.ttl_steps, table.max_bytes, table.dtype or "float32")
        for table in request.tables)
    dense = tuple(
        DenseSchema(block.name, tuple(block.shape),
                    optimizer(block.optimizer, f"dense.{block.name}.optimizer"))
        for block in request.dense)
    return Declaration(tables, dense), dense_values(request.values, "values")


def dense_values(chunks: Iterable[ps_pb2.DenseChunk], path: str) -> list[DenseValues]:
    """Chunks as (block, chunk, values)."""
    return [(chunk.block, chunk.chunk, array(chunk.values, "<f4", f"{path}[{i}].values"))
            for i, chunk in enumerate(chunks)]


def part(
    request: ps_pb2.PushRequest, tables: Iterable[tuple[int, Any, Any, Any]], dense: Sequence[DenseValues]
) -> Part:
    """A push, with its arrays."""
    return Part(request.gen, request.map_version, triples(request.batch), request.epoch,
                [RowGrads(*entry) for entry in tables], dense, request.worker, request.chunk, max(1, request.chunks),
                request.pulled_step, request.staleness,
                triples([request.step])[0] if request.HasField("step") else None, request.step_batches)


def restore_order(request: ps_pb2.RestoreRequest) -> RestoreOrder:
    """A restore; InvalidArgument when the map has not 4096 owners."""
    try:
        slot_map = SlotMap.from_bytes(request.map.version, request.map.owners)
    except ValueError as error:
        wrong = Violation("map.owners", str(error))
        raise InvalidArgument("the map is no slot map", violations=[wrong]) from error
    return RestoreOrder(
        request.gen, request.term, request.incarnation, request.ps, slot_map, request.job_id,
        request.snapshot, tuple(request.parts), triples(request.voids), request.ckptcache,
        request.fresh_ledger)


def mark_reply(result: MarkResult) -> ps_pb2.MarkReply:
    """A cut for the wire."""
    return ps_pb2.MarkReply(
        slots=to_bitmap(result.slots), latch_ms=result.latch_ms, rows=result.rows,
        size_bytes=result.size_bytes, base=result.base,
        groups=[ps_pb2.GroupCut(ledger=ledger(cut.ledger), step=cut.step, slots=to_bitmap(cut.slots))
                for cut in result.groups])


def stats_reply(stats: Stats) -> ps_pb2.StatsReply:
    """Counters for the wire."""
    return ps_pb2.StatsReply(
        gen=stats.gen, step=stats.step, rows=stats.rows, memory_bytes=stats.memory_bytes, slots=stats.slots,
        busy_s=stats.busy_s, pulls=stats.pulls, pushes=stats.pushes, duplicates=stats.duplicates,
        tables=[ps_pb2.TableStats(name=t.name, rows=t.rows, memory_bytes=t.memory_bytes)
                for t in stats.tables],
        demand=stats.demand.astype("<u4").tobytes())
