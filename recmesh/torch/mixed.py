"""Mixed training (MTRM of Primus, ATC 2025): one tower learns from batches, the other from the stream.

The memory tower learns from data whose labels are late and right; the adapt tower learns from the stream, with what the
memory tower says as a fixed input, and it is the adapt tower that answers. A batch's `kind` says whose turn it is. No
gradient flows from the adapt tower to the memory tower, so a step of one kind leaves the other tower's parameters, and
its tables, bit for bit as they are.
"""

from contextlib import nullcontext
from typing import NamedTuple

import torch
from torch import Tensor, nn

from recmesh.torch.batch import Batch


class Memory(NamedTuple):
    """What the memory tower says of a batch."""

    logits: Tensor
    """[B, labels]"""
    hidden: Tensor
    """[B, width]: what else the adapt tower is to know."""


class MixedTowers(nn.Module):
    """Logits [B, labels] of the tower that has its turn; of the adapt tower whenever it is not training.

    `memory` maps a batch to `Memory`. `adapt` maps a batch and that to what is added to the memory tower's logits; it
    had best begin as zero (`correction`), so that the model answers as the memory tower until it has seen the stream.
    With `own_answer` what it gives are the logits themselves, and the memory is an input like others: for data where
    what was learned long ago may mislead. Embeddings that both towers look up in are trained by both.
    """

    def __init__(self, memory: nn.Module, adapt: nn.Module, *, own_answer: bool = False) -> None:
        super().__init__()
        self.memory, self.adapt, self.own_answer = memory, adapt, own_answer

    def forward(self, batch: Batch) -> Tensor:
        """See the class."""
        if self.training and batch.kind == "batch":
            logits: Tensor = self.memory(batch).logits
            return logits
        told = self.recall(batch)
        answer: Tensor = self.adapt(batch, told)
        return answer if self.own_answer else told.logits + answer

    def recall(self, batch: Batch) -> Memory:
        """What the memory tower would answer in serving (no dropout, no statistics of the batch), without gradients."""
        if not self.memory.training:
            with torch.no_grad() if self.training else nullcontext():
                return _fixed(self.memory(batch))
        self.memory.eval()
        try:
            with torch.no_grad():
                return _fixed(self.memory(batch))
        finally:
            self.memory.train()


def correction(width: int, labels: int) -> nn.Linear:
    """A last layer that begins as zero."""
    layer = nn.Linear(width, labels)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def _fixed(told: Memory) -> Memory:
    return Memory(told.logits.detach(), told.hidden.detach())
