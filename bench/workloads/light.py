"""A model of a few numbers, by numpy alone, whose steps wait: many workers fit on a few cores.

STEP_S in a worker's environment is the least time of a step.
"""

import os
import time
from typing import Any

import numpy as np

from recmesh.trainer.session import EmbeddingTable, Job


class Light:
    """Nothing to export."""

    framework = "torch"
    tables = (EmbeddingTable("item", 2),)
    dense = ()

    def predict(self, batch: Any, *_: Any) -> Any:
        return np.full(batch.size, 0.5, np.float32)

    def export(self, *_: Any, **__: Any) -> None:
        raise NotImplementedError("this model is for training only")


def main(job: Job) -> None:
    """Steps at the asked pace."""
    job.attach(Light())
    least_s = float(os.environ.get("STEP_S", "0"))
    for step in job.session.steps():
        time.sleep(least_s)
        step.push({name: np.full_like(rows, 1e-4) for name, rows in step.rows.items()}, {}, loss=0.5)
