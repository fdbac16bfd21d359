"""The hot kernels of the store: look up and gather, look up and update, for pushes and pulls.

`probing` says how an id finds its row, `row_kernels` what a row is and how snapshots see it. Ids arrive in
blocks of LANE: hash all and prefetch the index, probe all and prefetch the rows, then work.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from recmesh.store.arithmetic import fill_initial, fill_state, mix64, update_rows
from recmesh.store.jit import (
    COUNTS,
    F32,
    GRADS,
    I64,
    IDS,
    INT,
    NONE,
    REAL,
    U8,
    U32,
    U64,
    WORD,
    inline,
    kernel,
    prefetch,
)
from recmesh.store.probing import GROWING_INDEX, INDEX, enter, home, probe
from recmesh.store.row_kernels import HEADER, ROWS, save_row

LANE = 32


@inline
def _prefetch_words(slab: NDArray[np.float32], first: int, n: int) -> None:
    """All cache lines of n words; a line holds 16, and the first word may lie anywhere in one."""
    for k in range((n + 15) >> 4):
        prefetch(slab, first + 16 * k)
    prefetch(slab, first + n - 1)


@kernel(INT, *INDEX, IDS, WORD, WORD, F32, INT, F32, INT, INT, WORD, REAL)
def gather(
    arena: NDArray[np.uint64], parts: NDArray[np.int64], ids: NDArray[np.int64], table: Any, salt: Any,
    slab: NDArray[np.float32], width: int, out: NDArray[np.float32],
    dim: int, initial: int, seed_salt: Any, scale: float,
) -> int:
    """out[i·dim:] := the values of ids[i], initial where absent; inserts nothing. Returns the absent."""
    absent = 0
    hashes = np.empty(LANE, np.uint64)
    rows = np.empty(LANE, np.int64)
    for lo in range(0, ids.size, LANE):
        n = min(LANE, ids.size - lo)
        for i in range(n):
            hashes[i] = mix64(np.uint64(ids[lo + i]) ^ salt)
            prefetch(arena, 2 * home(parts, hashes[i]))
        for i in range(n):
            row = probe(arena, parts, hashes[i], np.uint64(ids[lo + i]), table)
            rows[i] = row
            if row >= 0:
                _prefetch_words(slab, row * width, dim)
        missed = 0
        for i in range(n):
            if rows[i] < 0:
                missed += 1
            else:
                source = slab[rows[i] * width:rows[i] * width + dim]
                target = out[(lo + i) * dim:(lo + i) * dim + dim]
                for j in range(dim):
                    target[j] = source[j]
        if missed:
            absent += missed
            for i in range(n):
                if rows[i] < 0:
                    fill_initial(out[(lo + i) * dim:(lo + i) * dim + dim], np.uint64(ids[lo + i]), initial,
                                 seed_salt, scale)
    return absent


@kernel(INT, *GROWING_INDEX, IDS, WORD, WORD, F32, F32, U32, U64, INT, INT,
        INT, I64, U8, U32, GRADS, COUNTS, INT, F32, F32, WORD, INT, WORD, REAL)
def apply(
    arena: NDArray[np.uint64], parts: NDArray[np.int64], ctl: NDArray[np.int64], freed: NDArray[np.int64],
    salts: NDArray[np.uint64], ids: NDArray[np.int64], table: Any, salt: Any,
    slab: NDArray[np.float32], log: NDArray[np.float32], words: NDArray[np.uint32],
    longs: NDArray[np.uint64], width: int, dim: int, state_width: int, meta: NDArray[np.int64],
    block_state: NDArray[np.uint8], saved: NDArray[np.uint32], grads: NDArray[np.float32],
    counts: NDArray[np.uint32], kind: int, hyper: NDArray[np.float32], bias: NDArray[np.float32], step: Any,
    initial: int, seed_salt: Any, scale: float,
) -> int:
    """One optimizer step on the rows of ids, which are created where absent. Returns rows created.

    slab, words and longs are one memory. counts may be empty: each id occurred once.
    """
    created = 0
    hashes = np.empty(LANE, np.uint64)
    rows, starts, steps = np.empty(LANE, np.int64), np.empty(LANE, np.int64), np.empty(LANE, np.int64)
    for lo in range(0, ids.size, LANE):
        n = min(LANE, ids.size - lo)
        for i in range(n):
            hashes[i] = mix64(np.uint64(ids[lo + i]) ^ salt)
            prefetch(arena, 2 * home(parts, hashes[i]))
        for i in range(n):
            id_ = np.uint64(ids[lo + i])
            row = probe(arena, parts, hashes[i], id_, table)
            if row < 0:
                row = meta[ROWS]
                meta[ROWS] += 1
                created += 1
                word = (table << np.uint64(32)) | np.uint64(row + 1)
                enter(arena, parts, ctl, freed, salts, hashes[i], id_, word)
                start = row * width
                fill_initial(slab[start:start + dim], id_, initial, seed_salt, scale)
                fill_state(slab[start + dim:start + dim + state_width], kind, hyper)
                longs[(start + width - HEADER) // 2] = id_
                words[start + width - 2] = np.uint32(0)
                words[start + width - 1] = np.uint32(0)
            else:
                _prefetch_words(slab, row * width, width)
            rows[i] = row
        for i in range(n):
            row = rows[i]
            save_row(slab, log, meta, block_state, saved, width, row)
            start = row * width
            starts[i] = start
            steps[i] = np.int64(words[start + width - 2]) + 1
            words[start + width - 2] += np.uint32(1)
            words[start + width - 1] += counts[lo + i] if counts.size else np.uint32(1)
            longs[(start + width - HEADER) // 2 + 1] = step
        update_rows(kind, slab, starts, n, dim, grads, lo, steps, hyper, bias)
    return created


@kernel(NONE, INT, F32, INT, GRADS, INT, F32, F32)
def apply_dense(
    kind: int, cell: NDArray[np.float32], dim: int, grad: NDArray[np.float32], t: int,
    hyper: NDArray[np.float32], bias: NDArray[np.float32],
) -> None:
    """One optimizer step on a chunk of a dense block: cell holds dim values, and their state behind them."""
    starts, steps = np.zeros(1, np.int64), np.full(1, t, np.int64)
    update_rows(kind, cell, starts, 1, dim, grad, 0, steps, hyper, bias)


@kernel(NONE, F32, INT, F32)
def fill_dense_state(state: NDArray[np.float32], kind: int, hyper: NDArray[np.float32]) -> None:
    """Optimizer state of a chunk that was never updated."""
    fill_state(state, kind, hyper)


@kernel(INT, IDS, WORD, U8)
def first_foreign(ids: NDArray[np.int64], salt: Any, owned: NDArray[np.uint8]) -> int:
    """The index of the first id whose slot is not owned, or -1. owned: uint8 [SLOTS]."""
    for i in range(ids.size):
        if owned[np.int64(mix64(np.uint64(ids[i]) ^ salt) >> np.uint64(52))] == 0:
            return i
    return -1


@kernel(INT, IDS, WORD, U8, I64)
def select(ids: NDArray[np.int64], salt: Any, slots: NDArray[np.uint8], places: NDArray[np.int64]) -> int:
    """places[:n] := the indices of the ids whose slot is in the set; returns n."""
    n = 0
    for i in range(ids.size):
        if slots[np.int64(mix64(np.uint64(ids[i]) ^ salt) >> np.uint64(52))] != 0:
            places[n] = i
            n += 1
    return n
