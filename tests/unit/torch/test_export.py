"""What is exported predicts as the trained model does, and needs torch alone."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import recmesh
from recmesh.data import IdColumn, whole_dataset
from recmesh.trainer.evaluation import ONE_SERVER
from recmesh.trainer.layout import prepare
from recmesh.trainer.local import LocalJob
from recmesh.zoo.torch import din, dlrm, mmoe, mtrm, torch_dcn_v2
from tests.support.rows import job_over, write_rows

FEATURES: list[dict[str, Any]] = [
    {"name": "user"},
    {"name": "item"},
    {"name": "tags", "kind": "bag", "weights": "share"},
    {"name": "past", "kind": "sequence", "max_length": 4},
    {"name": "x", "kind": "dense"},
]
INPUTS = {"embedding_dim": 4, "embedding_dropout": 0.2, "dense_norm": True}
ZOO: dict[str, tuple[Any, dict[str, Any]]] = {
    "dcn": (torch_dcn_v2, INPUTS | {"hidden": [8], "cross_layers": 1}),
    "dlrm": (dlrm, INPUTS | {"bottom": [8], "top": [8]}),
    "mmoe": (mmoe, INPUTS | {"experts": 2, "expert_hidden": [8], "tower_hidden": [4]}),
    "din": (din, INPUTS | {"candidate": "item", "hidden": [8]}),
    "mtrm": (mtrm, INPUTS | {"hidden": [8], "adapt_hidden": [4]}),
}
RUN = """
import sys, json
sys.path = [p for p in sys.path if p and "work" not in p or "site-packages" in p]
import numpy as np, torch
program = torch.export.load(sys.argv[1] + "/model.pt2").module()
assert not any(name.split(".")[0] == "recmesh" for name in sys.modules), "recmesh was imported"
data = np.load(sys.argv[1] + "/inputs.npz", allow_pickle=False)
names = [item["name"] for item in json.load(open(sys.argv[1] + "/model.json"))["inputs"]]
made = []
for lo, hi in ((0, 1), (1, 3), (3, 24)):
    made.append(program({name: torch.from_numpy(data[name][lo:hi]) for name in names})["predictions"])
np.save(sys.argv[1] + "/out.npy", torch.cat(made).numpy(), allow_pickle=False)
"""


def trained(tmp_path: Path, module: Any, params: dict[str, Any], **data: Any) -> LocalJob:
    path = write_rows(tmp_path / "rows.parquet")
    spec = job_over(path, features=FEATURES, data=data)
    spec = spec.model_copy(update={"model": spec.model.model_copy(update={"params": params})})
    job = recmesh.local_job(spec)
    module.main(job)
    return job


def padded(job: LocalJob, rows: int) -> tuple[dict[str, np.ndarray], Any]:
    assert job.spec.data is not None
    batch = next(iter(whole_dataset(job.spec.data, batch_size=rows)))
    inputs: dict[str, np.ndarray] = {}
    for k, name in enumerate(job.dense_features):
        inputs[name] = np.ascontiguousarray(batch.dense[:, k])
    for name, column in batch.ids.items():
        if column.offsets is None:
            inputs[name] = np.ascontiguousarray(column.values)
            continue
        lengths = np.diff(column.offsets)
        ids = np.full((rows, max(int(lengths.max()), 1)), 77, np.int64)   # whatever stands behind the end
        weights = np.full(ids.shape, 9.0, np.float32)
        for i, (lo, hi) in enumerate(zip(column.offsets, column.offsets[1:], strict=False)):
            ids[i, :hi - lo] = column.values[lo:hi]
            if column.weights is not None:
                weights[i, :hi - lo] = column.weights[lo:hi]
        inputs |= {name: ids, f"{name}.lengths": lengths}
        if column.weights is not None:
            inputs[f"{name}.weights"] = weights
    return inputs, batch


@pytest.mark.parametrize("which", ZOO)
def test_an_exported_model_predicts_alike_without_recmesh(tmp_path: Path, which: str) -> None:
    module, params = ZOO[which]
    several = {"labels": ["click", "buy"]} if which == "mmoe" else {}
    job = trained(tmp_path, module, params, **several)
    folder = tmp_path / "model"
    job.export(folder, metrics={"eval_auc": 0.5})
    inputs, batch = padded(job, 24)
    inputs["user"] = inputs["user"].copy()
    inputs["user"][:3] = 10**12          # ids never seen read as zero
    batch.ids["user"] = IdColumn(inputs["user"])
    np.savez(folder / "inputs.npz", **inputs)  # type: ignore[arg-type]  # numpy's stub takes any array
    script = tmp_path / "run.py"
    script.write_text(RUN)
    subprocess.run(
        [sys.executable, "-I", str(script), str(folder)], cwd=tmp_path, check=True, capture_output=True, timeout=120
    )
    session: Any = job.session
    assert job.model is not None
    prepared = prepare(batch, session.declared, ONE_SERVER)
    rows, dense = session.fetch(prepared)
    expected = job.model.predict(batch, rows, prepared.index, dense)
    found = np.load(folder / "out.npy", allow_pickle=False)
    assert found.shape == expected.shape == ((24, 2) if several else (24,))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    card = json.loads((folder / "model.json").read_text())
    assert card["framework"] == "torch"
    assert card["metrics"] == {"eval_auc": 0.5}
    assert [item["name"] for item in card["inputs"]] == [
        "user", "item", "tags", "tags.lengths", "tags.weights", "past", "past.lengths", "x"
    ]


def test_a_local_job_is_judged_on_its_evaluation_rows(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.parquet", rows=400)
    spec = job_over(
        path,
        data={"source": {"files": [str(path)], "rows": [0.0, 0.75]}},
        evaluation={"rows": [0.75, 1.0]},
        training={"epochs": 20, "optimizer": {"kind": "adagrad", "lr": 0.1}},
    )
    job = recmesh.local_job(spec)
    torch_dcn_v2.main(job)
    metrics = job.evaluate()
    assert metrics["eval_rows"] == 100
    assert metrics["eval_auc"] > 0.7
    assert metrics["eval_loss"] < 0.69
