"""AUC of the zoo on the first 80,000 rows of Criteo, beside a logistic regression on the same columns."""

import statistics
import time
from pathlib import Path
from typing import Any

from bench.criteo import MIN_COUNT, TRAIN, DataMissing, prepare, specification
from bench.figures import Result
from bench.mesh import mesh, say, scratch
from bench.peers import logistic
from recmesh.spec.job import Model
from recmesh.trainer.local import local_job
from recmesh.trainer.metrics import auc
from recmesh.trainer.usercode import resolve

SEEDS = 5
PATIENCE_S = 600.0
LOGISTIC_L2 = 20.0
CALM = {"embedding_init": 0.01, "embedding_dropout": 0.1, "dense_norm": True}
TUNED: dict[str, dict[str, Any]] = {
    "dcn": {
        "zoo": "torch_dcn_v2",
        "params": {"embedding_dim": 16, "cross_layers": 2, "hidden": [64, 32], "dropout": 0.3},
        "training": {"batch_size": 256, "epochs": 1, "optimizer": {"kind": "adagrad", "lr": 0.02}},
    },
    "wide_deep": {
        "zoo": "wide_deep",
        "params": {"embedding_dim": 16, "hidden": [128], **CALM},
        "training": {"batch_size": 256, "epochs": 1, "optimizer": {"kind": "adagrad", "lr": 0.02}},
    },
    "xdeepfm": {
        "zoo": "xdeepfm",
        "params": {"embedding_dim": 16, "cin": [8, 8], "hidden": [32], **CALM},
        "training": {"batch_size": 256, "epochs": 1, "optimizer": {"kind": "adagrad", "lr": 0.02}},
    },
}
"""Chosen on the training rows alone: fitted on their first 80 %, judged on the rest."""


def run(*, quick: bool) -> Result:
    """Means over seeds, of one-process jobs over the same store; the first seed of each goes through a mesh too."""
    seeds = 1 if quick else SEEDS
    with scratch() as folder:
        path = folder / "criteo.parquet"
        try:
            rows = prepare(path)
        except DataMissing as missing:
            say(str(missing))
            return Result("quality", {}, {"missing": str(missing)})
        cut = round(rows * TRAIN)
        table = logistic.load(path)
        began = time.perf_counter()
        made = logistic.scores(table, slice(0, cut), slice(cut, rows), l2=LOGISTIC_L2)
        baseline = auc(table.y[cut:].astype("f4"), made.astype("f4"))
        say(f"logistic regression: {baseline:.4f} ({time.perf_counter() - began:.0f} s)")
        figures, each = {"auc_logistic": baseline}, {}
        for name, tuned in TUNED.items():
            each[name] = [local_auc(tuned, path, seed) for seed in range(seeds)]
            say(f"{name}: {' '.join(f'{value:.4f}' for value in each[name])}")
            figures[f"auc_{name}"] = statistics.mean(each[name])
            figures[f"auc_{name}_minus_logistic"] = figures[f"auc_{name}"] - baseline
        meshed = {} if quick else _through_a_mesh(path)
        figures |= {f"auc_{name}_mesh": value for name, value in meshed.items()}
    return Result("quality", figures, {
        "rows": rows, "train": cut, "test": rows - cut, "seeds": seeds, "per_seed": each, "min_count": MIN_COUNT,
        "logistic": f"one-hot ids and standardised dense columns, L2 {LOGISTIC_L2:g}, L-BFGS to the optimum",
        "tuned": TUNED, "tuned_on": "first 64 % of the rows, judged on the next 16 %: never on the test rows",
        "mesh": "seed 0 of each model trained by a mesh: 1 PS, 1 worker, asynchronous" if meshed else "",
        "quick": "1 seed instead of 5, and none through a mesh" if quick else "",
    })


def specified(
    tuned: dict[str, Any], path: Path, seed: int, *, train: float = TRAIN, test: float = 1.0
) -> dict[str, Any]:
    """The job of a tuned model: trained on the rows up to `train`, judged from there to `test`."""
    return {
        "name": f"quality-{tuned['zoo'].replace('_', '-')}-{seed}",
        "model": {"zoo": tuned["zoo"], "params": tuned["params"]},
        "data": specification(path, (0.0, train)),
        "training": {**tuned["training"], "seed": seed},
        "evaluation": {"data": specification(path, (train, test))},
        "export": None,
    }


def local_auc(tuned: dict[str, Any], path: Path, seed: int, **parts: float) -> float:
    """Trained in this process, batch after batch."""
    train = resolve(Model(zoo=tuned["zoo"]))   # first: a job seeds only the frameworks that are loaded
    job = local_job(specified(tuned, path, seed, **parts))
    train(job)
    return job.evaluate()["eval_auc"]


def _through_a_mesh(path: Path) -> dict[str, float]:
    found = {}
    with mesh() as running:
        for name, tuned in TUNED.items():
            roles = {"roles": {"ps": {"replicas": 1}, "worker": {"replicas": 1}}}
            job_id = running.client.submit(specified(tuned, path, 0) | roles).job_id
            job = running.wait(job_id, lambda job: job.over, patience_s=PATIENCE_S)
            found[name] = job.metrics["eval_auc"]
            say(f"{name} through a mesh: {found[name]:.4f}")
    return found
