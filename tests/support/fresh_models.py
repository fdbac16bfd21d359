"""A torch model with its tables beside it: prediction = row of `item` + the parameter `w`."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import recmesh
from recmesh.formats import tables as files
from tests.support.snapshots import BLOCK, TABLE, Snapshots


def fresh_torch_model(folder: Path, job: Snapshots) -> Path:
    """Exported at snapshot 1 of the job, which must have it: row of id 1, and -`w`, are 1."""
    import numpy as np
    import torch
    from torch import nn

    from recmesh.torch import EmbeddingCollection, attach
    from recmesh.trainer.session import EmbeddingTable, Init

    class Sum(nn.Module):  # type: ignore[misc]  # torch is not analysed
        def __init__(self) -> None:
            super().__init__()
            self.embeddings = EmbeddingCollection([EmbeddingTable(TABLE, 1, features=["item"], init=Init.zeros())])
            self.w = nn.Parameter(torch.full((1,), -1.0))

        def forward(self, batch: object) -> torch.Tensor:
            return self.embeddings(batch)["item"][:, 0] + self.w

    rows = folder.parent / "rows.parquet"
    pq.write_table(pa.table({"item": [1, 2], "click": [0, 1]}), rows)
    made = recmesh.local_job({
        "name": "sum", "model": {"entrypoint": "here:main"},
        "data": {"source": {"files": [str(rows)]}, "label": "click", "features": [{"name": "item"}]},
    })
    made.id = job.job_id
    attach(made, Sum(), predictions="identity").export_apart(
        folder, job_id=job.job_id, checkpoints=str(job.root), tables={}, dense={BLOCK: np.full(1, -1.0, np.float32)},
        metrics={},
    )
    files.write(
        folder / "tables", job_id=job.job_id, gen=1, snapshot=1,
        tables={TABLE: (np.array([1], np.int64), np.ones((1, 1), np.float32))},
        dense={BLOCK: np.full(1, -1.0, np.float32)},
    )
    return folder
