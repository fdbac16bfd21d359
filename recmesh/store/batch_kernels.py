"""The worker's compiled kernels: distinct ids, who owns them, sums of gradients. No state."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from recmesh.store.arithmetic import mix64
from recmesh.store.jit import F32_2D, GRADS_2D, I64, IDS, INT, NONE, OWNERS, U32, U64, WORD, kernel


@kernel(NONE, IDS, WORD, OWNERS, I64, I64)
def split(
    ids: NDArray[np.int64], salt: Any, owners: NDArray[np.uint16], order: NDArray[np.int64],
    bounds: NDArray[np.int64],
) -> None:
    """order[bounds[p]:bounds[p+1]] := the indices of ids that PS p owns, ascending. bounds has n_ps + 1."""
    owner = np.empty(ids.size, np.uint16)
    bounds[:] = 0
    for i in range(ids.size):
        p = owners[np.int64(mix64(np.uint64(ids[i]) ^ salt) >> np.uint64(52))]
        owner[i] = p
        bounds[np.int64(p) + 1] += 1
    for p in range(1, bounds.size):
        bounds[p] += bounds[p - 1]
    place = bounds[:-1].copy()
    for i in range(ids.size):
        p = np.int64(owner[i])
        order[place[p]] = i
        place[p] += 1


@kernel(INT, IDS, I64, U32, I64, U32, U64)
def dedup_into(
    ids: NDArray[np.int64], unique: NDArray[np.int64], counts: NDArray[np.uint32],
    inverse: NDArray[np.int64], heads: NDArray[np.uint32], keys: NDArray[np.uint64],
) -> int:
    """unique := ids in order of first occurrence, inverse and counts to match; returns how many.

    heads and keys (a power of two of at least twice the ids) are scratch: a head is a unique index + 1.
    """
    mask = np.uint64(heads.size - 1)
    heads[:] = 0
    n = 0
    for i in range(ids.size):
        id_ = np.uint64(ids[i])
        k = mix64(id_) & mask
        while True:
            head = heads[k]
            if head == 0:
                n += 1
                heads[k] = n
                keys[k] = id_
                unique[n - 1] = ids[i]
                counts[n - 1] = 1
                inverse[i] = n - 1
                break
            if keys[k] == id_:
                counts[np.uint64(head) - np.uint64(1)] += np.uint32(1)
                inverse[i] = np.int64(head) - 1
                break
            k = (k + np.uint64(1)) & mask
    return n


@kernel(NONE, GRADS_2D, IDS, F32_2D)
def scatter_add_into(
    grads: NDArray[np.float32], inverse: NDArray[np.int64], out: NDArray[np.float32]
) -> None:
    """out[inverse[i]] += grads[i]; out is not cleared first."""
    for i in range(inverse.size):
        target, source = out[inverse[i]], grads[i]
        for j in range(np.uint64(target.size)):
            target[j] += source[j]


@kernel(NONE, GRADS_2D, IDS, F32_2D)
def take_into(rows: NDArray[np.float32], index: NDArray[np.int64], out: NDArray[np.float32]) -> None:
    """out[i] := rows[index[i]]."""
    for i in range(index.size):
        target, source = out[i], rows[index[i]]
        for j in range(np.uint64(target.size)):
            target[j] = source[j]
