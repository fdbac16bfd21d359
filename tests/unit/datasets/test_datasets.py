"""`recmesh.Dataset`: a job's data under any training loop."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

import recmesh
from recmesh.runtime.errors import NotFound

FEATURES: list[dict[str, Any]] = [
    {"name": "user"}, {"name": "tags", "kind": "bag", "weights": "w"}, {"name": "price", "kind": "dense"},
    {"name": "seen", "kind": "sequence", "max_length": 2},
]


@pytest.fixture
def data(tmp_path: Path) -> dict[str, Any]:
    table = pa.table({
        "label": [0.0, 1.0, 1.0], "user": [7, 8, 9], "tags": [[1, 2], [], [3]], "w": [[0.5, 2.0], [], [1.0]],
        "price": [1.5, 2.5, 3.5], "seen": [[1, 2, 3], [], [4]], "importance": [1.0, 2.0, 0.5],
    })
    path = tmp_path / "a.parquet"
    pq.write_table(table, path)
    return {"source": {"files": [str(path)]}, "features": FEATURES, "weight": "importance", "shuffle": False}


WANTED = {
    "user": [7, 8, 9], "tags": [[1, 2], [0, 0], [3, 0]], "tags.lengths": [2, 0, 1],
    "tags.weights": [[0.5, 2.0], [0.0, 0.0], [1.0, 0.0]], "price": [1.5, 2.5, 3.5], "seen": [[2, 3], [0, 0], [4, 0]],
    "seen.lengths": [2, 0, 1],
}


@pytest.mark.parametrize("framework", ["torch", "tf"])
def test_inputs_are_those_of_an_exported_model(framework: str, data: dict[str, Any]) -> None:
    loader = getattr(recmesh.Dataset(data), framework)(batch_size=3)
    [(inputs, labels, weight)] = list(loader)
    assert {name: values.numpy().tolist() for name, values in inputs.items()} == WANTED
    assert labels.numpy().tolist() == [[0.0], [1.0], [1.0]] and weight.numpy().tolist() == [1.0, 2.0, 0.5]
    assert inputs["user"].numpy().dtype == np.int64 and inputs["price"].numpy().dtype == np.float32


def test_a_loop_goes_on_from_a_state(data: dict[str, Any]) -> None:
    dataset = recmesh.Dataset(data)
    loader = dataset.torch(batch_size=1)
    next(loader)
    rest = dataset.torch(batch_size=1)
    rest.load_state_dict(loader.state_dict())
    assert len(rest) == 2 and [int(inputs["user"]) for inputs, _, _ in rest] == [8, 9]


def test_keras_fits_on_it(data: dict[str, Any]) -> None:
    import keras

    from recmesh.datasets.tensors import as_tf_dataset

    price = keras.Input((1,), name="price")
    user = keras.Input((1,), name="user", dtype="int64")
    model = keras.Model({"price": price, "user": user}, keras.layers.Dense(1)(price))
    model.compile("sgd", "mse")

    def chosen(inputs: Any, labels: Any, weight: Any) -> Any:
        return {name: inputs[name][:, None] for name in ("price", "user")}, labels, weight

    batches = as_tf_dataset(recmesh.Dataset(data).tf(batch_size=2))
    history = model.fit(batches.map(chosen), epochs=2, shuffle=False, verbose=0)
    assert np.isfinite(history.history["loss"]).all()
    assert [[row.numpy().tolist() for row in inputs["user"]] for inputs, _, _ in batches] == [[7, 8], [9]]


def test_a_dataset_is_read_from_a_file_or_a_jobs_file(data: dict[str, Any], tmp_path: Path) -> None:
    for name, content in (("data.yaml", data), ("job.yaml", {"name": "x", "data": data})):
        (tmp_path / name).write_text(yaml.safe_dump(content))
        assert next(recmesh.Dataset(tmp_path / name).batches(2)).size == 2
    data["source"]["files"] = ["a.parquet"]                # beside the file
    (tmp_path / "beside.yaml").write_text(yaml.safe_dump(data))
    assert next(recmesh.Dataset(tmp_path / "beside.yaml").batches(2)).size == 2
    with pytest.raises(NotFound, match=r"no file .*nope\.yaml"):
        recmesh.Dataset(tmp_path / "nope.yaml")
