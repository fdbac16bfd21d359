"""Examples into inference requests: the same conversion as in training."""

from typing import Any

import numpy as np
import pytest

from recmesh.client.rows import parse_row, predictions, request_for
from recmesh.formats import hash_strings
from recmesh.runtime.errors import InvalidArgument
from recmesh.spec.dataset import DatasetSpec

METADATA = {
    "inputs": [
        {"name": "origin", "datatype": "INT64", "shape": [-1]},
        {"name": "tags", "datatype": "INT64", "shape": [-1, -1]},
        {"name": "tags.lengths", "datatype": "INT64", "shape": [-1]},
        {"name": "distance", "datatype": "FP32", "shape": [-1]},
    ]
}
EXAMPLES = [
    {"origin": "JFK", "tags": [1, 2, 3], "distance": 10.0},
    {"origin": "SFO", "tags": [4], "distance": 20},
]


def tensors(request: dict[str, Any]) -> dict[str, Any]:
    return {item["name"]: np.reshape(item["data"], item["shape"]).tolist() for item in request["inputs"]}


def test_strings_are_hashed_and_bags_padded_with_their_lengths() -> None:
    found = tensors(request_for(METADATA, EXAMPLES))
    assert found["origin"] == list(hash_strings(["JFK", "SFO"]))
    assert found["tags"] == [[1, 2, 3], [4, 0, 0]] and found["tags.lengths"] == [3, 1]
    assert found["distance"] == [10.0, 20.0]


def test_the_datasets_columns_and_transforms_are_applied() -> None:
    features = [
        {"name": "origin", "column": "from"}, {"name": "tags", "kind": "sequence", "max_length": 2},
        {"name": "distance", "kind": "dense", "transform": "log1p"},
    ]  # fmt: skip
    data = DatasetSpec.parse({"source": {"files": ["x"]}, "features": features})
    found = tensors(request_for(METADATA, [{"from": 7, "tags": [1, 2, 3], "distance": 10.0}], data=data))
    assert found["origin"] == [7] and found["tags"] == [[2, 3]]
    assert found["distance"] == pytest.approx([np.log1p(10.0)])


def test_what_an_example_lacks_or_has_too_much_is_named() -> None:
    with pytest.raises(InvalidArgument) as caught:
        request_for(METADATA, [{"orign": "JFK", "tags": [1], "distance": 1}])
    assert {violation.path for violation in caught.value.violations} == {"origin", "orign"}


@pytest.mark.parametrize(("change", "path", "words"), [
    ({"distance": "xyz"}, "distance", "must be a number, not 'xyz'"),
    ({"distance": [1, 2]}, "distance", "must be a number"),
    ({"origin": ["JFK", "SFO"]}, "origin", "one integer or text"),
    ({"origin": 1.5}, "origin", "one integer or text"),
    ({"origin": 2**64}, "origin", "one integer or text"),
    ({"tags": [1, 2.5]}, "tags", "integers or text, not 2.5"),
    ({"tags": [1, "x"]}, "tags", "all integers or all text"),
    ({"tags": [2**63, -1]}, "tags", "all integers or all text"),
    ({"heft": ["much"]}, "heft", "must be numbers: the weights of tags"),
])
def test_a_value_that_does_not_fit_its_feature_is_named(change: dict[str, Any], path: str, words: str) -> None:
    features = [{"name": "origin"}, {"name": "tags", "kind": "bag", "weights": "heft"},
                {"name": "distance", "kind": "dense"}]
    data = DatasetSpec.parse({"source": {"files": ["x"]}, "features": features})
    example = {"origin": "JFK", "tags": [1], "heft": [0.5], "distance": 1} | change
    with pytest.raises(InvalidArgument) as caught:
        request_for(METADATA, [example], data=data)
    (violation,) = caught.value.violations
    assert violation.path == path and words in violation.reason, violation


def test_rows_are_read_from_the_command_line() -> None:
    assert parse_row("origin=JFK, hour=8,tags=1|2,distance=24.5") == {
        "origin": "JFK", "hour": 8, "tags": [1, 2], "distance": 24.5,
    }  # fmt: skip
    with pytest.raises(InvalidArgument):
        parse_row("origin")


def test_predictions_are_one_line_per_example() -> None:
    answer = {"outputs": [{"name": "predictions", "shape": [2], "data": [0.25, 0.5]}]}
    assert list(predictions(answer)) == ["0.250000", "0.500000"]
    two = {"outputs": [{"name": "predictions", "shape": [1, 2], "data": [0.25, 0.5]}]}
    assert list(predictions(two)) == ["0.250000 0.500000"]
