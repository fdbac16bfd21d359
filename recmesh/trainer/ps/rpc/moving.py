"""Moves on the wire: orders of jobmaster, and what a source sends to a target."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from recmesh.formats import SLOTS, Ledger, SlotMask
from recmesh.formats.slotmap import from_bitmap, to_bitmap
from recmesh.pb import ps_pb2 as pb
from recmesh.pb.ps_pb2_grpc import ParameterServerStub
from recmesh.runtime.errors import InvalidArgument, Violation
from recmesh.store import DenseRecord, RowBlock
from recmesh.store.schema import dense_from_json, dense_to_json, table_from_json, table_to_json
from recmesh.trainer.ps.ledger import Cut
from recmesh.trainer.ps.messages import Declaration, JoinOrder
from recmesh.trainer.ps.moves import (
    Cargo,
    FreezeResult,
    InstallOrder,
    MoveOrder,
    MoveProgress,
    StageOrder,
    TableCargo,
)
from recmesh.trainer.ps.rpc import convert

STAGE_DEADLINE_S = 30.0
INSTALL_DEADLINE_S = 3.0
"""Training waits meanwhile; an answer that comes later is asked for again, by the same freeze."""


class RemoteTarget:
    """See moves.Target. The channel is its own."""

    def __init__(self, channel: Any, *, job_id: str) -> None:
        self._stub, self._channel, self._job_id = ParameterServerStub(channel), channel, job_id

    def stage(self, order: StageOrder) -> None:
        """See Target.stage."""
        self._stub.Stage(stage_request(order, job_id=self._job_id), timeout=STAGE_DEADLINE_S)

    def install(self, order: InstallOrder) -> bool:
        """See Target.install."""
        request = install_request(order, job_id=self._job_id)
        return bool(self._stub.Install(request, timeout=INSTALL_DEADLINE_S).installed)

    def close(self) -> None:
        """See Target.close."""
        self._channel.close()


# ---- jobmaster's orders


def join_order(request: pb.JoinRequest) -> JoinOrder:
    """A join."""
    return JoinOrder(request.gen, request.term, request.incarnation, request.ps, request.map_version,
                     request.job_id, convert.triples(request.voids))


def move_order(request: pb.MigrateRequest) -> MoveOrder:
    """A move; InvalidArgument when the slots are no bitmap."""
    return MoveOrder(request.gen, request.move, slots_from(request.slots),
                     request.target_address, request.target_incarnation)


def migrate_reply(progress: MoveProgress) -> pb.MigrateReply:
    """How far the copy is."""
    return pb.MigrateReply(caught_up=progress.caught_up, rows=progress.rows, base_bytes=progress.base_bytes,
                           delta_bytes=progress.delta_bytes, error=progress.error,
                           expected_rows=progress.expected_rows)


def freeze_reply(result: FreezeResult) -> pb.FreezeReply:
    """What the handoff cost."""
    return pb.FreezeReply(
        installed=result.installed, latch_ms=result.latch_ms, frozen_ms=result.frozen_ms,
        last_rows=result.last_rows, last_bytes=result.last_bytes, base_bytes=result.base_bytes,
        delta_bytes=result.delta_bytes)


# ---- from source to target


def stage_request(order: StageOrder, *, job_id: str) -> pb.StageRequest:
    """A piece of the copy."""
    return pb.StageRequest(
        job_id=job_id, gen=order.gen, move=order.move, source=order.source, incarnation=order.incarnation,
        sequence=order.sequence, slots=b"" if order.slots is None else to_bitmap(order.slots),
        model_json="" if order.content is None else _model_json(order.content),
        rows=_rows(order.cargo), chunks=_chunks(order.cargo))


def stage_order(request: pb.StageRequest) -> StageOrder:
    """The inverse of `stage_request`; InvalidArgument names arrays of a wrong size."""
    first = request.sequence == 0
    return StageOrder(
        request.gen, request.move, request.source, request.incarnation, request.sequence,
        _cargo(request.rows, request.chunks), slots_from(request.slots) if first else None,
        _content(request.model_json) if first else None)


def install_request(order: InstallOrder, *, job_id: str) -> pb.InstallRequest:
    """The handoff."""
    return pb.InstallRequest(
        job_id=job_id, gen=order.gen, move=order.move, source=order.source, incarnation=order.incarnation,
        sequence=order.sequence, map_version=order.map_version,
        groups=[pb.GroupCut(ledger=convert.ledger(cut.ledger), step=cut.step, slots=to_bitmap(cut.slots))
                for cut in order.cuts],
        rows=_rows(order.cargo), chunks=_chunks(order.cargo), evicted=order.evicted)


def install_order(request: pb.InstallRequest) -> InstallOrder:
    """The inverse of `install_request`; InvalidArgument names what does not fit."""
    cuts = [Cut(slots_from(group.slots, f"groups[{i}].slots"), Ledger(convert.triples(group.ledger.intervals)),
                group.step) for i, group in enumerate(request.groups)]
    _check_disjoint(cuts)
    return InstallOrder(request.gen, request.move, request.source, request.incarnation, request.sequence,
                        request.map_version, cuts, _cargo(request.rows, request.chunks), _evicted(request.evicted))


def _check_disjoint(cuts: Sequence[Cut]) -> None:
    seen = np.zeros(SLOTS, np.bool_)
    for i, cut in enumerate(cuts):
        if (seen & cut.slots).any():
            slot = int(np.flatnonzero(seen & cut.slots)[0])
            raise InvalidArgument("groups share no slot", violations=[
                Violation(f"groups[{i}].slots", f"slot {slot} is in another group, too")])
        seen |= cut.slots


def _evicted(updates: Mapping[int, int]) -> dict[int, int]:
    wrong = [slot for slot in updates if slot >= SLOTS]
    if wrong:
        raise InvalidArgument("updates are counted by slot", violations=[
            Violation("evicted", f"there is no slot {wrong[0]}")])
    return dict(updates)


def slots_from(bitmap: bytes, path: str = "slots") -> SlotMask:
    """A set of slots; InvalidArgument when it is none."""
    try:
        return from_bitmap(bitmap)
    except ValueError as error:
        raise InvalidArgument("the slots are no bitmap", violations=[Violation(path, str(error))]) from error


def _rows(cargo: Cargo) -> list[pb.RowStates]:
    return [
        pb.RowStates(
            table=entry.table, ids=entry.rows.ids.tobytes(), values=entry.rows.values.tobytes(),
            state=entry.rows.state.tobytes(), updates=entry.rows.updates.tobytes(),
            frequency=entry.rows.frequency.tobytes(), last_step=entry.rows.last_step.tobytes(),
            removed=entry.removed.tobytes())
        for entry in cargo.tables]


def _chunks(cargo: Cargo) -> list[pb.ChunkState]:
    return [
        pb.ChunkState(block=chunk.block, chunk=chunk.chunk, values=chunk.values.tobytes(),
                      state=chunk.state.tobytes(), updates=chunk.updates)
        for chunk in cargo.chunks]


def _cargo(rows: Iterable[pb.RowStates], chunks: Iterable[pb.ChunkState]) -> Cargo:
    return Cargo(
        [_table_cargo(entry, f"rows[{i}]") for i, entry in enumerate(rows)],
        [DenseRecord(entry.block, entry.chunk, convert.array(entry.values, "<f4", f"chunks[{i}].values"),
                     convert.array(entry.state, "<f4", f"chunks[{i}].state"), entry.updates)
         for i, entry in enumerate(chunks)])


def _table_cargo(entry: pb.RowStates, path: str) -> TableCargo:
    ids = convert.array(entry.ids, "<i8", f"{path}.ids")
    n = ids.size
    values = convert.array(entry.values, "<f4", f"{path}.values")
    state = convert.array(entry.state, "<f4", f"{path}.state")
    arrays = {
        "updates": convert.array(entry.updates, "<u4", f"{path}.updates"),
        "frequency": convert.array(entry.frequency, "<u4", f"{path}.frequency"),
        "last_step": convert.array(entry.last_step, "<u8", f"{path}.last_step"),
    }
    wrong = [name for name, array in arrays.items() if array.size != n]
    wrong += [name for name, array in (("values", values), ("state", state)) if (array.size % n if n else array.size)]
    if wrong:
        raise InvalidArgument("rows do not fit their ids", violations=[
            Violation(f"{path}.{name}", f"does not fit {n} ids") for name in wrong])
    rows = RowBlock(ids, _matrix(values, n), _matrix(state, n), **arrays)
    return TableCargo(entry.table, rows, convert.array(entry.removed, "<i8", f"{path}.removed"))


def _matrix(flat: Any, rows: int) -> Any:
    return flat.reshape(rows, -1) if rows else np.empty((0, 0), np.float32)


def _model_json(content: Declaration) -> str:
    return json.dumps({"tables": [table_to_json(table) for table in content.tables],
                       "dense": [dense_to_json(block) for block in content.dense]})


def _content(text: str) -> Declaration:
    try:
        model = json.loads(text)
        return Declaration(tuple(table_from_json(table) for table in model["tables"]),
                           tuple(dense_from_json(block) for block in model["dense"]))
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidArgument("the stage does not describe a model", violations=[
            Violation("model_json", f"{type(error).__name__}: {error}")]) from error
