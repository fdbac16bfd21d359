"""Wide & Deep or DCN-v2 in one process of torch, with fbgemm's table-batched embedding where it is installed.

    python -m bench.peers.single_process '{"model": "wide_deep", "steps": 200, ...}'   prints one JSON object

Nothing is served, sent, claimed or kept: what is left is the arithmetic and the tables. The models are those of
recmesh's zoo, the optimizer is Adagrad for rows (exact: of a distinct row's summed gradient) and for dense parameters
(torch's fused one). All tables are whole before training begins. What was tried, and kept because it is faster: the
first-order weight as a column of the row (fbgemm wants rows of a multiple of 4, so three columns stay unused) and the
model's input put together by one copy in each direction; slices and their gradients take several.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from itertools import cycle, islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, embedding

from bench.synthetic import DENSE, TABLES, read_records
from recmesh.trainer.metrics import auc as area_under_curve

EPS = 1e-8
ALIGNED = 4
"""fbgemm: the dimension of a row is a multiple of it."""


class Batched:
    """fbgemm's kernel over static tables; its backward pass applies Adagrad."""

    def __init__(self, *, ids: int, row: int, lr: float, scale: float) -> None:
        from fbgemm_gpu.split_embedding_configs import EmbOptimType
        from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
        from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
            ComputeDevice,
            SplitTableBatchedEmbeddingBagsCodegen,
        )

        self.row = -(-row // ALIGNED) * ALIGNED
        self._tables = SplitTableBatchedEmbeddingBagsCodegen(
            [(ids, self.row, EmbeddingLocation.HOST, ComputeDevice.CPU)] * TABLES, learning_rate=lr, eps=EPS,
            optimizer=EmbOptimType.EXACT_ADAGRAD, pooling_mode=PoolingMode.SUM, device=torch.device("cpu"))
        self._tables.init_embedding_weights_uniform(-scale, scale)

    def __call__(self, ids: Tensor) -> Tensor:
        """Rows [B, tables, row] of ids [B, tables]."""
        made: Tensor = self._tables(ids.T.reshape(-1), torch.arange(ids.numel() + 1))
        return made.view(len(ids), TABLES, self.row)

    def step(self) -> None:
        """Done in the backward pass."""


class Sparse:
    """torch's sparse gradients and Adagrad over one table, ids shifted by table."""

    def __init__(self, *, ids: int, row: int, lr: float, scale: float) -> None:
        self.row = row
        self._weight = nn.Parameter(torch.empty(ids * TABLES, row).uniform_(-scale, scale))
        self._shift = torch.arange(TABLES) * ids
        self._optimizer = torch.optim.Adagrad([self._weight], lr=lr, eps=EPS)

    def __call__(self, ids: Tensor) -> Tensor:
        """Rows [B, tables, row] of ids [B, tables]."""
        return embedding(ids + self._shift, self._weight, sparse=True)

    def step(self) -> None:
        """Apply the gradient."""
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)


