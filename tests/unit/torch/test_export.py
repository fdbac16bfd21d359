"""What is exported predicts as the trained model does, and needs torch alone."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

import recmesh
from recmesh.data import IdColumn, whole_dataset
from recmesh.serving import halves
from recmesh.serving.fresh.program import open_fresh
from recmesh.serving.programs import framework
from recmesh.serving.settings import ServingSettings
from recmesh.torch import EmbeddingCollection, attach
from recmesh.trainer.evaluation import ONE_SERVER
from recmesh.trainer.layout import prepare
from recmesh.trainer.local import LocalJob
from recmesh.trainer.session import EmbeddingTable
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


@pytest.mark.long
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


@pytest.mark.parametrize("which", ZOO)
def test_a_model_with_its_tables_beside_it_predicts_alike(tmp_path: Path, which: str) -> None:
    module, params = ZOO[which]
    job = trained(tmp_path, module, params, **({"labels": ["click", "buy"]} if which == "mmoe" else {}))
    folder = tmp_path / "model"
    job.export_apart(folder)
    inputs, batch = padded(job, 24)
    inputs["user"] = inputs["user"].copy()
    inputs["user"][:3] = 10**12          # ids never seen read as zero
    batch.ids["user"] = IdColumn(inputs["user"])
    session: Any = job.session
    assert job.model is not None
    prepared = prepare(batch, session.declared, ONE_SERVER)
    rows, dense = session.fetch(prepared)
    expected = job.model.predict(batch, rows, prepared.index, dense)
    found = halves.part(folder)
    assert found.card.apart is not None
    program, _ = framework("torch")
    inner: Any = program.load(folder, found.card.program, tunable=True)
    fresh = open_fresh(inner, folder, found.card, found.card.apart, ServingSettings(), log=print)
    fresh.sparse.begin()
    try:
        made = [
            fresh.run({name: array[lo:hi] for name, array in inputs.items()}) for lo, hi in ((0, 1), (1, 3), (3, 24))
        ]
    finally:
        fresh.sparse.close()
    together = np.concatenate([each["predictions"] for each in made])
    np.testing.assert_allclose(together, expected, rtol=1e-4, atol=1e-6)
    assert fresh.sparse.status()["tables"]["user"]["absent"] == 2       # distinct ids: one in each of two calls


def of_bags(folder: Path) -> Any:
    """A model of one feature, a bag whose name is `rows`."""
    path = folder / "rows.parquet"
    pq.write_table(pa.table({"rows": [[1, 2], [3]], "click": [0, 1]}), path)
    job = recmesh.local_job({
        "name": "bags", "model": {"entrypoint": "here:main"},
        "data": {"source": {"files": [str(path)]}, "label": "click", "features": [{"name": "rows", "kind": "bag"}]},
    })

    class Bags(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embeddings = EmbeddingCollection([EmbeddingTable("bags", 1, features=["rows"])])
            self.w = nn.Parameter(torch.zeros(1))

        def forward(self, batch: Any) -> torch.Tensor:
            return self.embeddings(batch)["rows"][:, 0] + self.w

    attach(job, Bags(), predictions="identity")
    return job


def test_a_feature_may_be_named_as_the_rows_of_a_program(tmp_path: Path) -> None:
    of_bags(tmp_path).export_apart(tmp_path / "model")
    card = json.loads((tmp_path / "model" / "model.json").read_text())
    assert [item["name"] for item in card["inputs"]] == ["rows", "rows.lengths"]


def test_a_folder_without_its_tables_has_no_model_json(tmp_path: Path) -> None:
    (tmp_path / "model" / "tables").mkdir(parents=True)          # somebody else's: they cannot be written
    with pytest.raises(FileExistsError):
        of_bags(tmp_path).export_apart(tmp_path / "model")
    assert not (tmp_path / "model" / "model.json").exists()
