"""Between messages and values. Nothing else in shardsvc knows protobuf or the bytes of a stored record."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import orjson

from recmesh.data.order import LINE
from recmesh.data.planned import Shape
from recmesh.data.records import FileSlice, Int64, TaskRecord
from recmesh.data.slices import ROW, FileName, Slices
from recmesh.data.windows import Turn
from recmesh.formats import IntervalSet
from recmesh.pb import common_pb2 as common
from recmesh.pb import shardsvc_pb2 as pb
from recmesh.runtime.errors import DataLoss, InvalidArgument, Violation
from recmesh.spec.dataset import DatasetSpec
from services.shardsvc.domain.alignment import Lag
from services.shardsvc.domain.dataset import Dataset
from services.shardsvc.domain.journal import Begun, FileSpans, Message, Planned, Served, Start, Trimmed
from services.shardsvc.domain.lease import Lease, State, View
from services.shardsvc.domain.run import Run

MOST_RECORDS = 1_000
MOST_BYTES = 512 * 1024
MOST_SLICES = 8_192
MOST_FILE_BYTES = 128 * 1024
"""Of files' names and tags in one message; its slices take 300 KiB at most beside them."""

STATES = {
    State.GRANTED: pb.LeaseReply.GRANTED,
    State.WAIT: pb.LeaseReply.WAIT,
    State.REOPEN: pb.LeaseReply.WAIT,
    State.DRAINED: pb.LeaseReply.DRAINED,
    State.STALE_GEN: pb.LeaseReply.STALE_GEN,
}


def task_to_pb(task: TaskRecord) -> common.TaskRecord:
    """The record as it is logged and handed to workers."""
    message = common.TaskRecord(
        sequence=task.sequence, line=task.line, base=task.base, rows=task.rows, epoch=task.epoch,
        order_seed=task.order_seed, close=task.close,
    )
    if task.file is not None:
        file = task.file
        message.file.CopyFrom(common.FileSlice(
            uri=file.uri, size_bytes=file.size_bytes, etag=file.etag, first_row=file.first_row,
            rows=file.rows, byte_lo=file.byte_lo, byte_hi=file.byte_hi, view=file.view,
        ))
    return message


def task_from_pb(message: common.TaskRecord, *, sequence: int | None = None) -> TaskRecord:
    """The inverse; a record read from the log gets its sequence from there."""
    file = None
    if message.HasField("file"):
        part = message.file
        file = FileSlice(
            part.uri, part.size_bytes, part.etag, part.first_row, part.rows, part.byte_lo, part.byte_hi,
            part.view,
        )
    return TaskRecord(
        message.sequence if sequence is None else sequence, message.line, message.base, message.rows,
        message.epoch, message.order_seed, file, message.close,
    )


def chunks(
    tasks: Iterable[TaskRecord], *, fingerprint: str = "", served: Served | None = None, starts: Sequence[Start] = ()
) -> Iterator[bytes]:
    """Messages of the task log: at most 1,000 records and 512 KiB each; only the last of them completes a window.

    One at a time is in memory, with its records.
    """
    def made(chunk: pb.TaskChunk, *, is_last: bool) -> bytes:
        if served is not None:
            chunk.turn.CopyFrom(pb.Turn(
                epoch=served.epoch, stream=served.turn.stream, begin=served.turn.begin,
                complete=served.complete and is_last, event_time=served.event_time,
            ))
        data: bytes = chunk.SerializeToString()
        return data

    chunk = pb.TaskChunk(fingerprint=fingerprint, starts=map(_start_to_pb, starts))
    size = 0
    for task in tasks:
        message = task_to_pb(task)
        bytes_more = message.ByteSize() + 8
        if chunk.tasks and (len(chunk.tasks) >= MOST_RECORDS or size + bytes_more > MOST_BYTES - 1024):
            yield made(chunk, is_last=False)
            chunk, size = pb.TaskChunk(fingerprint=fingerprint), 0
        chunk.tasks.append(message)
        size += bytes_more
    if chunk.tasks or chunk.starts or (served is not None and served.complete):
        yield made(chunk, is_last=True)


