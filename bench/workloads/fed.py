"""A job that takes so many samples per second as it says, and rows that take their time to decode."""

import time
from typing import Any

import numpy as np

from bench.workloads.constant import Constant
from recmesh.trainer.session import Job

ROWS_PER_S = 1_024.0
"""Of one decoder."""
CATCH_UP_S = 0.1
_due = [0.0]


def slowly(column: Any) -> Any:
    """A feature's function: the column as it is, after as long as so many rows take."""
    _due[0] = max(_due[0], time.monotonic() - CATCH_UP_S) + len(column) / ROWS_PER_S
    time.sleep(max(0.0, _due[0] - time.monotonic()))
    return column


def main(job: Job) -> None:
    """Params: tables, dim, samples_per_s."""
    job.attach(Constant(job.params))
    dense = {"w": np.full((512, 64), 1e-4, np.float32)}
    due = 0.0
    for step in job.session.steps():
        due = max(due, time.monotonic() - CATCH_UP_S) + step.batch.size / job.params["samples_per_s"]
        step.push({name: np.full_like(rows, 1e-4) for name, rows in step.rows.items()}, dense, loss=0.5)
        time.sleep(max(0.0, due - time.monotonic()))
