"""MTRM (Primus, ATC 2025): a memory tower for batches, an adapt tower for the stream; see `recmesh.torch.mixed`."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from recmesh.runtime.errors import InvalidArgument, Violation
from recmesh.spec.job import Optimizer
from recmesh.torch import Batch, EmbeddingCollection, Memory, MixedTowers
from recmesh.torch.mixed import correction
from recmesh.trainer.session import Job
from recmesh.zoo.defaults import DEFAULTS
from recmesh.zoo.needs import adapt_table
from recmesh.zoo.params import with_defaults
from recmesh.zoo.torch.layers import Inputs, mlp, tables_of, train


class MemoryTower(nn.Module):
    """A deep network; its last hidden layer is told to the adapt tower."""

    def __init__(self, job: Job, params: Mapping[str, Any]) -> None:
        super().__init__()
        self.inputs = Inputs(job, params)
        self.deep = mlp(self.inputs.width, params["hidden"], dropout=params["dropout"])
        self.width = params["hidden"][-1] if params["hidden"] else self.inputs.width
        self.head = nn.Linear(self.width, len(job.labels))

    def forward(self, batch: Batch) -> Memory:
        """Logits and the last hidden layer."""
        hidden = self.deep(self.inputs(batch))
        return Memory(self.head(hidden), hidden)


class AdaptTower(nn.Module):
    """A deep network of the features and what the memory tower says of them.

    It corrects the memory's logits, and reads its last hidden layer; or it has an answer of its own, and reads those
    logits: a hidden layer that goes on changing under it, with what it means, was worse.
    """

    def __init__(self, job: Job, params: Mapping[str, Any], memory: MemoryTower) -> None:
        """Looks up in the memory tower's tables where `embedding` is shared."""
        super().__init__()
        embeddings = memory.inputs.embeddings if params["embedding"] == "shared" else EmbeddingCollection(
            tables_of(job, params, called=adapt_table, optimizer=_faster(job, params))
        )
        self.inputs = Inputs(job, params, embeddings=embeddings)
        hidden, labels = params["adapt_hidden"], len(job.labels)
        self.own_answer = params["answer"] == "own"
        width = self.inputs.width + (labels if self.own_answer else memory.width)
        self.deep = mlp(width, hidden, dropout=params["dropout"])
        last = hidden[-1] if hidden else width
        self.head = nn.Linear(last, labels) if self.own_answer else correction(last, labels)

    def forward(self, batch: Batch, told: Memory) -> Tensor:
        """Logits, or what is to be added to the memory tower's."""
        heard = told.logits if self.own_answer else told.hidden
        answer: Tensor = self.head(self.deep(torch.cat([self.inputs(batch), heard], dim=1)))
        return answer


class MTRM(MixedTowers):
    """Logits [B, labels] of a batch."""

    def __init__(self, job: Job) -> None:
        params = with_defaults(job.params, DEFAULTS["mtrm"])
        memory = MemoryTower(job, params)
        adapt = AdaptTower(job, params, memory)
        super().__init__(memory, adapt, own_answer=adapt.own_answer)


def optimizer_of(job: Job, model: MTRM) -> torch.optim.Optimizer | None:
    """Of the dense parameters; None where both towers learn at the job's rate."""
    params = with_defaults(job.params, DEFAULTS["mtrm"])
    spec = job.spec.training.optimizer
    if params["adapt_rate"] == 1:
        return None
    of_memory = {id(parameter) for parameter in model.memory.parameters()}
    groups = [
        {"params": list(model.memory.parameters())},
        {
            "params": [parameter for parameter in model.adapt.parameters() if id(parameter) not in of_memory],
            "lr": spec.lr * params["adapt_rate"],
        },
    ]
    common = {"lr": spec.lr, "weight_decay": spec.weight_decay}
    if spec.kind == "sgd":
        return torch.optim.SGD(groups, **common)
    if spec.kind in ("adagrad", "rowwise_adagrad"):
        start = spec.initial_accumulator
        return torch.optim.Adagrad(groups, **common, initial_accumulator_value=start, eps=spec.eps)
    if spec.kind == "adam":
        return torch.optim.Adam(groups, **common, betas=(spec.beta1, spec.beta2), eps=spec.eps)
    reason = f"goes with sgd, adagrad and adam; with {spec.kind} both towers learn at one rate"
    raise InvalidArgument("MTRM can't be built", violations=[Violation("model.params.adapt_rate", reason)])


def _faster(job: Job, params: Mapping[str, Any]) -> Optimizer | None:
    """Of the adapt tower's tables; None: as the job says."""
    if params["adapt_rate"] == 1:
        return None
    tables = job.spec.training.table_optimizers.get("*", job.spec.training.optimizer)
    return tables.model_copy(update={"lr": tables.lr * params["adapt_rate"]})


def main(job: Job) -> None:
    """Trains it on the job's data."""
    model = MTRM(job)
    train(job, model, optimizer=optimizer_of(job, model))
