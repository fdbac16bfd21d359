"""A model with constant gradients, which notes when each of its steps began: what a worker feels of anything else.

Params: tables, dim, times (the file's stem). Without a framework, so that a process starts in moments.
"""

import os
import time
from typing import Any

import numpy as np

from recmesh.trainer.session import DenseBlock, EmbeddingTable, Job


class Constant:
    """Nothing to predict or to export."""

    framework = "torch"

    def __init__(self, params: dict[str, Any]) -> None:
        self.tables = tuple(EmbeddingTable(f"C{k + 1}", params["dim"]) for k in range(params["tables"]))
        self.dense = (DenseBlock("w", np.zeros((512, 64), np.float32)),)

    def predict(self, *_: Any) -> Any:
        raise NotImplementedError("this model is for training only")

    def export(self, *_: Any, **__: Any) -> None:
        raise NotImplementedError("this model is for training only")


def main(job: Job) -> None:
    """One line with unix seconds per step, behind which the step's batch is pushed."""
    job.attach(Constant(job.params))
    dense = {"w": np.full((512, 64), 1e-4, np.float32)}
    with open(f"{job.params['times']}.{os.getpid()}", "w", buffering=1) as times:
        for step in job.session.steps():
            times.write(f"{time.time():.6f} {step.batch.size}\n")
            step.push({name: np.full_like(rows, 1e-4) for name, rows in step.rows.items()}, dense, loss=0.5)
