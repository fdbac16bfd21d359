import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from recmesh.data import Batch, TaskReader, concat, index_tasks, whole_dataset
from recmesh.data.cache import ByteCache
from recmesh.data.fileformats import parquet
from recmesh.data.records import FileSlice
from recmesh.formats import MISSING_ID, hash_strings, permutation
from recmesh.runtime.errors import DataLoss, InvalidArgument, MeshError
from recmesh.spec.dataset import SourceSpec
from tests.support.datasets import clicks, spec, tasks_of, write

ROWS = 2_500
NAMES = [
    "a.parquet", "a.csv", "a.tsv", "a.csv.gz", "a.tsv.gz", "a.csv.zst", "a.csv.sz", "a.arrow", "a.jsonl", "a.jsonl.gz",
    "a.jsonl.zst", "a.tfrecord", "a.tfrecord.gz", "a.protobuf", "a.protobuf.sz",
]


def format_of(name: str) -> str:
    return name.split(".")[1]


def everything(dataset: Any, *, order_seed: int = 0, batch: int = 300) -> Batch:
    tasks = tasks_of(dataset, order_seed=order_seed)
    end = tasks[-1].base + tasks[-1].rows
    reader = TaskReader(dataset)
    parts = [reader.batch(tasks, lo, min(end, lo + batch)) for lo in range(0, end, batch)]
    assert all(part.size == min(batch, end - lo) for part, lo in zip(parts, range(0, end, batch), strict=True))
    return concat(parts)


def rows_of(batch: Batch) -> list[int]:
    return [int(row) for row in batch.dense[:, 1]]


@pytest.mark.parametrize("name", NAMES)
def test_every_format_gives_the_same_values(name: str, tmp_path: Path) -> None:
    table = clicks(ROWS)
    dataset = spec(write(table, tmp_path / name), format=format_of(name), task_rows=700)
    batch = everything(dataset)
    assert rows_of(batch) == list(range(ROWS))
    users = [MISSING_ID if user is None else user for user in table["user"].to_pylist()]
    assert batch.ids["user"].values.tolist() == users
    assert batch.ids["city"].values.tolist() == hash_strings(table["city"].combine_chunks()).tolist()
    prices = np.array([0.0 if price is None else price for price in table["price"].to_pylist()], np.float32)
    np.testing.assert_array_equal(batch.dense[:, 0], prices)
    assert batch.labels[:, 0].tolist() == table["label"].to_pylist()


@pytest.mark.parametrize("name", NAMES)
def test_a_seed_permutes_rows_within_each_task_and_loses_none(name: str, tmp_path: Path) -> None:
    dataset = spec(write(clicks(ROWS), tmp_path / name), format=format_of(name), task_rows=700)
    got = rows_of(everything(dataset, order_seed=77))
    want: list[int] = []
    for task in tasks_of(dataset):
        want += [task.base + int(i) for i in permutation(77, task.rows)]
    assert got == want
    assert sorted(got) == list(range(ROWS))


