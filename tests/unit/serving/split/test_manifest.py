"""`split.json` and the layout of what is sent."""

import json
from pathlib import Path
from typing import Any

import pytest

from recmesh.runtime.errors import DataLoss, InvalidArgument, NotFound
from recmesh.serving.split import manifest
from recmesh.serving.split.manifest import Batching, Manifest, Stage, TensorInfo, Transfer


def split() -> Manifest:
    return Manifest(
        "torch", "split", "", "00", ("id",), ("p",),
        (
            TensorInfo("id", "int64", (-1,), True, 512), TensorInfo("row", "float32", (-1, 4), True, 1024, "embedding"),
            TensorInfo("p", "float32", (-1,), True, 256, "sigmoid"),
        ),
        (Stage("pre", "cn", "pre", ("id",), ("row",), "11"), Stage("dense", "hn", "dense", ("row",), ("p",), "22")),
        (Transfer("pre", "dense", ("row",), (), 1024), Transfer("dense", "client", ("p",), (), 256)),
        Batching(True, "", 1e-7), {"batch": 64},
    )  # fmt: skip


def test_what_is_saved_is_loaded_again(tmp_path: Path) -> None:
    manifest.save(split(), tmp_path)
    found = manifest.load(tmp_path)
    assert found == split()
    assert found.dense.name == "dense"
    assert found.tensor("row").shape == (-1, 4)
    with pytest.raises(NotFound):
        found.tensor("column")


@pytest.mark.parametrize(
    ("path", "value", "why"),
    [
        (("version",), 2, "split.json.version: 2: this recmesh reads 1"),
        (("format",), "other", "split.json.format: 'other' is not 'recmesh.split'"),
        (("framework",), "onnx", "split.json.framework: 'onnx' is none of tensorflow, torch"),
        (("stages", 1, "inputs"), ["column"], "split.json.stages[1].inputs: nothing before it makes 'column'"),
        (("stages", 0, "where"), "hn", "split.json.stages: exactly one must be on the HN"),
        (("stages", 0, "program"), "../../etc", "split.json.stages[0].program: '../../etc' is no path inside"),
        (("stages", 1, "name"), "pre", "split.json.stages: names something twice"),
        (("outputs",), ["q"], "split.json.outputs: no stage makes 'q'"),
        (("tensors", 1, "name"), "column", "split.json.tensors: 'row' is not described"),
        (("tensors", 1, "bytes"), -1, "split.json.tensors[1].bytes: -1 is no whole number"),
        (("tensors", 1, "shape"), ["x"], "split.json.tensors[1].shape: ['x'] is no list of sizes"),
        (("transfers", 0, "packed"), ["column"], "split.json.transfers[0]: 'column' is not described"),
        (("transfers", 0, "receiver"), "nobody", "split.json.transfers[0]: there is no stage 'nobody'"),
        (("batching", "possible"), 1, "split.json.batching.possible: 1 is neither true nor false"),
        (("stages",), None, "split.json.stages: is no list"),
    ],
)
def test_a_wrong_field_is_named(path: tuple[Any, ...], value: Any, why: str) -> None:
    document = json.loads(json.dumps(split().document()))
    place = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(InvalidArgument) as refused:
        Manifest.parse(document)
    assert why in str(refused.value)


def test_no_file_and_no_json_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        manifest.load(tmp_path)
    (tmp_path / "split.json").write_text("{")
    with pytest.raises(InvalidArgument, match="cannot be read"):
        manifest.load(tmp_path)


def test_a_changed_program_or_another_model_is_refused(tmp_path: Path) -> None:
    for folder in ("model", "split/pre", "split/dense"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "model.pt2").write_text(folder)
    found = split()
    stages = tuple(
        Stage(each.name, each.where, each.program, each.inputs, each.outputs,
              manifest.digest(tmp_path / "split" / each.program, "torch"))
        for each in found.stages
    )  # fmt: skip
    model = manifest.digest(tmp_path / "model", "torch")
    found = Manifest(**{**{name: getattr(found, name) for name in Manifest.__slots__},
                        "stages": stages, "model_sha256": model})  # fmt: skip
    manifest.check_files(found, tmp_path / "split", model=tmp_path / "model")
    (tmp_path / "model" / "model.pt2").write_text("retrained")
    with pytest.raises(DataLoss, match="another model"):
        manifest.check_files(found, tmp_path / "split", model=tmp_path / "model")
    (tmp_path / "split" / "pre" / "model.pt2").write_text("damaged")
    with pytest.raises(DataLoss, match="stage pre"):
        manifest.check_files(found, tmp_path / "split")
