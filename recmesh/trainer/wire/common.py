"""Conversions that several clients share."""

from collections.abc import Iterable

import numpy as np

from recmesh.data.records import FileSlice, TaskRecord
from recmesh.pb import common_pb2, jobmaster_pb2
from recmesh.trainer.ports import Member, Owners, Piece, RunRecord

NO_OWNERS: Owners = np.empty(0, np.uint16)


def piece_from(message: common_pb2.Piece) -> Piece:
    """Positions as they came."""
    return Piece(message.line, message.lo, message.hi)


def piece_to(piece: Piece) -> common_pb2.Piece:
    """Positions for the wire."""
    return common_pb2.Piece(line=piece.line, lo=piece.lo, hi=piece.hi)


def pieces_from(messages: Iterable[common_pb2.Piece]) -> tuple[Piece, ...]:
    """Several."""
    return tuple(piece_from(message) for message in messages)


def task_from(message: common_pb2.TaskRecord) -> TaskRecord:
    """A task record; a closing one has no file."""
    file = message.file
    return TaskRecord(
        sequence=message.sequence,
        line=message.line,
        base=message.base,
        rows=message.rows,
        epoch=message.epoch,
        order_seed=message.order_seed,
        file=None
        if message.close
        else FileSlice(
            uri=file.uri,
            size_bytes=file.size_bytes,
            etag=file.etag,
            first_row=file.first_row,
            rows=file.rows,
            byte_lo=file.byte_lo,
            byte_hi=file.byte_hi,
            view=file.view,
        ),
        close=message.close,
    )


def task_to(task: TaskRecord) -> common_pb2.TaskRecord:
    """A task record for the wire."""
    file = task.file
    return common_pb2.TaskRecord(
        sequence=task.sequence, line=task.line, base=task.base, rows=task.rows, epoch=task.epoch,
        order_seed=task.order_seed, close=task.close,
        file=None if file is None else common_pb2.FileSlice(
            uri=file.uri, size_bytes=file.size_bytes, etag=file.etag, first_row=file.first_row, rows=file.rows,
            byte_lo=file.byte_lo, byte_hi=file.byte_hi, view=file.view,
        ),
    )


def record_from(message: jobmaster_pb2.RunRecord) -> RunRecord:
    """The run record; before its first generation it has no map."""
    owners = np.frombuffer(message.map.owners, "<u2").astype(np.uint16) if message.map.owners else NO_OWNERS
    return RunRecord(
        gen=message.gen,
        phase=message.phase,
        map_version=message.map.version,
        owners=owners,
        members=tuple(Member(m.ps, m.address, m.incarnation) for m in message.members),
        last_committed=message.last_committed,
    )