@pytest.mark.parametrize("name", NAMES)
def test_the_content_of_a_position_does_not_depend_on_the_batch(name: str, tmp_path: Path) -> None:
    dataset = spec(write(clicks(ROWS), tmp_path / name), format=format_of(name), task_rows=600)
    assert rows_of(everything(dataset, order_seed=5, batch=41)) == rows_of(
        everything(dataset, order_seed=5, batch=1999)
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("cut", [0.0004, 0.25, 0.5, 0.8, 0.99])
def test_parts_of_the_rows_are_disjoint_and_complete(name: str, cut: float, tmp_path: Path) -> None:
    path = write(clicks(ROWS), tmp_path / name)
    first = spec(path, format=format_of(name), task_rows=700, rows=[0, cut])
    rest = spec(path, format=format_of(name), task_rows=700, rows=[cut, 1])
    assert rows_of(everything(first)) == list(range(round(cut * ROWS)))
    assert rows_of(everything(first)) + rows_of(everything(rest)) == list(range(ROWS))


def test_rows_of_the_whole_dataset_come_in_file_order_in_even_batches(tmp_path: Path) -> None:
    write(clicks(ROWS), tmp_path / "b.csv")
    write(clicks(400), tmp_path / "a.csv")
    dataset = spec(tmp_path / "*.csv", format="csv", task_rows=333)
    batches = list(whole_dataset(dataset, batch_size=1000))
    assert [batch.size for batch in batches] == [1000, 1000, 900]
    assert [row for batch in batches for row in rows_of(batch)] == [*range(400), *range(ROWS)]
    assert sum(batch.size for batch in whole_dataset(dataset, batch_size=1000, max_rows=1500)) == 1500
    assert sum(batch.size for batch in whole_dataset(dataset, rows=(0.5, 1.0))) == 1450


@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_changed_since_it_was_indexed_is_refused_by_name(name: str, tmp_path: Path) -> None:
    path = write(clicks(ROWS), tmp_path / name)
    dataset = spec(path, format=format_of(name), task_rows=700)
    tasks = tasks_of(dataset)
    stat = path.stat()
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 2_000_000))
    with pytest.raises(DataLoss, match=f"{path}.* changed"):
        TaskReader(dataset).batch(tasks, 0, 10)
    path.unlink()
    with pytest.raises(DataLoss, match="is gone"):
        TaskReader(dataset).batch(tasks, 0, 10)


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_a_file_that_goes_away_is_noticed_although_its_rows_are_at_hand(name: str, tmp_path: Path) -> None:
    path = write(clicks(ROWS), tmp_path / name, row_group=5000)
    dataset = spec(path, format=format_of(name), task_rows=700)
    tasks, reader = tasks_of(dataset), TaskReader(dataset)
    reader.batch(tasks, 0, 10)
    path.unlink()
    assert reader.batch(tasks, 10, 20).size == 10, "of a task that is decoded"
    with pytest.raises(DataLoss, match="is gone"):
        reader.batch(tasks, 800, 810)


def test_positions_that_no_task_covers_are_refused(tmp_path: Path) -> None:
    dataset = spec(write(clicks(ROWS), tmp_path / "a.parquet"), task_rows=700)
    tasks = tasks_of(dataset)
    with pytest.raises(InvalidArgument, match="position 500"):
        TaskReader(dataset).batch([tasks[0], tasks[2]], 400, 1500)


def test_a_cache_smaller_than_a_task_changes_nothing_but_time(tmp_path: Path) -> None:
    dataset = spec(write(clicks(ROWS), tmp_path / "a.parquet"), task_rows=700)
    tasks = tasks_of(dataset, order_seed=3)
    small, large = TaskReader(dataset, cache_bytes=10), TaskReader(dataset)
    for lo, hi in ((0, 100), (650, 720), (100, 200), (2400, 2500)):
        assert rows_of(small.batch(tasks, lo, hi)) == rows_of(large.batch(tasks, lo, hi))


