"""The task log of a job, read from JetStream itself: which row of the data stands at which position.

Decoded by hand from the wire format that proto/shardsvc.proto (TaskChunk) and proto/common.proto fix, so that what is
checked and what checks share no code.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recmesh.formats import permutation
from recmesh.formats.protowire import fields
from recmesh.runtime.bus import Bus
from recmesh.runtime.errors import DataLoss

STREAM, ROOT = "RECMESH_TASKS", "recmesh.tasks"


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
        return [task async for _, data in log.read(f"{ROOT}.{job_id}") for task in decode(data)]
    finally:
        await bus.stop()


def decode(chunk: bytes) -> list[Task]:
    """The tasks of one message of the log."""
    return [_task(value) for field, value in fields(memoryview(chunk)) if field == 1 and isinstance(value, memoryview)]


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
