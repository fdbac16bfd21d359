"""Delta and Iceberg tables: what a snapshot holds, whole or by partition, and windows of them."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recmesh.data import index_dataset
from recmesh.datasets import Dataset
from recmesh.runtime.errors import InvalidArgument, NotFound
from recmesh.spec.dataset import DatasetSpec

DAYS = ["2024-01-01", "2024-01-02", "2024-01-03"]
FEATURES = [{"name": "item"}, {"name": "hour"}]


def rows(part: int) -> pa.Table:
    """Two rows of each day; an item says part, day and row."""
    items = [100 * part + 10 * day + row for day in range(3) for row in range(2)]
    days = [day for day in DAYS for _ in range(2)]
    return pa.table({"item": items, "hour": [item % 10 for item in items], "label": [0.0] * 6, "day": days})


@pytest.fixture
def delta(tmp_path: Path) -> str:
    deltalake = pytest.importorskip("deltalake")
    path = str(tmp_path / "delta")
    for part in range(2):
        deltalake.write_deltalake(path, rows(part), partition_by=["day"], mode="append")
    return path


@pytest.fixture
def iceberg(tmp_path: Path) -> str:
    memory = pytest.importorskip("pyiceberg.catalog.memory")
    catalog = memory.InMemoryCatalog("lake", warehouse=f"file://{tmp_path}/lake")
    catalog.create_namespace("ads")
    table = catalog.create_table("ads.clicks", schema=rows(0).schema)
    with table.update_spec() as update:
        update.add_identity("day")
    for part in range(2):
        table.append(rows(part))
    return f"{tmp_path}/lake/ads/clicks"


@pytest.fixture(params=["delta", "iceberg"])
def table(request: pytest.FixtureRequest) -> tuple[str, str]:
    return request.param, request.getfixturevalue(request.param)


def spec(table: tuple[str, str], **more: Any) -> DatasetSpec:
    source = {"format": table[0], "files": [table[1]]} | more
    return DatasetSpec.parse({"source": source, "features": FEATURES, "shuffle": False})


def items(dataset: DatasetSpec) -> list[int]:
    return [int(item) for batch in Dataset(dataset).batches(5) for item in batch.ids["item"].values]


EVERYTHING = sorted(100 * part + 10 * day + row for part in range(2) for day in range(3) for row in range(2))


def test_a_table_is_the_files_of_its_newest_snapshot(table: tuple[str, str]) -> None:
    assert sorted(items(spec(table))) == EVERYTHING
    assert len(index_dataset(spec(table)).files) == 6


def test_a_partition_is_its_files_alone(table: tuple[str, str]) -> None:
    assert sorted(items(spec(table, partition={"day": "2024-01-02"}))) == [10, 11, 110, 111]
    with pytest.raises(InvalidArgument, match="no files of this partition"):
        index_dataset(spec(table, partition={"day": "2024-02-01"}))
    with pytest.raises(InvalidArgument, match="not partitioned by hour itself; its partition columns: day") as caught:
        index_dataset(spec(table, partition={"hour": "1"}))
    assert caught.value.violations[0].path == "data.source.partition"


def test_an_older_version_is_what_the_table_was(delta: str, iceberg: str) -> None:
    from pyiceberg.table import StaticTable

    from recmesh.data.tables import _newest_metadata

    assert sorted(items(spec(("delta", delta), version=0))) == EVERYTHING[:6]
    first = StaticTable.from_metadata(_newest_metadata(iceberg)).history()[0].snapshot_id
    assert sorted(items(spec(("iceberg", iceberg), version=first))) == EVERYTHING[:6]


def test_tables_that_are_not_there_are_told_by_name(table: tuple[str, str], tmp_path: Path) -> None:
    for dataset in (spec((table[0], str(tmp_path / "nowhere"))), spec(table, version=123)):
        with pytest.raises(NotFound, match="there is no table") as caught:
            index_dataset(dataset)
        assert caught.value.violations[0].path == "data.source.files"


def test_windows_are_partitions_of_a_table(table: tuple[str, str]) -> None:
    source = {
        "format": table[0], "files": [table[1]], "partition": {"day": "{YYYY}-{MM}-{DD}"}, "start": "2024-01-01",
        "end": "2024-01-04",
    }
    dataset = DatasetSpec.parse({"streams": [{"window": "1d", "sources": [source]}], "features": FEATURES})
    found = items(dataset)
    assert sorted(found) == EVERYTHING and [item // 10 % 10 for item in found] == [0] * 4 + [1] * 4 + [2] * 4
    with pytest.raises(InvalidArgument, match="wrong field") as caught:
        DatasetSpec.parse({"streams": [{"sources": [source | {"partition": {"day": "2024"}}]}], "features": FEATURES})
    assert "streams.0.sources.0.partition" in {violation.path for violation in caught.value.violations}


def test_columns_that_stand_in_the_path_are_read_as_declared(tmp_path: Path) -> None:
    for day in (1, 2):
        folder = tmp_path / f"day={day}" / "city=S%C3%A3o Paulo"
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"item": [day], "label": [0.0]}), folder / "a.parquet")
    source = {"files": [f"{tmp_path}/**/*.parquet"], "types": {"day": "int"}}
    features = [{"name": "item"}, {"name": "day"}, {"name": "city", "vocabulary": ["São Paulo"]}]
    dataset = DatasetSpec.parse({"source": source, "features": features, "shuffle": False})
    batch = next(Dataset(dataset).batches(8))
    assert batch.ids["day"].values.tolist() == [1, 2] and batch.ids["city"].values.tolist() == [1, 1]
    assert index_dataset(dataset).columns["day"] == "int"
    wrong = DatasetSpec.parse({"source": source | {"types": {"city": "int"}}, "features": features})
    with pytest.raises(InvalidArgument, match=r"city is .* and declared as int64"):
        index_dataset(wrong)


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"files": ["a", "b"]}, "source.files"), ({"compression": "gzip"}, "source.compression"),
        ({"format": "parquet", "version": 3}, "source.version"),
        ({"format": "csv", "partition": {"day": "1"}}, "source.partition"),
    ],
)
def test_fields_of_tables_are_checked(changes: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        DatasetSpec.parse({"source": {"format": "delta", "files": ["t"]} | changes, "features": FEATURES})
    assert [violation.path for violation in caught.value.violations] == [path]
