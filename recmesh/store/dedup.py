"""What a worker does with ids before it pulls and with gradients before it pushes, outside the GIL."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from recmesh.formats import SlotMap, table_salt
from recmesh.store import batch_kernels


class Unique(NamedTuple):
    """Distinct ids in order of first occurrence."""

    ids: NDArray[np.int64]
    inverse: NDArray[np.int64]
    """ids[inverse] are the ids that were given."""
    counts: NDArray[np.uint32]


def dedup(ids: NDArray[np.int64]) -> Unique:
    """The distinct ids, where each occurrence went, and how often each occurred."""
    n = len(ids)
    size = 1 << max(4, (2 * n - 1).bit_length())
    unique, counts, inverse = np.empty(n, np.int64), np.empty(n, np.uint32), np.empty(n, np.int64)
    found = batch_kernels.dedup_into(np.ascontiguousarray(ids, np.int64), unique, counts, inverse,
                               np.empty(size, np.uint32), np.empty(size, np.uint64))
    return Unique(unique[:found], inverse, counts[:found])


def scatter_add(grads: NDArray[np.float32], inverse: NDArray[np.int64], *, rows: int) -> NDArray[np.float32]:
    """float32 [rows, dim]: the sum of the gradients of each row's occurrences."""
    out = np.zeros((rows, grads.shape[1]), np.float32)
    batch_kernels.scatter_add_into(np.ascontiguousarray(grads, np.float32), inverse, out)
    return out


def take_rows(rows: NDArray[np.float32], index: NDArray[np.int64]) -> NDArray[np.float32]:
    """rows[index]."""
    out = np.empty((len(index), rows.shape[1]), np.float32)
    batch_kernels.take_into(np.ascontiguousarray(rows, np.float32), index, out)
    return out


def split_by_owner(ids: NDArray[np.int64], table: str, slot_map: SlotMap) -> list[NDArray[np.int64]]:
    """For each PS of the map, the indices of the ids that it owns, ascending."""
    order, bounds = np.empty(len(ids), np.int64), np.empty(slot_map.n_ps + 1, np.int64)
    batch_kernels.split(np.ascontiguousarray(ids, np.int64), np.uint64(table_salt(table)), slot_map.owners,
                  order, bounds)
    return np.split(order, bounds[1:-1])
