"""Conditions on rows: what holds them, at which positions, and what is not even read for them."""

import operator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recmesh.data import TaskReader, TaskRecord, index_dataset
from recmesh.data.conditions import holding, may_hold
from recmesh.datasets import Dataset
from recmesh.runtime.errors import InvalidArgument
from recmesh.spec.dataset import Condition, DatasetSpec

ROWS = 100


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Ten row groups of ten; `item` grows, `country` changes from row to row, every seventh is missing."""
    table = pa.table({
        "item": list(range(ROWS)), "label": [0.0] * ROWS,
        "country": [None if row % 7 == 0 else ("DE", "FR", "IT")[row % 3] for row in range(ROWS)],
    })
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=10)
    return str(tmp_path / "a.parquet")


def spec(path: str, *where: dict[str, Any], **more: Any) -> DatasetSpec:
    fields = {"source": {"files": [path]}, "features": [{"name": "item"}], "where": list(where), "task_rows": 20}
    return DatasetSpec.parse(fields | more)


def items(dataset: DatasetSpec) -> list[int]:
    return [int(item) for batch in Dataset(dataset).batches(8) for item in batch.ids["item"].values]


GERMAN = [row for row in range(ROWS) if row % 7 and row % 3 == 0]


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(
    ("where", "wanted"),
    [
        ([{"column": "country", "value": "DE"}], GERMAN),
        ([{"column": "country", "op": "!=", "value": "DE"}], [r for r in range(ROWS) if r % 7 and r % 3]),
        ([{"column": "country", "op": "in", "values": ["DE", "IT"]}], [r for r in range(ROWS) if r % 7 and r % 3 != 1]),
        ([{"column": "item", "op": ">=", "value": 42}, {"column": "item", "op": "<", "value": 57.5}], [*range(42, 58)]),
        ([{"column": "country", "value": "DE"}, {"column": "item", "op": ">", "value": 90}], [93, 96, 99]),
        ([{"column": "country", "value": "DF"}], []),
    ],
)
def test_rows_are_those_for_which_all_conditions_hold(
    path: str, where: list[dict[str, Any]], wanted: list[int], shuffle: bool
) -> None:
    assert sorted(items(spec(path, *where, shuffle=shuffle))) == wanted


def test_positions_stay_and_batches_get_smaller(path: str) -> None:
    dataset = spec(path, {"column": "country", "value": "DE"})
    tasks, base = [], 0
    for piece in index_dataset(dataset).slices:
        tasks.append(TaskRecord(0, 0, base, piece.rows, 0, 5, piece))
        base += piece.rows
    whole = spec(path)
    reader, everything = TaskReader(dataset), TaskReader(whole)
    for lo in range(0, ROWS, 15):
        hi = min(ROWS, lo + 15)
        before = everything.batch(tasks, lo, hi).ids["item"].values.tolist()
        assert reader.batch(tasks, lo, hi).ids["item"].values.tolist() == [row for row in before if row in GERMAN]
    assert reader.bad_records == 0


def test_row_groups_that_can_hold_none_get_no_positions(path: str) -> None:
    index = index_dataset(spec(path, {"column": "item", "op": "in", "values": [15, 47, 48]}))
    assert [(piece.first_row, piece.rows) for piece in index.slices] == [(10, 10), (40, 10)]
    assert items(spec(path, {"column": "item", "op": "in", "values": [15, 47, 48]}, shuffle=False)) == [15, 47, 48]
    with pytest.raises(InvalidArgument, match="no rows for which `where` can hold"):
        index_dataset(spec(path, {"column": "item", "value": ROWS}))


def test_bad_records_and_conditions_go_together(tmp_path: Path) -> None:
    lines = [f'{{"item": {row}, "label": 0}}' if row % 10 else "?" for row in range(40)]
    (tmp_path / "a.jsonl").write_text("\n".join([*lines, ""]))
    source = {"format": "jsonl", "files": [str(tmp_path / "a.jsonl")], "types": {"item": "int", "label": "float"}}
    dataset = DatasetSpec.parse({
        "source": source, "features": [{"name": "item"}], "bad_records": {"limit": 4},
        "where": [{"column": "item", "op": "<", "value": 25}],
    })
    assert sorted(items(dataset)) == [row for row in range(25) if row % 10]


@given(
    st.lists(st.one_of(st.none(), st.integers(-5, 5)), min_size=1, max_size=20),
    st.sampled_from(["=", "!=", "<", "<=", ">", ">="]), st.integers(-6, 6),
)
def test_what_a_group_holds_its_statistics_do_not_deny(values: list[int | None], op: str, value: int) -> None:
    condition = Condition.parse({"column": "x", "op": op, "value": value})
    kept = holding(pa.table({"x": pa.array(values, pa.int64())}), [condition], where="here").to_pylist()
    known = [each for each in values if each is not None]
    holds = {"=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt}
    held = holds.get(op, operator.ge)
    assert kept == [each is not None and held(each, value) for each in values]
    if known and any(kept):
        assert may_hold(condition, min(known), max(known))


def test_what_cannot_be_compared_is_told(path: str) -> None:
    with pytest.raises(InvalidArgument, match="do not fit") as caught:
        items(spec(path, {"column": "item", "value": "x"}))
    assert [violation.path for violation in caught.value.violations] == ["data.where.0.column"]
    with pytest.raises(InvalidArgument) as caught:
        index_dataset(spec(path, {"column": "nosuch", "value": 1}))
    assert caught.value.violations[0].path == "data.where.0.column"
    for wrong in ({"op": "="}, {"op": "in", "value": 1}, {"op": "<", "value": 1, "values": [1]}):
        with pytest.raises(InvalidArgument):
            Condition.parse({"column": "x"} | wrong)


def test_numbers_that_a_column_rounds_are_compared_as_they_are(tmp_path: Path) -> None:
    x = pa.array([0.1, 0.5, None, float("nan")], pa.float32())
    table = pa.table({"item": list(range(4)), "x": x, "label": [0.0] * 4})
    pq.write_table(table, tmp_path / "a.parquet")
    path = str(tmp_path / "a.parquet")
    for op in ({"op": "=", "value": 0.5}, {"op": "in", "values": [0.1, 0.5]}):
        assert items(spec(path, {"column": "x"} | op)) == [1]
    assert sorted(items(spec(path, {"column": "x", "op": "!=", "value": 0.5}))) == [0, 3]
    assert items(spec(path, {"column": "item", "op": "in", "values": [1, 1.5, 10**12]})) == [1]
