"""One run of `bench mtrm` in a process of its own: `python -m bench.workloads.mixed JSON`; the last line is JSON.

A local job (the project's reader, store and torch trainer) takes the minibatches of both kinds in order of time. Those
of the stream are judged first, by what the model would serve, and trained then.
"""

import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import recmesh.torch
from bench.workloads import flights
from recmesh.torch import Batch
from recmesh.trainer.local import local_job
from recmesh.trainer.metrics import auc
from recmesh.trainer.session import Job
from recmesh.zoo.defaults import DEFAULTS
from recmesh.zoo.params import with_defaults
from recmesh.zoo.torch.mtrm import MTRM, MemoryTower, optimizer_of

SEEN, TRUE = 0, 1
"""Columns of the labels."""


class Single(nn.Module):  # type: ignore[misc]  # torch is not analysed
    """The memory tower's network alone, for samples of whatever kind."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.tower = MemoryTower(job, with_defaults(job.params, DEFAULTS["mtrm"]))

    def forward(self, batch: Batch) -> Tensor:
        """Logits [B, labels]."""
        logits: Tensor = self.tower(batch).logits
        return logits


def specification(task: dict[str, Any]) -> dict[str, Any]:
    """The job of a task."""
    return {
        "name": "mtrm",
        "model": {"entrypoint": "bench.workloads.mixed:trained", "params": task["params"]},
        "data": flights.dataset(Path(task["folder"]), seed=task["seed"], first=task["first"], days=task["days"]),
        "training": {
            "batch_size": task["batch_size"], "seed": task["seed"],
            "optimizer": {"kind": "adagrad", "lr": task["lr"]},
        },
        "export": None,
    }


def trained(task: dict[str, Any]) -> dict[str, Any]:
    """AUC of each day, after `unjudged` ones, of what would have been served at the time."""
    job = local_job(specification(task))
    model = MTRM(job) if task["model"] == "mtrm" else Single(job)
    optimizer = optimizer_of(job, model) if isinstance(model, MTRM) else None
    began, samples = time.perf_counter(), 0
    served: list[Any] = []
    true: list[Any] = []
    trainer = recmesh.torch.attach(job, model, optimizer)
    for batch in trainer:
        if batch.kind == "stream":
            model.eval()
            with torch.no_grad():
                served.append(torch.sigmoid(model(batch)[:, SEEN]).numpy())
            true.append(batch.labels[:, TRUE].numpy())
            model.train()
        logits = model(batch)
        loss = nn.functional.binary_cross_entropy_with_logits(logits[:, SEEN], batch.labels[:, SEEN])
        # What a baseline leaves out moves nothing under Adagrad: its gradients are zero.
        trainer.step(loss if batch.kind in task["learns"] else 0.0 * loss, predictions=logits.detach())
        samples += batch.size
    took = time.perf_counter() - began
    made, late = np.concatenate(served), np.concatenate(true)
    sizes = flights.day_sizes(Path(task["folder"]), first=task["first"], days=task["days"])
    edges = np.cumsum([0, *sizes])
    if edges[-1] != made.size:
        raise RuntimeError(f"{made.size} flights were judged, and there are {edges[-1]}")
    days = [auc(late[lo:hi], made[lo:hi]) for lo, hi in itertools.pairwise(edges)]
    parameters = sum(block.value.size for block in trainer.dense if block.kind == "parameter")
    rows = {table: rows.values.size for table, rows in job.session.tables().items()}  # type: ignore[attr-defined]
    return {
        "days": days[task["unjudged"]:], "s": took, "samples": samples, "dense_parameters": parameters,
        "embedding_parameters": sum(rows.values()),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(trained(json.loads(sys.argv[1]))))
