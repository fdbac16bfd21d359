"""What is read from the task log by hand is what shardsvc wrote."""

import numpy as np
import pytest

from recmesh.chaos.tasklog import Task, decode, rows_by_position
from recmesh.data.planned import PlannedTasks, Shape
from recmesh.data.records import FileSlice, TaskRecord
from recmesh.data.slices import Slices
from recmesh.formats import permutation
from recmesh.runtime.errors import DataLoss
from services.shardsvc import wire
from services.shardsvc.domain.journal import Planned


def test_records_are_read_as_they_were_written() -> None:
    records = [
        TaskRecord(0, 0, 0, 5, 0, 77, FileSlice("/data/a", 10, "tag", 3, 5)),
        TaskRecord(0, 0, 5, 4, 0, 0, FileSlice("/data/b", 10, "tag", 0, 4)),
        TaskRecord(0, 0, 9, 0, 1, 0, None, close=True),
    ]
    tasks = decode(wire.chunks(records, fingerprint="print"))
    assert tasks == [
        Task(0, 5, 77, "/data/a", 3, False), Task(5, 4, 0, "/data/b", 0, False), Task(9, 0, 0, "", 0, True)]
    rows = rows_by_position(tasks, first_rows={"/data/a": 0, "/data/b": 100})
    assert rows.tolist() == [*(3 + permutation(77, 5)).tolist(), *range(100, 104)]


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_plan_is_unfolded_to_the_tasks_that_workers_get(shuffle: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MOST_SLICES", 5)
    pieces = [FileSlice(f"/{name}", 10, "tag", 7 + 3 * at, 1 + at % 3) for name in "abc" for at in range(1, 9)]
    slices, shape = Slices(pieces), Shape(3, 9, shuffle)
    log = [
        *wire.listing(slices, first=0, fingerprint="print"),
        wire.plan_to_bytes(Planned(shape, len(slices), slices.rows), fingerprint="print"),
    ]
    assert len(log) == 6
    tasks = decode(log)
    assert tasks[:-1] == [
        Task(task.base, task.rows, task.order_seed, task.file.uri, task.file.first_row, False)
        for task in PlannedTasks(slices, shape) if task.file
    ]
    assert tasks[-1] == Task(3 * slices.rows, 0, 0, "", 0, True)


def test_gaps_and_open_lines_are_refused() -> None:
    first, late = Task(0, 5, 0, "f", 0, False), Task(6, 5, 0, "f", 0, False)
    with pytest.raises(DataLoss, match="gap"):
        rows_by_position([first, late], first_rows={"f": 0})
    with pytest.raises(DataLoss, match="not closed"):
        rows_by_position([first], first_rows={"f": 0})
    assert rows_by_position([Task(0, 0, 0, "", 0, True)], first_rows={}).dtype == np.int64
