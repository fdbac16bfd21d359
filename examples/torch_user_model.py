"""A torch model of your own on recmesh.

In a notebook or a shell, without a mesh:   python examples/torch_user_model.py
In the mesh, with workers and servers:      recmesh submit examples/torch_user_model.yaml

Both run the same `main(job)`.
"""

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import recmesh
import recmesh.torch
from recmesh.torch import Batch, EmbeddingCollection


class TwoTowers(nn.Module):
    """Where from and where to, when, and how far: small, but your own."""

    def __init__(self, job: recmesh.Job) -> None:
        super().__init__()
        dim = job.params.get("dim", 16)
        self.embeddings = EmbeddingCollection(
            [
                recmesh.EmbeddingTable("airport", dim, ["origin", "destination"]),   # one table, two features
                recmesh.EmbeddingTable("route", dim),
                recmesh.EmbeddingTable("time", dim, ["hour", "weekday", "day"]),
            ]
        )
        self.head = nn.Sequential(
            nn.Linear(6 * dim + len(job.dense_features), 64), nn.ReLU(), nn.Linear(64, 1)
        )

    def forward(self, batch: Batch) -> Tensor:
        """Logits [B]."""
        looked = self.embeddings(batch)
        return self.head(torch.cat([looked.cat(), batch.dense], dim=1)).squeeze(1)


def main(job: recmesh.Job) -> None:
    """Trains; the servers apply Adagrad to the dense layers, and the job's optimizer to the tables."""
    model = TwoTowers(job)
    trainer = recmesh.torch.attach(job, model, torch.optim.Adagrad(model.parameters(), lr=0.01))
    for batch in trainer:
        trainer.step(F.binary_cross_entropy_with_logits(model(batch), batch.label))


if __name__ == "__main__":
    alone = recmesh.local_job(Path(__file__).with_suffix(".yaml"))
    main(alone)
    print(alone.evaluate())
