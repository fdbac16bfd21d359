"""Rows in slabs, and the compiled kernels that take whole rows: fetch, put, remove, pick, copy.

**Row.** `width` float32 words: values [dim], optimizer state [k], padding, then a header of six words: id
(2), last step (2), own update count, frequency. One row is one run of memory, so that an update misses the
cache once, and a block of rows is copied whole, metadata and all.

**Places.** The rows are the places [0, rows): a new row takes the next place, and where one is removed the
last row takes its place. So there are no holes: memory returns to the system, every pass over the rows is
dense, and creation, which is hot, has no free list to ask. A row only ever moves down, hence a pass from the
last place to the first misses none.

**Copy on write.** While a snapshot is copied, `block_state[b]` says of each block of BLOCK places whether it
is still to be copied (PENDING). The first change of a place in a pending block, be it an update, a removal or
a move, appends what it held to the slab's log, and enters where in `saved`. So each place at or above the
number of rows, but below that at the mark, is saved already, and may be taken by a new row. Whole blocks are
copied, but single rows are saved: a batch touches a few rows of almost every block.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from recmesh.store.arithmetic import mix64
from recmesh.store.jit import COUNTS, F32, F32_2D, GRADS_2D, I64, IDS, INT, STEPS, U8, U32, U64, WORD, inline, kernel
from recmesh.store.probing import GROWING_INDEX, INDEX, enter, leave, probe, repoint

BLOCK = 1024
BLOCK_BITS = 10
HEADER = 6
"""Words at a row's end: id, id, last step, last step, updates, frequency."""

COPIED, PENDING = range(2)

# Places in a slab's `meta` (int64): rows there are, rows at the mark, places saved in the log since.
ROWS, MARKED, SAVED = range(3)

_LOG = (F32, I64, U8, U32)                     # log, meta, block_state, saved


@inline
def save_row(slab: NDArray[np.float32], log: NDArray[np.float32], meta: NDArray[np.int64],
             block_state: NDArray[np.uint8], saved: NDArray[np.uint32], width: int, row: int) -> None:
    """Keep what a snapshot still has to copy of this place, before it changes."""
    if row < meta[MARKED] and block_state[row >> BLOCK_BITS] == PENDING and saved[row] == 0:
        source = slab[row * width:(row + 1) * width]
        target = log[meta[SAVED] * width:(meta[SAVED] + 1) * width]
        for j in range(np.uint64(width)):
            target[j] = source[j]
        meta[SAVED] += 1
        saved[row] = np.uint32(meta[SAVED])


@kernel(INT, *INDEX, IDS, WORD, WORD, F32, INT, F32_2D)
def fetch(
    arena: NDArray[np.uint64], parts: NDArray[np.int64], ids: NDArray[np.int64], table: Any, salt: Any,
    slab: NDArray[np.float32], width: int, out: NDArray[np.float32],
) -> int:
    """out[:n] := the rows of those ids that exist, in the order of ids; returns n."""
    n = 0
    for i in range(ids.size):
        id_ = np.uint64(ids[i])
        row = probe(arena, parts, mix64(id_ ^ salt), id_, table)
        if row >= 0:
            source, target = slab[row * width:(row + 1) * width], out[n]
            for j in range(np.uint64(width)):
                target[j] = source[j]
            n += 1
    return n


@kernel(INT, *GROWING_INDEX, IDS, WORD, WORD, F32, U32, U64, INT, *_LOG,
        GRADS_2D, GRADS_2D, COUNTS, COUNTS, STEPS, INT)
def put(
    arena: NDArray[np.uint64], parts: NDArray[np.int64], ctl: NDArray[np.int64], freed: NDArray[np.int64],
    salts: NDArray[np.uint64], ids: NDArray[np.int64], table: Any, salt: Any,
    slab: NDArray[np.float32], words: NDArray[np.uint32], longs: NDArray[np.uint64], width: int,
    log: NDArray[np.float32], meta: NDArray[np.int64], block_state: NDArray[np.uint8],
    saved: NDArray[np.uint32], values: NDArray[np.float32], states: NDArray[np.float32],
    updates: NDArray[np.uint32], frequency: NDArray[np.uint32], last_step: NDArray[np.uint64], replace: int,
) -> int:
    """Rows as they are given. An id that is there already is replaced; without `replace` it ends the work.

    Returns the index of that id, or -1.
    """
    dim, state_width = values.shape[1], states.shape[1]
    for i in range(ids.size):
        id_ = np.uint64(ids[i])
        h = mix64(id_ ^ salt)
        row = probe(arena, parts, h, id_, table)
        if row < 0:
            row = meta[ROWS]
            meta[ROWS] += 1
            enter(arena, parts, ctl, freed, salts, h, id_, (table << np.uint64(32)) | np.uint64(row + 1))
        elif replace:
            save_row(slab, log, meta, block_state, saved, width, row)
        else:
            return i
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


@kernel(INT, *INDEX, U64, IDS, WORD, WORD, F32, U64, INT, *_LOG)
def remove(
    arena: NDArray[np.uint64], parts: NDArray[np.int64], salts: NDArray[np.uint64], ids: NDArray[np.int64],
    table: Any, salt: Any, slab: NDArray[np.float32], longs: NDArray[np.uint64], width: int,
    log: NDArray[np.float32], meta: NDArray[np.int64], block_state: NDArray[np.uint8],
    saved: NDArray[np.uint32],
) -> int:
    """The rows of those ids that exist are gone, and the last rows take their places; returns how many."""
    before = meta[ROWS]
    for i in range(ids.size):
        id_ = np.uint64(ids[i])
        row = leave(arena, parts, salts, mix64(id_ ^ salt), id_, table)
        if row < 0:
            continue
        last = meta[ROWS] - 1
        save_row(slab, log, meta, block_state, saved, width, row)
        save_row(slab, log, meta, block_state, saved, width, last)
        if row != last:
            source, target = slab[last * width:(last + 1) * width], slab[row * width:(row + 1) * width]
            for j in range(np.uint64(width)):
                target[j] = source[j]
            moved = longs[((row + 1) * width - HEADER) // 2]
            repoint(arena, parts, mix64(moved ^ salt), moved, (table << np.uint64(32)) | np.uint64(row + 1))
        meta[ROWS] = last
    return int(before - meta[ROWS])


@kernel(INT, F32, U64, INT, INT, INT, WORD, U8, F32_2D)
def pick(
    slab: NDArray[np.float32], longs: NDArray[np.uint64], width: int, lo: int, hi: int, salt: Any,
    slots: NDArray[np.uint8], out: NDArray[np.float32],
) -> int:
    """out[:n] := the rows at places [lo, hi) whose slot is in the set (uint8 [SLOTS]); returns n."""
    n = 0
    for row in range(lo, hi):
        id_ = longs[((row + 1) * width - HEADER) // 2]
        if slots[np.int64(mix64(id_ ^ salt) >> np.uint64(52))] != 0:
            source, target = slab[row * width:(row + 1) * width], out[n]
            for j in range(np.uint64(width)):
                target[j] = source[j]
            n += 1
    return n


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