def listing(slices: Slices, *, first: int, fingerprint: str) -> Iterator[bytes]:
    """Messages of the task log that hold the slices from number `first` on."""
    while first < len(slices):
        table = slices.table(first, min(first + MOST_SLICES, len(slices)))
        numbers, starts, counts = np.unique(table["file"], return_index=True, return_counts=True)
        names = [slices.file(number) for number in numbers.tolist()]
        ends = np.cumsum([len(name.uri.encode()) + len(name.etag.encode()) + 24 for name in names])
        fitting = max(1, int(np.searchsorted(ends, MOST_FILE_BYTES, "right")))
        if fitting < len(names):
            table = table[: starts[fitting]]
        names, counts = names[:fitting], counts[:fitting]
        chunk = pb.TaskChunk(fingerprint=fingerprint, slices=pb.SliceTable(
            uris=[name.uri for name in names], sizes=[name.size_bytes for name in names],
            etags=[name.etag for name in names], counts=counts.tolist(), rows=table["rows"].tolist(),
            row_gaps=_gaps(table["first_row"], table["first_row"] + table["rows"], starts[:fitting]),
            byte_gaps=_gaps(table["byte_lo"], table["byte_hi"], starts[:fitting]),
            byte_sizes=_unless_zero(table["byte_hi"] - table["byte_lo"]),
        ))
        data: bytes = chunk.SerializeToString()
        yield data
        first += len(table)


def _gaps(begins: Int64, ends: Int64, starts: Int64) -> list[int]:
    """From the end of the slice before it to its begin; of the first of a file from 0."""
    before = np.concatenate(([0], ends[:-1]))
    before[starts] = 0
    return _unless_zero(begins - before)


def _unless_zero(column: Int64) -> list[int]:
    return column.tolist() if column.any() else []


def _spans(table: pb.SliceTable) -> Iterator[FileSpans]:
    """The inverse of `listing`, of one message."""
    count = len(table.rows)
    rows, row_gaps, byte_gaps, sizes = (
        np.array(column, np.int64) if len(column) else np.zeros(count, np.int64)
        for column in (table.rows, table.row_gaps, table.byte_gaps, table.byte_sizes)
    )
    found, at = np.zeros(count, ROW), 0
    found["rows"] = rows
    for *name, of_file in zip(table.uris, table.sizes, table.etags, table.counts, strict=True):
        part = slice(at, at + of_file)
        ends = np.cumsum(row_gaps[part] + rows[part])
        found["first_row"][part] = ends - rows[part]
        ends = np.cumsum(byte_gaps[part] + sizes[part])
        found["byte_lo"][part], found["byte_hi"][part] = ends - sizes[part], ends
        yield FileName(*name), found[part]
        at += of_file


def plan_to_bytes(planned: Planned, *, fingerprint: str) -> bytes:
    """The message that ends a listing."""
    shape = planned.shape
    plan = pb.TaskPlan(
        epochs=shape.epochs, seed=shape.seed, shuffle=shape.shuffle, slices=planned.slices, rows=planned.rows
    )
    data: bytes = pb.TaskChunk(fingerprint=fingerprint, plan=plan).SerializeToString()
    return data


def begin_to_bytes(begun: Begun, *, fingerprint: str, starts: Sequence[Start] = ()) -> bytes:
    """The first message of a line of streams."""
    chunk = pb.TaskChunk(fingerprint=fingerprint, begun=_begun_to_pb(begun), starts=map(_start_to_pb, starts))
    data: bytes = chunk.SerializeToString()
    return data


def trim_to_bytes(trimmed: Trimmed, *, fingerprint: str, starts: Sequence[Start]) -> bytes:
    """The message that stands for those that are deleted then."""
    message = pb.Trimmed(
        begun=_begun_to_pb(trimmed.begun), base=trimmed.base, end=trimmed.end, slices=trimmed.slices
    )
    chunk = pb.TaskChunk(fingerprint=fingerprint, trimmed=message, starts=map(_start_to_pb, starts))
    data: bytes = chunk.SerializeToString()
    return data


def _start_to_pb(start: Start) -> pb.PartitionStart:
    return pb.PartitionStart(view=start.view, uri=start.uri, tag=start.tag, offset=start.offset)


def _begun_to_pb(begun: Begun) -> pb.StreamBegin:
    return pb.StreamBegin(
        dataset_json=begun.spec.model_dump_json(), epochs=begun.epochs, seed=begun.seed, shuffle=begun.shuffle
    )


def _begun(part: pb.StreamBegin) -> Begun:
    return Begun(spec_from_json(part.dataset_json), part.epochs, part.seed, part.shuffle)


def message_of(sequence: int, data: bytes) -> Message:
    """One message of the task log."""
    chunk = pb.TaskChunk.FromString(data)
    served = trimmed = None
    begun = _begun(chunk.begun) if chunk.HasField("begun") else None
    if chunk.HasField("trimmed"):
        cut = chunk.trimmed
        trimmed = Trimmed(_begun(cut.begun), cut.base, cut.end, cut.slices)
    if chunk.HasField("turn"):
        turn = chunk.turn
        served = Served(turn.epoch, Turn(turn.begin, turn.stream), turn.complete, turn.event_time)
    records = [task_from_pb(message, sequence=sequence) for message in chunk.tasks]
    starts = [Start(each.view, each.uri, each.tag, each.offset) for each in chunk.starts]
    planned, part = None, chunk.plan
    if chunk.HasField("plan"):
        planned = Planned(Shape(part.epochs, part.seed, part.shuffle), part.slices, part.rows)
    return Message(
        records, chunk.fingerprint, begun, served, starts, trimmed, tuple(_spans(chunk.slices)), planned
    )


