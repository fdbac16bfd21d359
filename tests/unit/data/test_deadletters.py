"""Records that cannot be read: left out by position, written aside, counted under a limit."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recmesh.data import FileSlice, TaskReader, TaskRecord, index_tasks
from recmesh.data.deadletters import sift
from recmesh.data.faults import wrong
from recmesh.datasets import Dataset
from recmesh.runtime.errors import InvalidArgument, Unavailable
from recmesh.spec.dataset import DatasetSpec

ROWS = 60
BAD = {0: "no json", 7: '{"item": "seven", "label": 1}', 8: "{}}", 59: '{"item": 59, "label": "x"}'}


def lines(folder: Path, *, bad: dict[int, str] = BAD) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(bad.get(row, json.dumps({"item": row, "label": row % 2})) + "\n" for row in range(ROWS)))
    return path


def spec(path: Path, *, limit: int | None = 10, folder: str = "", **more: Any) -> DatasetSpec:
    source = {"format": "jsonl", "files": [str(path)], "types": {"item": "int", "label": "float"}}
    aside = None if limit is None else {"limit": limit, "folder": folder}
    fields = {"source": source, "features": [{"name": "item"}], "task_rows": 25, "bad_records": aside}
    return DatasetSpec.parse(fields | more)


def records(dataset: DatasetSpec, *, seed: int = 0) -> list[TaskRecord]:
    made, base = [], 0
    for piece in index_tasks(dataset):
        made.append(TaskRecord(0, 0, base, piece.rows, 0, seed, piece))
        base += piece.rows
    return made


@pytest.mark.parametrize("seed", [0, 5])
def test_what_can_be_read_stays_at_its_position(tmp_path: Path, seed: int) -> None:
    whole = spec(lines(tmp_path, bad={}), limit=None)
    before = TaskReader(whole).batch(records(whole, seed=seed), 0, ROWS).ids["item"].values.tolist()
    dataset = spec(lines(tmp_path))
    tasks = records(dataset, seed=seed)
    for width in (1, 7, ROWS):
        reader, found = TaskReader(dataset), list[int]()
        for lo in range(0, ROWS, width):
            hi = min(ROWS, lo + width)
            batch = reader.batch(tasks, lo, hi)
            wanted = [item for item in before[lo:hi] if item not in BAD]
            assert batch.ids["item"].values.tolist() == wanted and batch.labels.shape == (len(wanted), 1)
            found += wanted
        assert sorted(found) == sorted(set(range(ROWS)) - set(BAD))
        assert reader.bad_records == len(BAD)


def test_each_is_written_down_once_with_its_file_row_and_reason(tmp_path: Path) -> None:
    aside = tmp_path / "aside" / "letters"
    dataset = spec(lines(tmp_path), folder=str(aside))
    for _ in range(2):                                  # another process reads the same
        reader = TaskReader(dataset)
        reader.batch(records(dataset), 0, ROWS)
    written = [json.loads(line) for path in aside.iterdir() for line in path.read_text().splitlines()]
    assert sorted(letter["row"] for letter in written) == sorted(BAD)
    assert {letter["uri"] for letter in written} == {str(tmp_path / "rows.jsonl")}
    assert all(letter["reason"] for letter in written)


def test_more_than_the_limit_are_an_error_that_names_one_of_them(tmp_path: Path) -> None:
    dataset = spec(lines(tmp_path), limit=3)
    reader = TaskReader(dataset)
    reader.batch(records(dataset), 0, 50)
    said = r"4 records cannot be read, 3 are allowed; one of them is row 59"
    with pytest.raises(InvalidArgument, match=said) as caught:
        reader.batch(records(dataset), 50, ROWS)
    assert caught.value.violations[0].path == "data.bad_records.limit"
    nothing = spec(lines(tmp_path, bad=dict.fromkeys(range(ROWS), "?")), limit=3)
    with pytest.raises(InvalidArgument, match="more than 3 records cannot be read"):
        TaskReader(nothing).batch(records(nothing), 0, ROWS)


def test_without_the_policy_one_is_enough_to_fail(tmp_path: Path) -> None:
    dataset = spec(lines(tmp_path), limit=None)
    with pytest.raises(InvalidArgument):
        TaskReader(dataset).batch(records(dataset), 0, ROWS)


def test_a_slice_of_bad_records_alone_is_an_empty_batch_with_all_columns(tmp_path: Path) -> None:
    features = [
        {"name": "item"}, {"name": "tags", "kind": "bag", "column": "item"},
        {"name": "price", "kind": "dense", "column": "item"},
    ]
    dataset = spec(lines(tmp_path, bad=dict.fromkeys(range(25), "?")), limit=25, features=features)
    batch = TaskReader(dataset).batch(records(dataset), 0, 25)
    assert (batch.size, batch.dense.shape, batch.labels.shape) == (0, (0, 1), (0, 1))
    assert set(batch.ids) == {"item", "tags"}
    assert TaskReader(dataset).batch(records(dataset), 20, 30).size == 5


def test_batches_outside_the_mesh_leave_them_out_too(tmp_path: Path) -> None:
    found = [int(item) for batch in Dataset(spec(lines(tmp_path))).batches(8) for item in batch.ids["item"].values]
    assert sorted(found) == sorted(set(range(ROWS)) - set(BAD))


@given(bad=st.sets(st.integers(0, 99)), rows=st.integers(1, 100))
def test_halving_finds_exactly_what_is_bad_in_few_reads(bad: set[int], rows: int) -> None:
    reads = 0

    def decode(piece: FileSlice) -> range:
        nonlocal reads
        reads += 1
        within = range(piece.first_row, piece.first_row + piece.rows)
        if bad & set(within):
            raise wrong("x", "bad")
        return within

    def trim(piece: FileSlice, lo: int, hi: int) -> FileSlice:
        return FileSlice("f", 1, "", piece.first_row + lo, hi - lo)

    found = sift(FileSlice("f", 1, "", 0, rows), decode, trim, most=rows)
    inside = {row for row in bad if row < rows}
    assert {letter.row for letter in found.letters} == inside
    assert [row for _, part in found.parts for row in part] == [row for row in range(rows) if row not in inside]
    assert all(first == part[0] for first, part in found.parts)
    assert reads <= 1 + 2 * len(inside) * rows.bit_length()


def test_letters_that_could_not_be_written_are_written_later(tmp_path: Path) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where the folder should be")
    dataset = spec(lines(tmp_path), folder=str(blocked))
    reader, tasks = TaskReader(dataset), records(dataset)
    with pytest.raises(Unavailable, match="dead letters cannot be written"):
        reader.batch(tasks, 0, ROWS)
    blocked.unlink()
    reader.batch(tasks, 0, ROWS)
    written = [json.loads(line) for path in blocked.iterdir() for line in path.read_text().splitlines()]
    assert sorted(letter["row"] for letter in written) == sorted(BAD)


def test_the_limit_stays_passed(tmp_path: Path) -> None:
    dataset = spec(lines(tmp_path), limit=3)
    reader, tasks = TaskReader(dataset), records(dataset)
    for _ in range(2):
        with pytest.raises(InvalidArgument, match="3 are allowed"):
            reader.batch(tasks, 0, ROWS)


def test_a_condition_that_cannot_be_compared_is_no_bad_record(tmp_path: Path) -> None:
    dataset = spec(lines(tmp_path, bad={}), limit=ROWS, where=[{"column": "item", "value": "x"}])
    with pytest.raises(InvalidArgument, match="do not fit"):
        TaskReader(dataset).batch(records(spec(lines(tmp_path, bad={}))), 0, ROWS)
