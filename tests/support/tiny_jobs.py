"""Jobs whose model is a few lines of numpy: a process starts in moments, and what it does depends on the rows alone.

`params.deadly` names rows at which a worker dies, `params.bad` rows at which the loss is not finite; STEP_S in a
worker's environment is the least time of a step, until there is the file HURRY.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.training_mesh import TrainingMesh
from tests.support.whole_mesh import WholeMesh

ROWS, BATCH = 2_000, 50

MODEL = '''"""One table and no loss to speak of: rows are told apart by the dense feature `number`."""

import os
import time

import numpy as np

from recmesh.trainer.session import EmbeddingTable

STEP_S = float(os.environ.get("STEP_S", "0"))
HURRY = os.environ.get("HURRY", "")


class Tiny:
    framework = "torch"
    tables = (EmbeddingTable("item", 2),)
    dense = ()

    def predict(self, batch, rows, index, dense):
        return np.full(batch.size, 0.5, np.float32)


def main(job):
    job.attach(Tiny())
    deadly, bad = set(job.params.get("deadly", [])), set(job.params.get("bad", []))
    due = time.monotonic()
    for step in job.session.steps():
        time.sleep(max(0.0, due - time.monotonic()))
        due = max(due + (0.0 if os.path.exists(HURRY) else STEP_S), time.monotonic())
        numbers = {int(number) for number in step.batch.dense[:, 0]}
        if deadly & numbers:
            os._exit(9)
        step.push({}, {}, loss=float("nan") if bad & numbers else 0.5)
'''


def tiny_job(mesh: WholeMesh | TrainingMesh, name: str, *, workers: int = 2, **training: Any) -> dict[str, Any]:
    """A spec; the model and its rows are written once into the mesh's folder."""
    code = mesh.folder / "tiny"
    if not code.exists():
        code.mkdir()
        (code / "tiny.py").write_text(MODEL)
        numbers = np.arange(ROWS)
        table = pa.table({
            "number": numbers.astype("float32"), "item": numbers % 97, "label": (numbers % 2).astype("float32"),
        })
        pq.write_table(table, mesh.folder / "rows.parquet")
    return {
        "name": name,
        "model": {"entrypoint": "tiny:main", "code": str(code), "params": {}},
        "data": {
            "source": {"format": "parquet", "files": [str(mesh.folder / "rows.parquet")]},
            "features": [{"name": "item"}, {"name": "number", "kind": "dense"}],
            "task_rows": 500,
        },
        "training": {"batch_size": BATCH, "shard_batches": 8} | training,
        "roles": {"ps": {"replicas": 2}, "worker": {"replicas": workers}},
        "export": None,
    }
