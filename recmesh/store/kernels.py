"""The compiled kernels of the store: one index for all tables, rows in slabs, fused optimizers.

**Index.** Open addressing with linear probing over entries of two words: the id, and (table << 32 | row + 1),
0 when free. The hash is splitmix64(id XOR table_salt); its bits 44..51, just below those that choose the
slot, choose one of 256 partitions, whose regions (a power of two of entries) lie in one reserved arena. A
partition that fills moves to a region of twice the size at the arena's end: the longest pause is one 256th of
a rehash.

**Row.** `width` float32 words: values [dim], optimizer state [k], padding, then a header of six words: id
(2), last step (2), own update count, frequency. One row is one run of memory, so that an update misses the
cache once, and a block of rows is copied whole, metadata and all.

**Copy on write.** While a snapshot is copied, `block_state[b]` says of each block of BLOCK rows whether it is
still to be copied (PENDING). The first update of a row in a pending block appends the row as it was to the
table's log, and enters its place in `saved`. Whole blocks are copied, but single rows are saved: a batch
touches a few rows of almost every block.

Ids arrive in blocks of LANE: hash all and prefetch the index, probe all and prefetch the rows, then work.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from recmesh.store.arithmetic import fill_initial, fill_state, mix64, update_rows
from recmesh.store.jit import (
    COUNTS,
    F32,
    F32_2D,
    GRADS,
    GRADS_2D,
    I64,
    IDS,
    INT,
    NONE,
    REAL,
    STEPS,
    U8,
    U32,
    U64,
    WORD,
    inline,
    kernel,
    prefetch,
)

PARTITIONS = 256
LANE = 32
BLOCK = 1024
BLOCK_BITS = 10
HEADER = 6
"""Words at a row's end: id, id, last step, last step, updates, frequency."""

COPIED, PENDING = range(2)

# Places in `ctl` (int64): of the index arena, and of the log of regions that a growth left.
NEXT, CAPACITY, FREED = range(3)
# Places in a table's `meta` (int64): rows there are, rows at the mark, rows saved in the log since.
ROWS, MARKED, SAVED = range(3)

_PARTITION_SHIFT = np.uint64(44)
_PARTITION_MASK = np.uint64(PARTITIONS - 1)
_ROW_MASK = np.uint64(0xFFFFFFFF)
_FREE = np.uint64(0)
_GROW_NUMERATOR, _GROW_DENOMINATOR = 5, 8     # linear probing stays short up to 5/8

_INDEX = (U64, I64)                            # arena, parts [3, 256] flat: offset, mask, used


@inline
def _home(parts: NDArray[np.int64], h: Any) -> Any:
    p = np.int64((h >> _PARTITION_SHIFT) & _PARTITION_MASK)
    return parts[p] + (np.int64(h & np.uint64(0xFFFFFFFFFFF)) & parts[PARTITIONS + p])


@inline
def _prefetch_words(slab: NDArray[np.float32], first: int, n: int) -> None:
    """All cache lines of n words; a line holds 16, and the first word may lie anywhere in one."""
    for k in range((n + 15) >> 4):
        prefetch(slab, first + 16 * k)
    prefetch(slab, first + n - 1)


@inline
def _probe(arena: NDArray[np.uint64], parts: NDArray[np.int64], h: Any, id_: Any, table: Any) -> Any:
    """The row of (table, id), or -1."""
    p = np.int64((h >> _PARTITION_SHIFT) & _PARTITION_MASK)
    offset, mask = parts[p], parts[PARTITIONS + p]
    k = np.int64(h & np.uint64(0xFFFFFFFFFFF)) & mask
    while True:
        word = arena[2 * (offset + k) + 1]
        if word == _FREE:
            return -1
        if arena[2 * (offset + k)] == id_ and (word >> np.uint64(32)) == table:
            return np.int64(word & _ROW_MASK) - 1
        k = (k + 1) & mask


@inline
def _grow(arena: NDArray[np.uint64], parts: NDArray[np.int64], ctl: NDArray[np.int64],
          freed: NDArray[np.int64], salts: NDArray[np.uint64], p: Any) -> None:
    """Move partition p to a region of twice its size; the caller checked that the arena has room."""
    old, size = parts[p], parts[PARTITIONS + p] + 1
    new, mask = ctl[NEXT], 2 * size - 1
    ctl[NEXT] += 2 * size
    for i in range(old, old + size):
        word = arena[2 * i + 1]
        if word != _FREE:
            id_ = arena[2 * i]
            h = mix64(id_ ^ salts[np.int64(word >> np.uint64(32))])
            k = np.int64(h & np.uint64(0xFFFFFFFFFFF)) & mask
            while arena[2 * (new + k) + 1] != _FREE:
                k = (k + 1) & mask
            arena[2 * (new + k)] = id_
            arena[2 * (new + k) + 1] = word
    parts[p], parts[PARTITIONS + p] = new, mask
    if 2 * ctl[FREED] + 1 < freed.size:        # a full log only keeps pages that could have been returned
        freed[2 * ctl[FREED]], freed[2 * ctl[FREED] + 1] = old, size
        ctl[FREED] += 1


