"""The counting model: each row ends as the number of times its id occurred, each dense value as the number of samples.

It knows no framework, so that its workers start in a moment. `model.params`: `pace`, a file with the seconds that a
step takes at least (rewritten while the job trains); `fast_s`, the pace without such a file; `step_batches`, how many
batches a synchronous step has.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from recmesh.chaos.dataset import EVICTED, TABLES
from recmesh.data import Batch
from recmesh.formats import CHUNK
from recmesh.spec.job import TablePolicy
from recmesh.trainer.session import DenseBlock, EmbeddingTable, Floats, Init, Ints, Job, TableRows

ENTRYPOINT = "recmesh.chaos.counting:main"
BLOCK, BLOCK_SIZE = "samples", CHUNK + 3
"""Two chunks, which lie in slots of their own."""


TTL_STEPS = 12
"""A row that so many batches left alone is evicted; ids come back after about three times as many."""


class Counting:
    """See ServableModel; it predicts nothing and is never served."""

    framework = "torch"
    tables = (
        EmbeddingTable("item", 2, init=Init.zeros()),
        EmbeddingTable("user", 1, init=Init.zeros()),
        EmbeddingTable("pinned", 1, init=Init.zeros()),
        EmbeddingTable(EVICTED, 1, init=Init.zeros(), policy=TablePolicy(ttl_steps=TTL_STEPS)),
    )
    dense = (DenseBlock(BLOCK, np.zeros(BLOCK_SIZE, np.float32), kind="statistic"),)

    def predict(
        self, batch: Batch, rows: Mapping[str, Floats], index: Mapping[str, Ints], dense: Mapping[str, Floats]
    ) -> Floats:
        """One half for each row."""
        return np.full((batch.size, 1), 0.5, np.float32)

    def export(
        self, directory: Path, *, tables: Mapping[str, TableRows], dense: Mapping[str, Floats],
        metrics: Mapping[str, float],
    ) -> None:
        """Writes the counts; there is no program to go with them."""
        directory.mkdir(parents=True, exist_ok=True)
        arrays: dict[str, Any] = {f"{name}.{part}": value for name, rows in tables.items()
                  for part, value in (("ids", rows.ids), ("values", rows.values))}
        np.savez(directory / "counts.npz", **(arrays | dict(dense)))


def main(job: Job) -> None:
    """Trains it: SGD with rate 1 takes the gradient -1 of each occurrence, and a statistic adds its delta.

    A synchronous step applies the mean of its batches, so each gives as many times what it counts.
    """
    model = Counting()
    job.attach(model)
    dims = {table.name: table.dim for table in model.tables}
    pace, times = Pace(job.params), np.float32(job.params.get("step_batches", 1))
    for step in job.session.steps():
        grads = {name: times * _occurrences(step.index[name], len(step.rows[name]), dims[name]) for name in TABLES}
        samples = times * np.full(BLOCK_SIZE, step.batch.size, np.float32)
        step.push(grads, {BLOCK: samples}, loss=1.0)
        time.sleep(pace.step_s())       # with no batch in hand: what dies here is no batch's fault


def _occurrences(index: Ints, rows: int, dim: int) -> Floats:
    counts = np.bincount(index, minlength=rows).astype(np.float32)
    return np.repeat(-counts[:, None], dim, axis=1)


class Pace:
    """How long a step takes at least."""

    def __init__(self, params: Mapping[str, Any]) -> None:
        self._file = Path(params["pace"]) if params.get("pace") else None
        self._fast_s = float(params.get("fast_s", 0.0))

    def step_s(self) -> float:
        """As the file says now; a file that is missing or being replaced says nothing."""
        if self._file is not None:
            try:
                return float(self._file.read_text())
            except (OSError, ValueError):
                pass
        return self._fast_s


def job(
    data: Mapping[str, Any], *, name: str, epochs: int, seed: int, pace: Path | None = None, batches_per_step: int = 0
) -> dict[str, Any]:
    """A TrainingJob on rows of `recmesh.chaos.dataset`, on two parameter servers and two workers.

    `batches_per_step`: of synchronous mode; 0: it is asynchronous. Limits that end a job after many deaths are set so
    high that only a wrong count can fail it.
    """
    params = ({"pace": str(pace)} if pace else {}) | ({"step_batches": batches_per_step} if batches_per_step else {})
    sync = {"sync": {"batches_per_step": batches_per_step}} if batches_per_step else {}
    return {
        "name": name,
        "model": {"entrypoint": ENTRYPOINT, "params": params},
        "data": dict(data),
        "training": {
            "batch_size": 32, "shard_batches": 8, "epochs": epochs, "seed": seed, "quarantine_limit": 1_000,
            "optimizer": {"kind": "sgd", "lr": 1.0}, **sync,
        },
        "roles": {"ps": {"replicas": 2}, "worker": {"replicas": 2}},
        "checkpoint": {"every_s": 2, "keep": 30},
        "backoff_limit": 100_000,
        "export": None,
    }
