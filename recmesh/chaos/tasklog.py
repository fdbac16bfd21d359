"""The task log of a job, read from JetStream itself: which row of the data stands at which position.

Decoded by hand from the wire format that proto/shardsvc.proto (TaskChunk) and proto/common.proto fix, and of a dataset
of files unfolded by hand from slices and plan as ADR 16 says, so that what is checked and what checks share no code.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recmesh.formats import mix, permutation
from recmesh.formats.protowire import fields
from recmesh.runtime.bus import Bus
from recmesh.runtime.errors import DataLoss

STREAM, ROOT = "RECMESH_TASKS", "recmesh.tasks"
_Slice = tuple[str, int, int]
"""uri, first row, rows"""


@dataclass(frozen=True, slots=True)
class Task:
    """Positions [base, base + rows) are rows [first_row, first_row + rows) of the file, in the seed's order."""

    base: int
    rows: int
    order_seed: int
    uri: str
    first_row: int
    close: bool


async def read(url: str, token: str, job_id: str) -> list[Task]:
    """All records of a job, in order."""
    bus = Bus(url, "chaos", token=token or None)
    await bus.start()
    try:
        log = bus.log(STREAM, f"{ROOT}.>")
        return decode([data async for _, data in log.read(f"{ROOT}.{job_id}")])
    finally:
        await bus.stop()


def decode(log: Iterable[bytes]) -> list[Task]:
    """The tasks of a log, from all of its messages."""
    tasks: list[Task] = []
    slices: list[_Slice] = []
    for chunk in log:
        for field, value in fields(memoryview(chunk)):
            if isinstance(value, int):
                continue
            if field == 1:
                tasks.append(_task(value))
            elif field == 7:
                slices += _slices(value)
            elif field == 8:
                tasks += _planned(slices, {inner: part for inner, part in fields(value) if isinstance(part, int)})
    return tasks


def _slices(message: memoryview) -> list[_Slice]:
    uris: list[str] = []
    columns: dict[int, list[int]] = {}
    for field, value in fields(message):
        if field == 1 and not isinstance(value, int):
            uris.append(str(value, "utf-8"))
        elif field in (4, 5, 6):
            columns.setdefault(field, []).extend([value] if isinstance(value, int) else _varints(value))
    rows = columns.get(5, [])
    gaps = [(gap >> 1) ^ -(gap & 1) for gap in columns.get(6, [0] * len(rows))]
    found, at = [], 0
    for uri, count in zip(uris, columns[4], strict=True):
        row = 0
        for gap, size in zip(gaps[at : at + count], rows[at : at + count], strict=True):
            found.append((uri, row + gap, size))
            row += gap + size
        at += count
    return found


def _varints(data: memoryview) -> Iterator[int]:
    value = shift = 0
    for byte in data:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            yield value
            value = shift = 0


def _planned(slices: Sequence[_Slice], plan: dict[int, int]) -> list[Task]:
    """Every epoch's tasks by the definition, and the one that closes the line."""
    tasks, base, seed, shuffled = [], 0, plan.get(2, 0), bool(plan.get(3))
    for epoch in range(plan[1]):
        shuffle = permutation(_seed(seed, b"task", epoch, 0), len(slices)) if shuffled else np.arange(len(slices))
        for index in shuffle.tolist():
            uri, first_row, rows = slices[index]
            order_seed = _seed(seed, b"rows", epoch, index) if shuffled else 0
            tasks.append(Task(base, rows, order_seed, uri, first_row, False))
            base += rows
    return [*tasks, Task(base, 0, 0, "", 0, True)]


def _seed(seed: int, use: bytes, epoch: int, index: int) -> int:
    return mix(mix(mix(seed ^ int.from_bytes(use, "big")) ^ epoch) ^ index) or 1


def _task(message: memoryview) -> Task:
    numbers: dict[int, int] = {}
    uri, first_row = "", 0
    for field, value in fields(message):
        if isinstance(value, int):
            numbers[field] = value
        elif field == 7:
            for inner, part in fields(value):
                if inner == 1 and isinstance(part, memoryview):
                    uri = str(part, "utf-8")
                elif inner == 4 and isinstance(part, int):
                    first_row = part
    return Task(numbers.get(3, 0), numbers.get(4, 0), numbers.get(6, 0), uri, first_row, bool(numbers.get(8, 0)))


def rows_by_position(tasks: Sequence[Task], *, first_rows: dict[str, int]) -> NDArray[np.int64]:
    """int64 [N]: the row, counted over all files, at each position; `first_rows` is each file's first, by uri.

    DataLoss unless the records follow each other without a gap and the last one closes the line.
    """
    made: list[NDArray[np.int64]] = []
    end = 0
    for task in tasks:
        if task.base != end:
            raise DataLoss(f"the task log has a gap or an overlap at position {end}: the next record is at {task.base}")
        if task.close:
            return np.concatenate(made) if made else np.empty(0, np.int64)
        order = permutation(task.order_seed, task.rows) if task.order_seed else np.arange(task.rows)
        made.append(first_rows[task.uri] + task.first_row + order)
        end += task.rows
    raise DataLoss("the task log is not closed")
