"""The feature transform, step by step. That it is the same everywhere: test_transform_everywhere.py."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recmesh.data import Batch, whole_dataset
from recmesh.data.steps import crossed
from recmesh.data.transform import Transform
from recmesh.formats import MISSING_ID, hash_strings, splitmix64
from recmesh.runtime.errors import InvalidArgument
from recmesh.spec.dataset import DatasetSpec


def read(columns: dict[str, Any], features: list[dict[str, Any]], folder: Path) -> Batch:
    """The one batch of a small Parquet file with a label column."""
    rows = len(next(iter(columns.values())))
    path = folder / "data.parquet"
    pq.write_table(pa.table({"label": [0.0] * rows} | columns), path)
    return next(whole_dataset(DatasetSpec.parse({"source": {"files": [str(path)]}, "features": features})))


def ids(columns: dict[str, Any], feature: dict[str, Any], folder: Path) -> list[int]:
    found: list[int] = read(columns, [{"name": "f", **feature}], folder).ids["f"].values.tolist()
    return found


def refusal(feature: dict[str, Any], columns: dict[str, Any], folder: Path) -> tuple[str, str]:
    with pytest.raises(InvalidArgument) as refused:
        read(columns, [{"name": "f", **feature}], folder)
    [violation, *_] = refused.value.violations
    return violation.path, violation.reason


# ---- steps


def test_numbers_are_clipped_before_they_are_transformed(tmp_path: Path) -> None:
    price = pa.array([-5.0, 0.5, None, 1e9])
    batch = read({"price": price}, [
        {"name": "plain", "kind": "dense", "column": "price", "clip": [0, 100]},
        {"name": "logged", "kind": "dense", "column": "price", "clip": [None, 100], "transform": "log1p", "fill": 7.0},
    ], tmp_path)
    assert batch.dense[:, 0].tolist() == [0.0, 0.5, 0.0, 100.0]
    np.testing.assert_allclose(batch.dense[:, 1], [-np.log1p(5), np.log1p(0.5), np.log1p(7), np.log1p(100)], rtol=1e-6)


def test_a_number_is_the_count_of_boundaries_that_it_reaches(tmp_path: Path) -> None:
    age = pa.array([17, 18, 64, 65, None], pa.int64())
    assert ids({"age": age}, {"column": "age", "boundaries": [18, 65]}, tmp_path) == [0, 1, 1, 2, MISSING_ID]
    lists = pa.array([[1.0, 70.0], None, [18.0]])
    batch = read({"ages": lists}, [{"name": "f", "kind": "bag", "column": "ages", "boundaries": [18, 65]}], tmp_path)
    assert batch.ids["f"].values.tolist() == [0, 2, 1]


@pytest.mark.parametrize("values", [["a", "z", None, "b"], [1, 9, None, 2]])
def test_a_value_of_the_vocabulary_is_its_place_and_any_other_is_zero(values: list[Any], tmp_path: Path) -> None:
    vocabulary = ["a", "b"] if isinstance(values[0], str) else [1, 2]
    assert ids({"x": pa.array(values)}, {"column": "x", "vocabulary": vocabulary}, tmp_path) == [1, 0, MISSING_ID, 2]


def test_ids_fall_into_buckets_negative_ones_too(tmp_path: Path) -> None:
    assert ids({"x": pa.array([7, -1, 23])}, {"column": "x", "buckets": 10}, tmp_path) == [7, 9, 3]
    [hashed] = ids({"x": ["JFK"]}, {"column": "x", "buckets": 1000}, tmp_path)
    assert hashed == int(hash_strings(["JFK"])[0]) % 1000


def test_a_cross_has_one_id_for_each_combination_in_order(tmp_path: Path) -> None:
    columns = {"a": ["x", "x", "y", None], "b": pa.array([1, 2, 1, 1])}
    found = ids(columns, {"columns": ["a", "b"]}, tmp_path)
    assert len(set(found)) == 4
    assert found != ids(columns, {"columns": ["b", "a"]}, tmp_path)
    assert found == ids({name: value[::1] for name, value in columns.items()}, {"columns": ["a", "b"]}, tmp_path)
    assert max(ids(columns, {"columns": ["a", "b"], "buckets": 3}, tmp_path)) < 3
    one, two = np.array([5], np.int64), np.array([7], np.int64)
    # The formula is one that other programs follow (docs/reference/data.md).
    step = (int(splitmix64(np.array([5], np.uint64))[0]) + 7) % 2**64
    assert crossed([one, two]).view(np.uint64)[0] == splitmix64(np.array([step], np.uint64))[0]


@pytest.fixture
def functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of the user's."""
    (tmp_path / "my_features.py").write_text(
        "import pyarrow.compute as pc\n"
        "def ratio(part, whole):\n    return pc.divide(pc.cast(part, 'float64'), whole)\n"
        "def words(text):\n    return pc.split_pattern(text, ' ')\n"
        "def short(x):\n    return x[:1]\n"
        "def broken(x):\n    raise ValueError('no')\n"
        "def text(x):\n    return pc.cast(x, 'string')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_features", raising=False)
    return "my_features"