@inline
def _enter(arena: NDArray[np.uint64], parts: NDArray[np.int64], ctl: NDArray[np.int64],
           freed: NDArray[np.int64], salts: NDArray[np.uint64], h: Any, id_: Any, word: Any) -> None:
    """Enter an id that is not in the index."""
    p = np.int64((h >> _PARTITION_SHIFT) & _PARTITION_MASK)
    if _GROW_DENOMINATOR * (parts[2 * PARTITIONS + p] + 1) > _GROW_NUMERATOR * (parts[PARTITIONS + p] + 1):
        _grow(arena, parts, ctl, freed, salts, p)
    offset, mask = parts[p], parts[PARTITIONS + p]
    k = np.int64(h & np.uint64(0xFFFFFFFFFFF)) & mask
    while arena[2 * (offset + k) + 1] != _FREE:
        k = (k + 1) & mask
    arena[2 * (offset + k)] = id_
    arena[2 * (offset + k) + 1] = word
    parts[2 * PARTITIONS + p] += 1


@inline
def _save_row(slab: NDArray[np.float32], log: NDArray[np.float32], saved: NDArray[np.uint32],
              meta: NDArray[np.int64], width: int, row: int) -> None:
    source = slab[row * width:(row + 1) * width]
    target = log[meta[SAVED] * width:(meta[SAVED] + 1) * width]
    for j in range(np.uint64(width)):
        target[j] = source[j]
    meta[SAVED] += 1
    saved[row] = np.uint32(meta[SAVED])


@kernel(INT, *_INDEX, IDS, WORD, WORD, F32, INT, F32, INT, INT, WORD, REAL)
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
            prefetch(arena, 2 * _home(parts, hashes[i]))
        for i in range(n):
            row = _probe(arena, parts, hashes[i], np.uint64(ids[lo + i]), table)
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


@kernel(INT, *_INDEX, I64, I64, U64, IDS, WORD, WORD, F32, F32, U32, U64, INT, INT,
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
            prefetch(arena, 2 * _home(parts, hashes[i]))
        for i in range(n):
            id_ = np.uint64(ids[lo + i])
            row = _probe(arena, parts, hashes[i], id_, table)
            if row < 0:
                row = meta[ROWS]
                meta[ROWS] += 1
                created += 1
                word = (table << np.uint64(32)) | np.uint64(row + 1)
                _enter(arena, parts, ctl, freed, salts, hashes[i], id_, word)
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
            if row < meta[MARKED] and block_state[row >> BLOCK_BITS] == PENDING and saved[row] == 0:
                _save_row(slab, log, saved, meta, width, row)
            start = row * width
            starts[i] = start
            steps[i] = np.int64(words[start + width - 2]) + 1
            words[start + width - 2] += np.uint32(1)
            words[start + width - 1] += counts[lo + i] if counts.size else np.uint32(1)
            longs[(start + width - HEADER) // 2 + 1] = step
        update_rows(kind, slab, starts, n, dim, grads, lo, steps, hyper, bias)
    return created


@kernel(INT, *_INDEX, I64, I64, U64, IDS, WORD, WORD, F32, U32, U64, INT, I64,
        GRADS_2D, GRADS_2D, COUNTS, COUNTS, STEPS)
def load(
    arena: NDArray[np.uint64], parts: NDArray[np.int64], ctl: NDArray[np.int64], freed: NDArray[np.int64],
    salts: NDArray[np.uint64], ids: NDArray[np.int64], table: Any, salt: Any,
    slab: NDArray[np.float32], words: NDArray[np.uint32], longs: NDArray[np.uint64], width: int,
    meta: NDArray[np.int64], values: NDArray[np.float32], states: NDArray[np.float32],
    updates: NDArray[np.uint32], frequency: NDArray[np.uint32], last_step: NDArray[np.uint64],
) -> int:
    """Rows as they were saved; returns the index of the first id that is there already, or -1."""
    dim, state_width = values.shape[1], states.shape[1]
    for i in range(ids.size):
        id_ = np.uint64(ids[i])
        h = mix64(id_ ^ salt)
        if _probe(arena, parts, h, id_, table) >= 0:
            return i
        row = meta[ROWS]
        meta[ROWS] += 1
        _enter(arena, parts, ctl, freed, salts, h, id_, (table << np.uint64(32)) | np.uint64(row + 1))
        start = row * width
        for j in range(dim):
            slab[start + j] = values[i, j]
        for j in range(state_width):
            slab[start + dim + j] = states[i, j]
        longs[(start + width - HEADER) // 2] = id_
        longs[(start + width - HEADER) // 2 + 1] = last_step[i]
        words[start + width - 2] = updates[i]
        words[start + width - 1] = frequency[i]
    return -1


@kernel(INT, F32, F32, U32, INT, I64, U8, INT, F32_2D)
def copy_block(
    slab: NDArray[np.float32], log: NDArray[np.float32], saved: NDArray[np.uint32], width: int,
    meta: NDArray[np.int64], block_state: NDArray[np.uint8], block: int, out: NDArray[np.float32],
) -> Any:
    """out := the rows of the block as they were at the mark; no update saves them from now on.

    Returns how many rows of the block there were.
    """
    lo = block * BLOCK
    hi = min(lo + BLOCK, meta[MARKED])
    for row in range(lo, hi):
        place = np.int64(saved[row])
        source = log[(place - 1) * width:place * width] if place else slab[row * width:(row + 1) * width]
        target = out[row - lo]
        for j in range(np.uint64(width)):
            target[j] = source[j]
    block_state[block] = COPIED
    return hi - lo


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
