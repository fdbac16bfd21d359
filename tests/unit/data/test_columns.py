from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recmesh.data import Batch, TaskReader, concat, whole_dataset
from recmesh.data.columns import ids_of
from recmesh.formats import MISSING_ID, hash_strings
from recmesh.runtime.errors import InvalidArgument
from recmesh.spec.dataset import DatasetSpec
from tests.support.datasets import tasks_of


def read(columns: dict[str, Any], features: list[dict[str, Any]], tmp_path: Path, **more: Any) -> Batch:
    """The one batch of a small Parquet file with a label column."""
    rows = len(next(iter(columns.values())))
    path = tmp_path / "data.parquet"
    pq.write_table(pa.table({"label": [0.0] * rows} | columns), path)
    dataset = DatasetSpec.parse({"source": {"files": [str(path)]}, "features": features} | more)
    return next(whole_dataset(dataset))


def read_text(text: str, features: list[dict[str, Any]], tmp_path: Path, **source: Any) -> Batch:
    path = tmp_path / "data.csv"
    path.write_text(text)
    files = {"format": "csv", "files": [str(path)]} | source
    return concat(list(whole_dataset(DatasetSpec.parse({"source": files, "features": features}))))


def hashed(*texts: str) -> list[int]:
    return [int(value) for value in hash_strings(list(texts))]


@pytest.mark.parametrize("type_", [pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())])
def test_strings_of_every_arrow_type_have_the_same_ids(type_: Any, tmp_path: Path) -> None:
    column = pa.array(["b", "a", None, "b", ""]).cast(type_)
    batch = read({"x": column}, [{"name": "x"}], tmp_path)
    assert batch.ids["x"].values.tolist() == hashed("b", "a", "", "b", "")
    assert batch.ids["x"].offsets is None


@pytest.mark.parametrize("type_", [pa.int8(), pa.int32(), pa.int64(), pa.uint32()])
def test_integers_are_ids_as_they_are_and_missing_is_an_id_of_its_own(type_: Any, tmp_path: Path) -> None:
    batch = read({"x": pa.array([5, None, 7], type_)}, [{"name": "x"}], tmp_path)
    assert batch.ids["x"].values.tolist() == [5, MISSING_ID, 7]
    assert hashed("") == [MISSING_ID]


def test_unsigned_integers_above_the_signed_range_keep_their_bits() -> None:
    values = ids_of(pa.array([2**64 - 1, None, 3], pa.uint64()))
    assert values.tolist() == [-1, MISSING_ID, 3]


def test_bags_come_from_lists_with_their_weights(tmp_path: Path) -> None:
    columns = {
        "tags": pa.array([["a", "b"], [], None, ["c"], ["a", None]]),
        "w": pa.array([[0.5, 1.5], [], None, [2.0], [1.0, 3.0]]),
    }
    bag = read(columns, [{"name": "tags", "kind": "bag", "weights": "w"}], tmp_path).ids["tags"]
    assert bag.offsets is not None and bag.weights is not None
    assert bag.offsets.tolist() == [0, 2, 2, 2, 3, 5]
    assert bag.values.tolist() == hashed("a", "b", "c", "a", "")
    assert bag.weights.tolist() == [0.5, 1.5, 2.0, 1.0, 3.0]


def test_weights_that_do_not_fit_their_ids_are_refused(tmp_path: Path) -> None:
    columns = {"tags": pa.array([["a"], ["b", "c"]]), "w": pa.array([[1.0], [1.0]])}
    with pytest.raises(InvalidArgument) as caught:
        read(columns, [{"name": "tags", "kind": "bag", "weights": "w"}], tmp_path)
    assert caught.value.violations[0].path == "data.features.tags.weights"
    assert "row 1" in caught.value.violations[0].reason


def test_a_sequence_keeps_its_newest_ids(tmp_path: Path) -> None:
    columns = {"seen": pa.array([[1, 2, 3, 4], [5], None, [6, 7, 8]])}
    column = read(columns, [{"name": "seen", "kind": "sequence", "max_length": 2}], tmp_path).ids["seen"]
    assert column.offsets is not None
    assert column.offsets.tolist() == [0, 2, 3, 3, 5]
    assert column.values.tolist() == [3, 4, 5, 7, 8]


def test_text_is_split_at_its_separator_also_where_every_row_holds_one_number(tmp_path: Path) -> None:
    features = [{"name": "tags", "kind": "bag", "separator": "|"}, {"name": "one", "kind": "bag", "separator": "|"}]
    batch = read_text("label,tags,one\n1,a|b,7\n0,,8\n1,c||d,9\n", features, tmp_path)
    tags, one = batch.ids["tags"], batch.ids["one"]
    assert tags.offsets is not None
    assert tags.offsets.tolist() == [0, 2, 2, 5]
    assert tags.values.tolist() == hashed("a", "b", "c", "", "d")
    assert one.values.tolist() == hashed("7", "8", "9")
    numbers = read_text("label,one\n1,7|70\n0,8\n", features[1:], tmp_path, types={"one": "int"}).ids["one"]
    assert numbers.values.tolist() == [7, 70, 8]