def ledger_from_pb(ledger: common.Ledger, *, path: str) -> IntervalSet:
    """Positions on the line of bounded tasks."""
    found = IntervalSet()
    for piece in ledger.intervals:
        if piece.line != LINE or piece.lo >= piece.hi:
            reason = f"[{piece.lo}, {piece.hi}) of line {piece.line} is no piece of line {LINE}"
            raise InvalidArgument(reason, violations=[Violation(path, reason)])
        found.add(piece.lo, piece.hi)
    return found


def leases_into(reply: pb.LeaseReply, leases: Iterable[Lease]) -> pb.LeaseReply:
    """The reply with leases whose pieces start where their holder goes on."""
    for lease in leases:                        # field by field: whole messages as arguments take twice the time
        added = reply.leases.add()
        added.epoch, piece = lease.epoch, added.piece
        piece.line, piece.lo, piece.hi = LINE, lease.progress, lease.hi
    return reply


def piece_to_pb(lo: int, hi: int) -> common.Piece:
    """A piece of the line of bounded tasks."""
    return common.Piece(line=LINE, lo=lo, hi=hi)


def lag_to_pb(lag: Lag) -> pb.PartitionLag:
    """How far a job is behind a partition."""
    return pb.PartitionLag(uri=lag.uri, offset=lag.offset, end=lag.end, lag_s=lag.lag_s, assigned=lag.assigned)


def holders(view: View) -> list[pb.Holder]:
    """Who holds what, by worker."""
    found: dict[str, pb.Holder] = {}
    for lease in view.leases:
        holder = found.setdefault(lease.worker, pb.Holder(worker=lease.worker))
        holder.leases += 1
        holder.positions += lease.hi - lease.progress
        holder.oldest_s = max(holder.oldest_s, lease.age_s)
    return [found[worker] for worker in sorted(found)]


def run_to_bytes(run: Run) -> bytes:
    """As it is kept in the key-value store."""
    return orjson.dumps({
        "job_id": run.job_id, "gen": run.gen, "batch_size": run.batch_size,
        "shard_batches": run.shard_batches, "ttl_s": run.ttl_s, "done": run.done.pairs(), "life": run.life,
        "closed": run.closed,
    })


def run_from_bytes(data: bytes) -> Run:
    """The inverse; DataLoss when it is no run."""
    try:
        value = orjson.loads(data)
        value["done"] = IntervalSet((lo, hi) for lo, hi in value["done"])
        return Run(**_known(Run, value))
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise DataLoss(f"a stored run cannot be read: {error}") from error


def _known(kind: type[Any], value: Mapping[str, Any]) -> dict[str, Any]:
    """Without what a newer release has added: replicas one version apart share the store."""
    names = {field.name for field in fields(kind)}
    return {name: item for name, item in value.items() if name in names}


def dataset_to_bytes(dataset: Dataset) -> bytes:
    """As it is kept in the key-value store."""
    return orjson.dumps({
        "name": dataset.name, "revision": dataset.revision, "created": dataset.created, "rows": dataset.rows,
        "files": dataset.files, "size_bytes": dataset.size_bytes, "tasks": dataset.tasks, "columns": dataset.columns,
        "spec": dataset.spec.model_dump(mode="json"),
    })


def dataset_from_bytes(data: bytes) -> Dataset:
    """The inverse; DataLoss when it is no dataset."""
    try:
        value = orjson.loads(data)
        value["spec"] = DatasetSpec.parse(value["spec"])
        return Dataset(**_known(Dataset, value))
    except (orjson.JSONDecodeError, KeyError, TypeError, InvalidArgument) as error:
        raise DataLoss(f"a stored dataset cannot be read: {error}") from error


def dataset_to_pb(dataset: Dataset) -> pb.Dataset:
    """A registered dataset."""
    return pb.Dataset(
        name=dataset.name, revision=dataset.revision, dataset_json=dataset.spec.model_dump_json(),
        created=dataset.created, rows=dataset.rows, files=dataset.files, size_bytes=dataset.size_bytes,
        tasks=dataset.tasks, columns=dataset.columns,
    )


def spec_from_json(text: str, *, path: str = "dataset_json") -> DatasetSpec:
    """A dataset's specification; InvalidArgument names every wrong field."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidArgument(f"{path} is no JSON", violations=[Violation(path, str(error))]) from None
    return DatasetSpec.parse(value)
