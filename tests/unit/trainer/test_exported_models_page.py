"""docs/reference/exported-models.md, by running it: in a process that never imports recmesh."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recmesh.client.rows import request_for
from recmesh.spec.dataset import DatasetSpec

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "exported-models.md"
TRAIN = """
import importlib, json, sys
import recmesh
job = recmesh.local_job(json.load(open(sys.argv[1] + "/job.json")))
importlib.import_module("recmesh.zoo." + sys.argv[2]).main(job)
job.export(sys.argv[1] + "/model")
"""
CHECK = """
import json
assert not [name for name in sys.modules if name.split(".")[0] == "recmesh"]
json.dump(predictions.tolist(), open(folder + "/out.json", "w"))
"""


def blocks() -> dict[str, str]:
    """By heading: its Python."""
    sections = PAGE.read_text().split("\n## ")[1:]
    return {
        section.split("\n", 1)[0]: section.partition("```python\n")[2].partition("```")[0] for section in sections
    }


def run(script: str, *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.long
@pytest.mark.parametrize(("heading", "zoo"), [("torch", "torch.torch_dcn_v2"), ("TensorFlow", "keras.wide_deep")])
def test_the_page_says_how_an_exported_model_is_asked(tmp_path: Path, heading: str, zoo: str) -> None:
    table = {
        "origin": ["JFK", "SFO", None, "JFK"] * 8, "hour": [8, 17, 9, 8] * 8, "tags": [[1, 2], [3], [], [2]] * 8,
        "distance": [2586.0, 10.0, 0.0, 1.0] * 8, "label": [0, 1, 1, 0] * 8,
    }
    pq.write_table(pa.table(table), tmp_path / "rows.parquet")
    data: dict[str, Any] = {
        "source": {"files": [str(tmp_path / "rows.parquet")]},
        "features": [
            {"name": "origin"}, {"name": "hour"}, {"name": "tags", "kind": "bag"},
            {"name": "distance", "kind": "dense", "transform": "log1p"},
        ],
    }
    model = {"zoo": zoo.partition(".")[2], "params": {"embedding_dim": 4, "hidden": [8]}}
    (tmp_path / "job.json").write_text(json.dumps({
        "name": "small", "model": model, "data": data, "training": {"batch_size": 8}
    }))
    run(TRAIN, str(tmp_path), zoo)
    folder = tmp_path / "model"
    code = blocks()
    run("\n".join(["import sys; folder = sys.argv[1]", code["Ids"], code[heading], CHECK]), str(folder))
    found = json.loads((folder / "out.json").read_text())
    assert len(found) == 2 and np.isfinite(found).all() and found[0] != found[1]


def test_the_pages_inputs_are_those_that_the_client_makes_of_the_same_rows() -> None:
    features = [
        {"name": "origin"}, {"name": "hour"}, {"name": "tags", "kind": "bag"},
        {"name": "distance", "kind": "dense", "transform": "log1p"},
    ]
    data = DatasetSpec.parse({"source": {"files": ["x"]}, "features": features})
    ragged = {"datatype": "INT64", "shape": [-1, -1]}
    metadata = {"inputs": [
        {"name": "origin", "datatype": "INT64", "shape": [-1]}, {"name": "hour", "datatype": "INT64", "shape": [-1]},
        {"name": "tags", **ragged}, {"name": "tags.lengths", "datatype": "INT64", "shape": [-1]},
        {"name": "distance", "datatype": "FP32", "shape": [-1]},
    ]}
    rows: list[dict[str, Any]] = [{"origin": "JFK", "hour": 8, "tags": [1, 2], "distance": 2586.0},
                                  {"origin": None, "hour": 17, "tags": [3], "distance": 0.0}]
    made = {item["name"]: np.reshape(item["data"], item["shape"]) for item in
            request_for(metadata, rows, data=data)["inputs"]}
    code = blocks()
    names: dict[str, Any] = {}
    exec(code["Ids"] + code["torch"].partition("program =")[0], names)
    inputs = code["torch"].partition("inputs = ")[2].partition("\n}\n")[0] + "\n}"
    given = eval(inputs, names)
    assert list(given) == ["origin", "hour", "tags", "tags.lengths", "distance"]
    for name, tensor in given.items():
        np.testing.assert_allclose(tensor.numpy(), made[name], rtol=1e-6)
