"""DIN (Zhou et al., KDD 2018): a user's history, weighted by how much it has to do with the candidate."""

import torch
from torch import Tensor, nn

from recmesh.runtime.errors import InvalidArgument, Violation
from recmesh.torch import Batch, EmbeddingCollection
from recmesh.trainer.session import EmbeddingTable, Init, Job
from recmesh.zoo.defaults import DEFAULTS
from recmesh.zoo.params import embedding_scale, with_defaults
from recmesh.zoo.torch.layers import Dense, mlp, train


class DIN(nn.Module):
    """Logits [B, labels] of a batch."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        params = with_defaults(job.params, DEFAULTS["din"])
        dim = params["embedding_dim"]
        self.candidate = _feature(job, params["candidate"], "single", "candidate")
        self.history = _feature(job, params["history"], "sequence", "history")
        self.others = [
            name for name, feature in job.id_features.items()
            if name not in (self.candidate, self.history) and feature.kind != "sequence"
        ]
        start = Init.uniform(embedding_scale(params))
        tables = [EmbeddingTable(name, dim, pooling="mean", init=start) for name in self.others]
        if params["share_table"]:
            tables.append(EmbeddingTable(self.candidate, dim, [self.candidate, self.history], init=start))
        else:
            tables += [EmbeddingTable(name, dim, init=start) for name in (self.candidate, self.history)]
        self.embeddings = EmbeddingCollection(tables)
        self.dropout = nn.Dropout(params["embedding_dropout"])
        self.dense = Dense(job, params)
        self.attention = mlp(4 * dim, params["attention_hidden"], out=1)
        width = dim * (2 + len(self.others)) + self.dense.width
        self.deep = mlp(width, params["hidden"], dropout=params["dropout"], out=len(job.labels))

    def forward(self, batch: Batch) -> Tensor:
        """Candidate, attended history and the other features through a deep network."""
        looked = self.embeddings(batch)
        candidate = self.dropout(looked[self.candidate])
        values, mask = looked.sequence(self.history)
        others = [self.dropout(looked.cat(self.others))] if self.others else []
        attended = self._attend(candidate, self.dropout(values), mask)
        return self.deep(torch.cat([candidate, attended, *others, self.dense(batch)], dim=1))

    def _attend(self, candidate: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """Eq. 3: Σ_j a(e_j, v)·e_j, weights not normalised, so that they keep the interest's intensity."""
        query = candidate.unsqueeze(1).expand_as(values)
        weights = self.attention(torch.cat([query, values, query - values, query * values], dim=2))
        return (weights * mask.unsqueeze(-1) * values).sum(dim=1)


def _feature(job: Job, wanted: str, kind: str, param: str) -> str:
    fitting = [name for name, feature in job.id_features.items() if feature.kind == kind]
    if wanted in fitting:
        return wanted
    if wanted or not fitting:
        reason = f"{wanted!r} is no {kind} feature" if wanted else f"the data has no {kind} feature"
        raise InvalidArgument("DIN can't be built", violations=[Violation(f"model.params.{param}", reason)])
    return fitting[0]


def main(job: Job) -> None:
    """Trains it on the job's data."""
    train(job, DIN(job))
