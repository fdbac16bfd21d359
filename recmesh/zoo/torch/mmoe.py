"""MMoE (Ma et al., KDD 2018): experts shared by several tasks, each with a gate and a tower of its own."""

import torch
from torch import Tensor, nn

from recmesh.torch import Batch
from recmesh.trainer.session import Job
from recmesh.zoo.defaults import DEFAULTS
from recmesh.zoo.params import with_defaults
from recmesh.zoo.torch.layers import Inputs, mlp, train


class MMoE(nn.Module):
    """Logits [B, labels]: one task per label."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        params = with_defaults(job.params, DEFAULTS["mmoe"])
        self.inputs = Inputs(job, params)
        width, hidden, drop = self.inputs.width, params["expert_hidden"], params["dropout"]
        tasks, experts = range(len(job.labels)), range(params["experts"])
        self.experts = nn.ModuleList(mlp(width, hidden, dropout=drop) for _ in experts)
        self.gates = nn.ModuleList(nn.Linear(width, len(experts), bias=False) for _ in tasks)
        expert_width = hidden[-1] if hidden else width
        self.towers = nn.ModuleList(
            mlp(expert_width, params["tower_hidden"], dropout=drop, out=1) for _ in tasks
        )

    def forward(self, batch: Batch) -> Tensor:
        """Eq. 6 and 7: f_k(x) = Σ_i softmax(W_k·x)_i · expert_i(x)."""
        x = self.inputs(batch)
        opinions = torch.stack([expert(x) for expert in self.experts], dim=1)
        logits = []
        for gate, tower in zip(self.gates, self.towers, strict=True):
            share = torch.softmax(gate(x), dim=1).unsqueeze(1)
            logits.append(tower(torch.bmm(share, opinions).squeeze(1)))
        return torch.cat(logits, dim=1)


def main(job: Job) -> None:
    """Trains it on the job's data."""
    train(job, MMoE(job))