def test_a_bag_with_text_weights_is_split_alike(tmp_path: Path) -> None:
    features = [{"name": "t", "kind": "bag", "separator": ";", "weights": "w"}]
    bag = read_text("label,t,w\n1,a;b,0.5;2\n0,c,3\n", features, tmp_path).ids["t"]
    assert bag.weights is not None
    assert bag.weights.tolist() == [0.5, 2.0, 3.0]


def test_a_bag_of_a_plain_column_holds_one_id_or_none(tmp_path: Path) -> None:
    bag = read({"x": pa.array([4, None, 6])}, [{"name": "x", "kind": "bag"}], tmp_path).ids["x"]
    assert bag.offsets is not None
    assert bag.offsets.tolist() == [0, 1, 1, 2]
    assert bag.values.tolist() == [4, 6]


def test_dense_values_are_filled_and_then_transformed_in_the_order_of_the_features(tmp_path: Path) -> None:
    columns = {"a": pa.array([0.0, None, -3.0, float("nan")]), "b": pa.array([1, 3, 100, None], pa.int32())}
    features: list[dict[str, Any]] = [
        {"name": "b", "kind": "dense", "transform": "criteo_log"},
        {"name": "a", "kind": "dense", "transform": "log1p", "fill": 1.0},
        {"name": "plain", "column": "a", "kind": "dense", "fill": -1.0},
    ]
    dense = read(columns, features, tmp_path).dense
    assert dense.dtype == np.float32
    np.testing.assert_allclose(dense[:, 0], [1, 1, 21, 0])                     # floor(ln(100)^2) = 21
    np.testing.assert_allclose(dense[:, 1], [0, np.log(2), -np.log(4), np.log(2)], rtol=1e-6)
    np.testing.assert_allclose(dense[:, 2], [0, -1, -3, -1])


def test_labels_may_be_several_and_be_compared(tmp_path: Path) -> None:
    columns = {"click": pa.array([True, False]), "delay": pa.array([20, 3])}
    features = [{"name": "x", "column": "delay"}]
    batch = read(columns, features, tmp_path, labels=["click", "delay"])
    assert batch.labels.tolist() == [[1.0, 20.0], [0.0, 3.0]]
    assert read(columns, features, tmp_path, label="delay", label_above=15).labels.tolist() == [[1.0], [0.0]]


def test_sample_weights_come_along_and_a_missing_one_is_one(tmp_path: Path) -> None:
    columns = {"x": pa.array([1, 2]), "w": pa.array([0.25, None])}
    weight = read(columns, [{"name": "x"}], tmp_path, weight="w").weight
    assert weight is not None
    assert weight.tolist() == [0.25, 1.0]


def test_a_permuted_ragged_column_keeps_each_row_whole(tmp_path: Path) -> None:
    lists = [[row] * (row % 4) for row in range(50)]
    path = tmp_path / "data.parquet"
    pq.write_table(pa.table({"label": [0.0] * 50, "n": range(50), "x": pa.array(lists, pa.list_(pa.int64()))}), path)
    features = [{"name": "x", "kind": "bag"}, {"name": "n", "kind": "dense"}]
    dataset = DatasetSpec.parse({"source": {"files": [str(path)]}, "features": features})
    batch = TaskReader(dataset).batch(tasks_of(dataset, order_seed=9), 7, 43)
    bag = batch.ids["x"]
    assert bag.offsets is not None and bag.offsets[0] == 0
    for i in range(batch.size):
        row = int(batch.dense[i, 0])
        assert bag.values[bag.offsets[i] : bag.offsets[i + 1]].tolist() == lists[row]


def test_criteo_lines_are_read_as_published(tmp_path: Path) -> None:
    path = tmp_path / "train.txt"
    cats = [f"{i:08x}" for i in range(26)]
    first = ["1", *(str(i) for i in range(13)), *cats]
    second = ["0", "", "-2", *[""] * 11, "", *cats[1:]]
    path.write_text("\n".join("\t".join(row) for row in (first, second)) + "\n")
    features: list[dict[str, Any]] = [{"name": f"I{i}", "kind": "dense", "fill": -1} for i in range(1, 14)]
    features += [{"name": f"C{i}"} for i in range(1, 27)]
    source = {"format": "criteo", "files": [str(path)]}
    batch = next(whole_dataset(DatasetSpec.parse({"source": source, "features": features})))
    assert batch.labels[:, 0].tolist() == [1, 0]
    assert batch.dense[0].tolist() == list(range(13))
    assert batch.dense[1].tolist() == [-1, -2, *[-1] * 11]
    assert batch.ids["C1"].values.tolist() == hashed(cats[0], "")
    assert batch.ids["C26"].values.tolist() == hashed(cats[25], cats[25])


def test_dates_in_text_are_categories(tmp_path: Path) -> None:
    batch = read_text("label,day\n1,2024-01-02\n0,2024-01-03\n", [{"name": "day"}], tmp_path)
    assert batch.ids["day"].values.tolist() == hashed("2024-01-02", "2024-01-03")


def test_a_value_that_contradicts_the_inferred_type_says_how_to_mend_it(tmp_path: Path) -> None:
    rows = "".join(f"1,{i}\n" for i in range(300_000))      # more than what types are inferred from
    with pytest.raises(InvalidArgument, match="data\\.source\\.types"):
        read_text(f"label,x\n{rows}1,a17\n", [{"name": "x"}], tmp_path)
