"""The store: embedding tables that grow with their ids, dense blocks, and optimizers fused into the update.

`Store` holds them in one process. `dedup`, `scatter_add`, `take_rows` and `split_by_owner` are the worker's
side. All kernels run outside the GIL; `python -m recmesh.store.warm` compiles them ahead.
"""

from recmesh.store.dedup import Unique, dedup, scatter_add, split_by_owner, take_rows
from recmesh.store.dense import DenseRecord
from recmesh.store.schema import DenseSchema, Init, Optimizer, TableSchema
from recmesh.store.store import Store
from recmesh.store.table import RowBlock, candidates

__all__ = [
    "DenseRecord",
    "DenseSchema",
    "Init",
    "Optimizer",
    "RowBlock",
    "Store",
    "TableSchema",
    "Unique",
    "candidates",
    "dedup",
    "scatter_add",
    "split_by_owner",
    "take_rows",
]
