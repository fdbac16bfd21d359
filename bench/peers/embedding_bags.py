"""Static tables beside the store: fbgemm's table-batched kernel, or torch's EmbeddingBag with sparse Adagrad.

Both know all their ids as row numbers from the start and keep whole tables; a step looks up a batch, one id per
table, and updates the rows from a gradient. Run with a task in JSON; answers in JSON.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from bench.store_load import BATCH, DIM, LR, TABLES, Load, measure


def fbgemm(rows: int) -> Callable[[torch.Tensor], None]:
    """Forward and the fused backward with exact Adagrad."""
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        SplitTableBatchedEmbeddingBagsCodegen,
    )

    module = SplitTableBatchedEmbeddingBagsCodegen(
        [(rows, DIM, EmbeddingLocation.HOST, ComputeDevice.CPU)] * TABLES, optimizer=EmbOptimType.EXACT_ADAGRAD,
        learning_rate=LR, eps=1e-8, pooling_mode=PoolingMode.SUM, device=torch.device("cpu"))
    offsets = torch.arange(TABLES * BATCH + 1)
    gradient = torch.full((BATCH, TABLES * DIM), 1e-3)

    def step(ids: torch.Tensor) -> None:
        module(ids.T.reshape(-1), offsets).backward(gradient)

    return step


def bags(rows: int) -> Callable[[torch.Tensor], None]:
    """One EmbeddingBag per table, sparse gradients, torch's Adagrad."""
    modules = [torch.nn.EmbeddingBag(rows, DIM, mode="sum", sparse=True) for _ in range(TABLES)]
    optimizer = torch.optim.Adagrad([module.weight for module in modules], lr=LR, eps=1e-8)
    offsets, gradient = torch.arange(BATCH), torch.full((BATCH, DIM), 1e-3)

    def step(ids: torch.Tensor) -> None:
        optimizer.zero_grad(set_to_none=True)
        for table, module in enumerate(modules):
            module(ids[:, table].contiguous(), offsets).backward(gradient)
        optimizer.step()

    return step


def main(task: dict[str, Any]) -> None:
    """Measure one of them."""
    torch.set_num_threads(1)
    load = Load(task["keys"], task["law"])
    step = {"fbgemm": fbgemm, "torch": bags}[task["kind"]](load.ids_per_table)
    batches = [torch.from_numpy(np.ascontiguousarray(batch)) for batch in load.batches()]
    print(json.dumps({"samples_per_cpu_s": measure(step, batches, window_s=task["window_s"],
                                                    cpu_s=time.process_time)}))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
