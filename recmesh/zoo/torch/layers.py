"""Layers that several models share, and the loop they all train by."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import recmesh.torch
from recmesh.runtime.errors import InvalidArgument
from recmesh.spec.job import Optimizer
from recmesh.torch import Batch, EmbeddingCollection
from recmesh.trainer.session import EmbeddingTable, Init, Job
from recmesh.zoo.params import NORM_EPSILON, NORM_MOMENTUM, embedding_scale


def mlp(width: int, hidden: Sequence[int], *, dropout: float = 0.0, out: int | None = None) -> nn.Sequential:
    """Linear and ReLU per hidden size; with `out` a last linear layer."""
    layers: list[nn.Module] = []
    for size in hidden:
        layers += [nn.Linear(width, size), nn.ReLU()]
        if dropout:
            layers.append(nn.Dropout(dropout))
        width = size
    if out is not None:
        layers.append(nn.Linear(width, out))
    return nn.Sequential(*layers)


class Cross(nn.Module):
    """DCN-v2's cross network (Wang et al. 2021, eq. 1): x_{l+1} = x_0 ⊙ (W_l·x_l + b_l) + x_l.

    With `rank` W_l is the product of two thin matrices (eq. 2); 0 keeps it full.
    """

    def __init__(self, width: int, layers: int, rank: int = 0) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(width, rank, bias=False), nn.Linear(rank, width)) if rank
            else nn.Linear(width, width)
            for _ in range(layers)
        )

    def forward(self, x: Tensor) -> Tensor:
        """[B, width] to [B, width]."""
        first = x
        for layer in self.layers:
            x = first * layer(x) + x
        return x


def tables_of(
    job: Job, params: Mapping[str, Any], *, called: Callable[[str], str] = str, optimizer: Optimizer | None = None
) -> list[EmbeddingTable]:
    """One table per id feature, of one dimension and `called` after it; bags are averaged."""
    start, dim = Init.uniform(embedding_scale(params)), params["embedding_dim"]
    return [
        EmbeddingTable(called(name), dim, [name], pooling="mean", init=start, optimizer=optimizer)
        for name in job.id_features
    ]


class Dense(nn.Module):
    """A batch's dense columns [B, columns], normalised where `dense_norm` says so."""

    def __init__(self, job: Job, params: Mapping[str, Any]) -> None:
        super().__init__()
        self.width = len(job.dense_features)
        self.norm = nn.BatchNorm1d(
            self.width, eps=NORM_EPSILON, momentum=1 - NORM_MOMENTUM, affine=False
        ) if params["dense_norm"] and self.width else None

    def forward(self, batch: Batch) -> Tensor:
        """One row has no deviation: it is taken as in serving."""
        if self.norm is None:
            return batch.dense
        if self.training and batch.size == 1:
            mean, variance = self.norm.running_mean, self.norm.running_var
            return nn.functional.batch_norm(batch.dense, mean, variance, eps=NORM_EPSILON)
        return self.norm(batch.dense)


class Inputs(nn.Module):
    """Pooled embeddings and dense columns side by side: [B, width]. Sequences are averaged."""

    def __init__(
        self, job: Job, params: Mapping[str, Any], *, embeddings: EmbeddingCollection | None = None
    ) -> None:
        """`embeddings`: a table per id feature; None: those of `tables_of`, for these inputs alone."""
        super().__init__()
        self.embeddings = EmbeddingCollection(tables_of(job, params)) if embeddings is None else embeddings
        tables = self.embeddings.tables
        if not tables:
            raise InvalidArgument("the data has no id feature, and this model needs one")
        self._sequences = [name for name, feature in job.id_features.items() if feature.kind == "sequence"]
        pooled = sum(t.dim * sum(f not in self._sequences for f in t.features) for t in tables)
        averaged = sum(t.dim * sum(f in self._sequences for f in t.features) for t in tables)
        self.dropout = nn.Dropout(params["embedding_dropout"])
        self.dense = Dense(job, params)
        self.width = pooled + averaged + self.dense.width

    def forward(self, batch: Batch) -> Tensor:
        """In the order: pooled features, sequences, dense."""
        looked = self.embeddings(batch)
        parts = [looked.cat()] if looked.pooled else []
        parts += [mean_of(*looked.sequence(name)) for name in self._sequences]
        return torch.cat([self.dropout(torch.cat(parts, dim=1)), self.dense(batch)], dim=1)


def mean_of(values: Tensor, mask: Tensor) -> Tensor:
    """[B, dim] of a padded sequence; zero of an empty one."""
    return (values * mask.unsqueeze(-1)).sum(dim=1) / mask.sum(dim=1, keepdim=True).clamp(min=1.0)


Loss = Callable[[Tensor, Batch], Tensor]


def logistic_loss(logits: Tensor, batch: Batch) -> Tensor:
    """Mean binary cross entropy over samples (weighted by the data's weights) and labels."""
    losses = nn.functional.binary_cross_entropy_with_logits(
        logits.reshape(batch.labels.shape), batch.labels, reduction="none"
    ).mean(dim=1)
    return (losses if batch.weight is None else losses * batch.weight).mean()


def train(
    job: Job, model: nn.Module, *, loss: Loss = logistic_loss, optimizer: torch.optim.Optimizer | None = None
) -> None:
    """The loop; the servers apply the job's `training.optimizer` to dense parameters, unless another is given."""
    trainer = recmesh.torch.attach(job, model, optimizer)
    for batch in trainer:
        trainer.step(loss(model(batch), batch))
