"""A logistic regression with a weight for each value of each feature, trained as it comes.

Without a framework, so that a worker starts in a moment.
"""

from typing import Any

import numpy as np

from bench.workloads.pacing import Paced
from recmesh.trainer.session import DenseBlock, EmbeddingTable, Init, Job


class Logistic:
    """A weight for each value of each feature, and for each dense one."""

    framework = "torch"

    def __init__(self, job: Job) -> None:
        self.tables = tuple(EmbeddingTable(name, 1, init=Init.zeros()) for name in job.id_features)
        self.dense = (DenseBlock("w", np.zeros(len(job.dense_features) + 1, np.float32)),)

    def predict(self, *_: Any) -> Any:
        raise NotImplementedError("this model is for training only")

    def export(self, *_: Any, **__: Any) -> None:
        raise NotImplementedError("this model is for training only")


def main(job: Job) -> None:
    """A worker's: gradient steps of the log loss, paced to params.per_s."""
    job.session = Paced(job.session, job.params["per_s"])
    job.attach(Logistic(job))
    for step in job.session.steps():
        size, weights, index = step.batch.size, step.dense["w"], step.index
        logit = step.batch.dense @ weights[:-1] + weights[-1]
        for name, rows in step.rows.items():
            logit += rows[index[name], 0]
        said = 1.0 / (1.0 + np.exp(-np.clip(logit, -30.0, 30.0)))
        late = step.batch.labels[:, 0]
        wrong = ((said - late) / job.batch_size).astype(np.float32)
        row_grads = {
            name: np.bincount(index[name], wrong, minlength=len(rows)).astype(np.float32)[:, None]
            for name, rows in step.rows.items()
        }
        dense_grads = {"w": np.append(wrong @ step.batch.dense, wrong.sum()).astype(np.float32)}
        sure = np.clip(np.where(late > 0.5, said, 1.0 - said), 1e-7, 1.0)
        step.push(
            row_grads, dense_grads, loss=float(-np.log(sure).sum() / size), predictions=said.astype(np.float32)
        )