class Joined(torch.autograd.Function):  # type: ignore[misc]  # torch is untyped here
    """Of rows [B, tables, row] the fields beside the dense columns, [B, tables·dim + columns], and the sum of the
    first-order weights [B], which follow the fields in the row."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, dense: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        """One copy."""
        ctx.dim, ctx.shape = dim, rows.shape
        size = TABLES * dim
        made = torch.empty(len(rows), size + dense.shape[1])
        made[:, :size].view(-1, TABLES, dim).copy_(rows[:, :, :dim])
        made[:, size:] = dense
        first = rows[:, :, dim].sum(1) if rows.shape[2] > dim else torch.zeros(len(rows))
        return made, first

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        """One copy."""
        of_made, of_first = grads
        made = torch.empty(ctx.shape)
        made[:, :, : ctx.dim] = of_made[:, : TABLES * ctx.dim].view(-1, TABLES, ctx.dim)
        if ctx.shape[2] > ctx.dim:
            made[:, :, ctx.dim] = of_first[:, None]
            made[:, :, ctx.dim + 1 :] = 0
        return made, None, None


class Model:
    """Logits [B] of rows [B, tables, row] and dense columns [B, columns]."""

    def __init__(self, task: dict[str, Any]) -> None:
        self.dim = task["dim"]
        width = TABLES * self.dim + DENSE
        sizes = [width, *task["hidden"]]
        self.tower = nn.Sequential(*(layer for pair in pairwise(sizes) for layer in (_linear(*pair), nn.ReLU())))
        self.wide = _linear(DENSE, 1, bias=False) if task["model"] == "wide_deep" else None
        self.cross = nn.ModuleList(_linear(width, width) for _ in range(task.get("cross_layers", 0)))
        self.head = _linear(sizes[-1] + (width if self.cross else 0), 1)
        parts = [self.tower, self.cross, self.head, *([] if self.wide is None else [self.wide])]
        self.parameters = [parameter for part in parts for parameter in part.parameters()]

    def __call__(self, rows: Tensor, dense: Tensor) -> Tensor:
        """See the class."""
        first, first_order = Joined.apply(rows, dense, self.dim)
        deep = self.tower(first)
        if self.wide is not None:
            logits: Tensor = (self.head(deep) + self.wide(dense))[:, 0] + first_order
            return logits
        x = first
        for layer in self.cross:
            x = torch.addcmul(x, first, layer(x))
        crossed: Tensor = self.head(torch.cat([x, deep], dim=1))[:, 0]
        return crossed


def _linear(inputs: int, units: int, *, bias: bool = True) -> nn.Linear:
    """Starts as Keras' does."""
    made = nn.Linear(inputs, units, bias=bias)
    nn.init.xavier_uniform_(made.weight)
    if bias:
        nn.init.zeros_(made.bias)
    return made


def main(task: dict[str, Any]) -> dict[str, Any]:
    """Train `steps` batches in each of `passes`, timed within `window`; the AUC is over held-out rows."""
    torch.set_num_threads(1)
    torch.manual_seed(1)
    tables, kind = _tables(task)
    model = Model(task)
    optimizer = torch.optim.Adagrad(model.parameters, lr=task["lr"], eps=EPS, fused=True)

    def step(ids: Tensor, dense: Tensor, label: Tensor) -> None:
        binary_cross_entropy_with_logits(model(tables(ids), dense), label).backward()
        tables.step()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    passes = [_pass(task, step, lambda ids, dense: model(tables(ids), dense)) for _ in range(task["passes"])]
    return {"embedding": kind, "passes": passes}


def _tables(task: dict[str, Any]) -> tuple[Batched | Sparse, str]:
    options = {"ids": task["ids"], "row": task["dim"] + (task["model"] == "wide_deep"), "lr": task["lr"],
               "scale": task["dim"] ** -0.5 / 4}
    try:
        import fbgemm_gpu
    except ImportError:
        return Sparse(**options), f"torch {torch.__version__} sparse"
    return Batched(**options), f"fbgemm {fbgemm_gpu.__version__}"


def _pass(task: dict[str, Any], step: Callable[..., None], logits: Callable[..., Tensor]) -> dict[str, Any]:
    batch, (begin, end) = task["batch_size"], task["window"]
    records = islice(cycle(_batches(Path(task["train"]), batch)), task["steps"])
    clocks = {}
    for number, columns in enumerate(records):
        if number in (begin, end):
            clocks[number] = time.perf_counter(), time.process_time()
        step(*columns)
    wall_s, cpu_s = (after - before for before, after in zip(clocks[begin], clocks[end], strict=True))
    with torch.no_grad():
        held = [(logits(ids, dense).numpy(), label.numpy())
                for ids, dense, label in _batches(Path(task["test"]), batch)]
    scores, labels = (np.concatenate(part) for part in zip(*held, strict=True))
    return {
        "auc": area_under_curve(labels, scores),
        "samples_per_cpu_s": batch * (end - begin) / cpu_s, "samples_per_s": batch * (end - begin) / wall_s,
        "cpu_ms_per_step": {"process": round(cpu_s / (end - begin) * 1e3, 2)},
    }


def _batches(path: Path, batch: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Ids, dense columns and labels; copied, as the file's memory is read-only."""
    for record in read_records(path, batch=batch):
        yield torch.tensor(record.ids), torch.tensor(record.dense), torch.tensor(record.label)


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