def test_a_users_function_makes_a_number_or_a_list_of_ids(functions: str, tmp_path: Path) -> None:
    columns = {"part": pa.array([1, 2]), "whole": pa.array([4.0, 4.0]), "title": ["a b", "c"]}
    batch = read(columns, [
        {"name": "ratio", "kind": "dense", "columns": ["part", "whole"], "function": f"{functions}:ratio"},
        {"name": "words", "kind": "bag", "column": "title", "function": f"{functions}:words"},
    ], tmp_path)
    assert batch.dense[:, 0].tolist() == [0.25, 0.5]
    assert batch.ids["words"].values.tolist() == hash_strings(["a", "b", "c"]).tolist()


@pytest.mark.parametrize(("name", "words"), [
    ("short", "gave 1 values for 2 rows"), ("broken", "ValueError: no"), ("none", "AttributeError"),
    ("text", "numbers are needed"),
])
def test_a_function_that_fails_is_named_with_the_reason(name: str, words: str, functions: str, tmp_path: Path) -> None:
    path, reason = refusal({"kind": "dense", "column": "x", "function": f"{functions}:{name}"}, {"x": [1, 2]}, tmp_path)
    assert path == "data.features.f.function" and words in reason


@pytest.mark.parametrize(("feature", "path"), [
    ({"boundaries": [2, 1]}, "boundaries"), ({"vocabulary": ["a", "a"]}, "vocabulary"),
    ({"vocabulary": [1, "1"]}, "vocabulary"), ({"kind": "dense", "buckets": 3}, "buckets"),
    ({"clip": [0, 1]}, "clip"), ({"kind": "dense", "clip": [2, 1]}, "clip"),
    ({"kind": "bag", "columns": ["a", "b"]}, "columns"), ({"column": "a", "columns": ["a", "b"]}, "columns"),
    ({"boundaries": [1], "vocabulary": [1]}, "vocabulary"), ({"columns": ["a", "b"], "boundaries": [1]}, "columns"),
])
def test_steps_that_do_not_fit_together_are_refused(feature: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        DatasetSpec.parse({"source": {"files": ["x"]}, "features": [{"name": "f", **feature}]})
    assert [violation.path.split(".")[-1] for violation in refused.value.violations] == [path]


def test_boundaries_want_numbers(tmp_path: Path) -> None:
    path, reason = refusal({"column": "x", "boundaries": [1]}, {"x": ["a"]}, tmp_path)
    assert path == "data.features.f.column" and "boundaries are for numbers" in reason


def test_a_transform_of_another_version_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="knows 1"):
        Transform.parse({"version": 2, "features": []})
