"""DLRM (Naumov et al. 2019): dot products of all pairs of embeddings, and of the numbers' bottom network."""

import torch
from torch import Tensor, nn

from recmesh.torch import Batch, EmbeddingCollection
from recmesh.trainer.session import Job
from recmesh.zoo.defaults import DEFAULTS
from recmesh.zoo.params import with_defaults
from recmesh.zoo.torch.layers import Dense, mean_of, mlp, tables_of, train


class DLRM(nn.Module):
    """Logits [B, labels] of a batch."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        params = with_defaults(job.params, DEFAULTS["dlrm"])
        dim = params["embedding_dim"]
        self.embeddings = EmbeddingCollection(tables_of(job, params))
        self.dropout = nn.Dropout(params["embedding_dropout"])
        self._sequences = [name for name, feature in job.id_features.items() if feature.kind == "sequence"]
        self.dense = Dense(job, params)
        numbers = self.dense.width
        self.bottom = mlp(numbers, [*params["bottom"], dim]) if numbers else None
        vectors = len(job.id_features) + (numbers > 0)
        pairs = torch.tril_indices(vectors, vectors, offset=-1)
        self.register_buffer("rows", pairs[0].clone(), persistent=False)
        self.register_buffer("columns", pairs[1].clone(), persistent=False)
        width = pairs.shape[1] + (dim if numbers else 0)
        self.top = mlp(width, params["top"], dropout=params["dropout"], out=len(job.labels))

    def forward(self, batch: Batch) -> Tensor:
        """Bottom network, pairwise interaction, top network."""
        looked = self.embeddings(batch)
        parts = [looked.stack()] if looked.pooled else []
        parts += [mean_of(*looked.sequence(name)).unsqueeze(1) for name in self._sequences]
        if self.bottom is None:
            return self.top(self._interact(self.dropout(torch.cat(parts, dim=1))))
        below = self.bottom(self.dense(batch))
        vectors = torch.cat([below.unsqueeze(1), *(self.dropout(part) for part in parts)], dim=1)
        return self.top(torch.cat([below, self._interact(vectors)], dim=1))

    def _interact(self, vectors: Tensor) -> Tensor:
        products = torch.bmm(vectors, vectors.transpose(1, 2))
        return products[:, self.rows, self.columns]


def main(job: Job) -> None:
    """Trains it on the job's data."""
    train(job, DLRM(job))
