"""DCN-v2 (Wang et al., WWW 2021): a cross network beside or below a deep one."""

import torch
from torch import Tensor, nn

from recmesh.torch import Batch
from recmesh.trainer.session import Job
from recmesh.zoo.defaults import DEFAULTS
from recmesh.zoo.params import with_defaults
from recmesh.zoo.torch.layers import Cross, Inputs, mlp, train


class DCNv2(nn.Module):
    """Logits [B, labels] of a batch."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        params = with_defaults(job.params, DEFAULTS["torch_dcn_v2"])
        self.inputs = Inputs(job, params)
        width, hidden = self.inputs.width, params["hidden"]
        self.cross = Cross(width, params["cross_layers"], params["cross_rank"])
        self.deep = mlp(width, hidden, dropout=params["dropout"])
        deep_width = hidden[-1] if hidden else width
        self.parallel = params["structure"] == "parallel"
        self.head = nn.Linear(width + deep_width if self.parallel else deep_width, len(job.labels))

    def forward(self, batch: Batch) -> Tensor:
        """Cross and deep network, side by side or one after the other."""
        x = self.inputs(batch)
        crossed = self.cross(x)
        if self.parallel:
            return self.head(torch.cat([crossed, self.deep(x)], dim=1))
        return self.head(self.deep(crossed))


def main(job: Job) -> None:
    """Trains it on the job's data."""
    train(job, DCNv2(job))