def decodings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The row group of each decoding from now on."""
    seen: list[int] = []
    read = parquet.read_group

    def counted(piece: FileSlice, group: int, columns: list[str], spec: SourceSpec) -> Any:
        seen.append(group)
        return read(piece, group, columns, spec)

    monkeypatch.setattr(parquet, "read_group", counted)
    return seen


@pytest.mark.parametrize(("row_group", "decoded"), [(700, [0, 1, 2, 3]), (1400, [0, 1]), (5000, [0])])
def test_a_row_group_is_decoded_once_for_positions_in_order(
    row_group: int, decoded: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = spec(write(clicks(ROWS), tmp_path / "a.parquet", row_group=row_group), task_rows=700)
    tasks, seen = tasks_of(dataset, order_seed=3), decodings(monkeypatch)
    reader = TaskReader(dataset, cache_bytes=10)          # what is newest is kept all the same
    for lo in range(0, ROWS, 50):
        reader.batch(tasks, lo, lo + 50)
    assert seen == decoded


def test_a_cache_gives_up_the_oldest_first_and_never_the_newest() -> None:
    made: list[str] = []

    def get(key: str, size_bytes: int) -> str:
        def make() -> str:
            made.append(key)
            return key

        return cache.get(key, make, size_of=lambda _: size_bytes)

    cache: ByteCache[str, str] = ByteCache(100)
    get("a", 60)
    get("b", 30)
    get("a", 60)
    get("c", 30)                                          # b was used longest ago
    assert get("a", 60) == "a" and made == ["a", "b", "c"] and cache.size_bytes == 90
    get("large", 500)
    get("large", 500)
    assert made == ["a", "b", "c", "large"] and cache.size_bytes == 500
    get("a", 60)
    assert made[-1] == "a" and cache.size_bytes == 60


@pytest.mark.parametrize("row_group", [50, 700, 999, 5000])
def test_slices_hold_at_most_task_rows_however_row_groups_lie(row_group: int, tmp_path: Path) -> None:
    dataset = spec(write(clicks(ROWS), tmp_path / "a.parquet", row_group=row_group), task_rows=700)
    slices = index_tasks(dataset)
    assert max(piece.rows for piece in slices) <= 700
    ends = [piece.first_row + piece.rows for piece in slices]
    assert [piece.first_row for piece in slices] == [0, *ends[:-1]]
    assert ends[-1] == ROWS
    assert rows_of(everything(dataset)) == list(range(ROWS))


def wrong(dataset: Any) -> MeshError:
    with pytest.raises(MeshError) as caught:
        for _ in whole_dataset(dataset):
            pass
    return caught.value


def test_a_missing_file_is_named_with_its_field(tmp_path: Path) -> None:
    for pattern in (tmp_path / "none.parquet", tmp_path / "*.parquet"):
        error = wrong(spec(pattern))
        assert error.grpc_code == "NOT_FOUND"
        assert error.violations[0].path == "data.source.files"
        assert str(pattern) in error.violations[0].reason


@pytest.mark.parametrize("content", [b"", b"no parquet at all", b"PAR1 and PAR1"])
def test_an_unreadable_parquet_file_is_named_with_its_field(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(content)
    error = wrong(spec(tmp_path / "a.parquet"))
    assert isinstance(error, InvalidArgument)
    assert error.violations[0].path == "data.source.files"
    assert "a.parquet" in error.violations[0].reason


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
def test_a_text_file_that_is_not_as_specified_is_named_with_its_field(name: str, tmp_path: Path) -> None:
    path = write(clicks(50), tmp_path / name)
    if name.endswith(".gz"):
        path.write_bytes(path.read_bytes()[:-40])
    else:
        path.write_text(path.read_text() + "1,2\n")
    error = wrong(spec(path, format="csv"))
    assert isinstance(error, InvalidArgument)
    assert error.violations[0].path == "data.source.files"
    assert name in error.violations[0].reason


def test_all_wrong_columns_are_named_at_once(tmp_path: Path) -> None:
    write(clicks(50), tmp_path / "a.parquet")
    features = [
        {"name": "user", "column": "usr"}, {"name": "nosuch", "kind": "dense"}, {"name": "price"},
        {"name": "city", "kind": "dense"},
    ]
    error = wrong(spec(tmp_path / "a.parquet", features=features, label="labl"))
    assert isinstance(error, InvalidArgument)
    assert [violation.path for violation in error.violations] == [
        "data.label", "data.features.user.column", "data.features.nosuch", "data.features.price",
        "data.features.city",
    ]
    assert "there are city, label, price, row, user" in error.violations[0].reason


def test_a_row_without_a_label_is_an_error_and_not_a_zero(tmp_path: Path) -> None:
    table = clicks(50).set_column(1, "label", pa.array([None] + [1] * 49, pa.int64()))
    write(table, tmp_path / "a.parquet")
    assert wrong(spec(tmp_path / "a.parquet")).violations[0].path == "data.label"


def test_files_that_disagree_on_the_type_of_ids_are_refused(tmp_path: Path) -> None:
    write(clicks(50), tmp_path / "a.csv")
    table = clicks(50).set_column(2, "user", pa.array([f"u{i}" for i in range(50)]))
    write(table, tmp_path / "b.csv")
    error = wrong(spec(tmp_path / "*.csv", format="csv"))
    assert error.violations[0].path == "data.source.types"
    declared = spec(tmp_path / "*.csv", format="csv", types={"user": "string"})
    assert sum(batch.size for batch in whole_dataset(declared)) == 100


def test_a_folder_is_not_a_file(tmp_path: Path) -> None:
    assert "is a folder" in str(wrong(spec(tmp_path)))
