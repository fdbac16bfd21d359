"""Raw columns: which a model takes, and what is said of those that do not fit."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recmesh.runtime.errors import FailedPrecondition, InvalidArgument
from recmesh.serving.raw.columns import raw_inputs
from recmesh.serving.raw.model import RawModel
from recmesh.serving.tensors import Tensor

FEATURES: list[dict[str, Any]] = [
    {"name": "origin", "column": "from"},
    {"name": "distance", "kind": "dense", "transform": "log1p", "fill": 2.0},
    {"name": "tags", "kind": "bag"},
]
INPUTS = [
    {"name": "origin", "dtype": "int64", "shape": [-1]}, {"name": "distance", "dtype": "float32", "shape": [-1]},
    {"name": "tags", "kind": "bag", "dtype": "int64", "shape": [-1, -1]},
]


def model(folder: Path, *, features: list[dict[str, Any]] | None = None, version: int = 1, **more: Any) -> RawModel:
    card = {
        "framework": "torch", "inputs": INPUTS, "outputs": [{"name": "p", "dtype": "float32", "shape": [-1]}],
        "transform": {"version": version, "features": features or FEATURES, "int_columns": []} | more,
    }
    (folder / "model.json").write_text(json.dumps(card))
    return RawModel(folder)


def tensors(**arrays: Any) -> list[Tensor]:
    given = {
        "from": np.array(["JFK", "SFO"], object), "distance": np.array([1.0, np.nan], np.float32),
        "tags": np.array([[1, 2], [3, 0]], np.int64),
    } | {name.replace("__", "."): array for name, array in arrays.items()}
    return [Tensor.of(name, array) for name, array in given.items() if array is not None]


def test_columns_become_inputs_in_the_order_of_the_model(tmp_path: Path) -> None:
    made = model(tmp_path).run("columns", tensors(tags__lengths=np.array([2, 1])))
    assert [item.name for item in made] == ["origin", "distance", "tags", "tags.lengths"]
    assert made[0].array[0] == -8517724228647004038       # of "JFK", as docs/reference/exported-models.md has it
    assert made[1].array.tolist() == np.log1p([1.0, 2.0]).astype(np.float32).tolist()
    assert made[3].array.tolist() == [2, 1]


@pytest.mark.parametrize(("changed", "path", "reason"), [
    ({"from": None}, "inputs.from", "is missing; origin takes INT64, BYTES"),
    ({"from": np.array([1.5, 2.5])}, "inputs.from", "is FP64, but origin takes INT64"),
    ({"from": np.array([b"\xff", b"a"], object)}, "inputs.from", "is no UTF-8"),
    ({"distance": np.array([1.0], np.float32)}, "inputs.distance", "has 1 rows, but 'from' has 2"),
    ({"distance": np.array(["far", "near"], object)}, "inputs.distance", "is BYTES, but distance takes FP64"),
    ({"city": np.array([1, 2])}, "inputs.city", "no feature reads this column; they read from, distance, tags"),
    ({"from": np.array([["a"], ["b"]], object)}, "inputs.from", "has shape [2, 1]"),
    ({"tags__lengths": np.array([3, 0])}, "inputs.tags", "has rows of 2 values, but tags.lengths says otherwise"),
    ({"tags__null": np.array([1, 0])}, "inputs.tags", "tags.null is INT64 [2], not BOOL [2]"),
])
def test_a_wrong_column_is_named_with_the_reason(
    changed: dict[str, Any], path: str, reason: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidArgument) as failed:
        model(tmp_path).run("columns", tensors(**changed))
    found = {item.path: item.reason for item in failed.value.violations}
    assert reason in found[path]


def test_a_wrong_field_of_a_row_is_named_with_the_reason(tmp_path: Path) -> None:
    rows = [{"from": "JFK", "distance": "far", "origin": "JFK"}]
    document = Tensor.of("rows", np.array([json.dumps(rows)], object))
    with pytest.raises(InvalidArgument) as failed:
        model(tmp_path).run("rows", [document])
    assert failed.value.reason == "INPUT_MISMATCH"
    assert {item.path: item.reason for item in failed.value.violations} == {
        "distance": "must be a number, not 'far'", "tags": "is in no example", "origin": "is no input of the model",
    }


def test_code_that_no_folder_was_given_for_is_not_run(tmp_path: Path) -> None:
    features = [{"name": "origin", "function": "os:listdir"}, *FEATURES[1:]]
    with pytest.raises(FailedPrecondition, match="RECMESH_GATEWAY_FUNCTIONS"):
        model(tmp_path, features=features)
    with pytest.raises(FailedPrecondition, match="module os does not lie in the folder"):
        RawModel(tmp_path, functions=tmp_path)


def test_a_transform_of_another_version_hurts_nothing_but_raw_requests(tmp_path: Path) -> None:
    with pytest.raises(FailedPrecondition, match="version 2; this recmesh knows 1"):
        model(tmp_path, version=2)
    assert "no transform" in raw_inputs(None).fault


def test_a_column_of_two_features_is_what_both_take() -> None:
    features = [{"name": "a", "column": "x"}, {"name": "b", "kind": "dense", "column": "x"}]
    (column,) = raw_inputs({"version": 1, "features": features}).columns
    assert "BYTES" not in column.datatypes
    assert "FP64" not in column.datatypes
    assert column.features == ("a", "b")


def test_a_type_that_was_declared_in_training_is_asked_of_requests(tmp_path: Path) -> None:
    typed = model(tmp_path, types={"from": "string", "tags": "list<int>", "distance": "float"})
    typed.run("columns", tensors())
    rows = [{"from": 12, "distance": 1, "tags": [1]}]
    with pytest.raises(InvalidArgument) as failed:
        typed.run("rows", [Tensor.of("rows", np.array([json.dumps(rows)], object))])
    assert [str(item) for item in failed.value.violations] == ["from: is int here, and was string in training"]
    with pytest.raises(InvalidArgument, match="is INT64, but origin takes BYTES of shape"):
        typed.run("columns", tensors(**{"from": np.array([1, 2])}))
    missing = Tensor.of("rows", np.array([json.dumps([{**rows[0], "from": None}])], object))
    assert typed.run("rows", [missing])[0].array.shape == (1,)
