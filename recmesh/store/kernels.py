"""The hot kernels of the store: look up and gather, look up and update, for pushes and pulls.

`probing` says how an id finds its row, `row_kernels` what a row is and how snapshots see it. Ids arrive in
blocks of LANE: hash all and prefetch the index, probe all and prefetch the rows, then work.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from recmesh.store.arithmetic import fill_initial, fill_state, mix64, pack, unpack, update_rows
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
    WORD,
    inline,
    kernel,
    prefetch,
)
from recmesh.store.probing import CANDIDATE, GROWING_INDEX, INDEX, Entries, enter, home, probe, repoint, word_of
from recmesh.store.row_kernels import (
    BLOCK_BITS,
    CANDIDATE_WIDTH,
    HEADER,
    LAYOUT,
    MARKED,
    PENDING,
    ROWS,
    SLAB,
    START,
    Layout,
    Places,
    Start,
    begin_row,
    save_row,
    set_header,
    vacate,
    value_words,
)

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
    """out[i·dim:] := the values of ids[i], initial where absent or a candidate. Inserts nothing.

    Returns how many are absent or candidates.
    """
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
            if 0 <= row and row < CANDIDATE:
                _prefetch_words(slab, row * width, dim)
        missed = 0
        for i in range(n):
            if rows[i] < 0 or rows[i] >= CANDIDATE:
                missed += 1
            else:
                at, to = np.uint64(rows[i] * width), np.uint64((lo + i) * dim)
                for j in range(np.uint64(dim)):
                    out[to + j] = slab[at + j]
        if missed:
            absent += missed
            for i in range(n):
                if rows[i] < 0 or rows[i] >= CANDIDATE:
                    fill_initial(out[(lo + i) * dim:(lo + i) * dim + dim], np.uint64(ids[lo + i]), initial,
                                 seed_salt, scale)
    return absent


@kernel(INT, *INDEX, IDS, WORD, WORD, F32, U32, INT, F32, INT, INT, WORD, REAL)
def gather_half(
    arena: NDArray[np.uint64], parts: NDArray[np.int64], ids: NDArray[np.int64], table: Any, salt: Any,
    slab: NDArray[np.float32], words: NDArray[np.uint32], width: int, out: NDArray[np.float32],
    dim: int, initial: int, seed_salt: Any, scale: float,
) -> int:
    """`gather` where values are bfloat16; initial ones are rounded as a row would round them."""
    absent = 0
    packed = np.empty(dim, np.uint32)
    rows = np.empty(LANE, np.int64)
    for lo in range(0, ids.size, LANE):
        n = min(LANE, ids.size - lo)
        for i in range(n):
            id_ = np.uint64(ids[lo + i])
            rows[i] = probe(arena, parts, mix64(id_ ^ salt), id_, table)
            if 0 <= rows[i] and rows[i] < CANDIDATE:
                _prefetch_words(slab, rows[i] * width, (dim + 1) >> 1)
        for i in range(n):
            target = out[(lo + i) * dim:(lo + i) * dim + dim]
            if rows[i] < 0 or rows[i] >= CANDIDATE:
                absent += 1
                fill_initial(target, np.uint64(ids[lo + i]), initial, seed_salt, scale)
                pack(target, dim, packed, 0, np.uint64(0))
                unpack(packed, 0, dim, target)
            else:
                unpack(words, rows[i] * width, dim, target)
    return absent


@inline
def _meet(entries: Entries, rows: Places, candidates: Places, layout: Layout, start: Start, place: int, h: Any,
          id_: Any, count: Any, step: Any, table: Any, salt: Any, scratch: NDArray[np.float32]) -> Any:
    """An id that has no row yet: count it, or give it one when it is frequent enough; its row, or -1."""
    updates, frequency = np.uint32(0), np.uint32(0)
    if place >= 0:
        end = (place - CANDIDATE + 1) * CANDIDATE_WIDTH
        updates, frequency = candidates.words[end - 2], candidates.words[end - 1]
    if np.int64(frequency) + np.int64(count) < layout.min_frequency:
        if place < 0:
            place = candidates.meta[ROWS] + CANDIDATE
            candidates.meta[ROWS] += 1
            enter(entries, h, id_, word_of(table, place))
        save_row(candidates, CANDIDATE_WIDTH, place - CANDIDATE)
        set_header(candidates, CANDIDATE_WIDTH, place - CANDIDATE, id_, step, updates + np.uint32(1),
                   frequency + count)
        return -1
    row = rows.meta[ROWS]
    rows.meta[ROWS] += 1
    if place < 0:
        enter(entries, h, id_, word_of(table, row))
    else:
        repoint(entries.arena, entries.parts, h, id_, word_of(table, row))
        vacate(entries, candidates, CANDIDATE_WIDTH, place - CANDIDATE, table, salt, CANDIDATE)
    begin_row(rows, layout, start, row, id_, scratch)
    set_header(rows, layout.width, row, id_, step, updates, frequency)
    return row


@kernel(NONE, *GROWING_INDEX, *SLAB, *SLAB, *LAYOUT, *START, IDS, WORD, WORD, GRADS, COUNTS, F32, WORD)
def apply(
    arena: NDArray[np.uint64], parts: NDArray[np.int64], ctl: NDArray[np.int64], freed: NDArray[np.int64],
    salts: NDArray[np.uint64],
    floats: NDArray[np.float32], words: NDArray[np.uint32], longs: NDArray[np.uint64], log: NDArray[np.float32],
    meta: NDArray[np.int64], block_state: NDArray[np.uint8], saved: NDArray[np.uint32],
    c_floats: NDArray[np.float32], c_words: NDArray[np.uint32], c_longs: NDArray[np.uint64],
    c_log: NDArray[np.float32], c_meta: NDArray[np.int64], c_block_state: NDArray[np.uint8],
    c_saved: NDArray[np.uint32],
    width: int, dim: int, state_width: int, half: int, min_frequency: int,
    initial: int, seed_salt: Any, scale: float, kind: int, hyper: NDArray[np.float32],
    ids: NDArray[np.int64], table: Any, salt: Any, grads: NDArray[np.float32], counts: NDArray[np.uint32],
    bias: NDArray[np.float32], step: Any,
) -> None:
    """One optimizer step on the rows of ids, which are created where absent and frequent enough.

    grads: [ids · dim]. counts may be empty: each id occurred once.
    """
    entries = Entries(arena, parts, ctl, freed, salts)
    rows = Places(floats, words, longs, log, meta, block_state, saved)
    candidates = Places(c_floats, c_words, c_longs, c_log, c_meta, c_block_state, c_saved)
    layout = Layout(width, dim, state_width, half, min_frequency)
    start = Start(initial, seed_salt, scale, kind, hyper)
    packed = value_words(layout)
    unpacked = dim + state_width
    scratch = np.empty(LANE * unpacked if half else 0, np.float32)
    hashes = np.empty(LANE, np.uint64)
    found, sources = np.empty(LANE, np.int64), np.empty(LANE, np.int64)
    starts, steps = np.empty(LANE, np.int64), np.empty(LANE, np.int64)
    for lo in range(0, ids.size, LANE):
        n = min(LANE, ids.size - lo)
        for i in range(n):
            hashes[i] = mix64(np.uint64(ids[lo + i]) ^ salt)
            prefetch(arena, 2 * home(parts, hashes[i]))
        for i in range(n):
            id_ = np.uint64(ids[lo + i])
            place = probe(arena, parts, hashes[i], id_, table)
            if place < 0 or place >= CANDIDATE:
                count = counts[lo + i] if counts.size else np.uint32(1)
                place = _meet(entries, rows, candidates, layout, start, place, hashes[i], id_, count, step, table,
                              salt, scratch)
            else:
                _prefetch_words(floats, place * width, width)
            found[i] = place
        live = 0
        for i in range(n):
            row = found[i]
            if row < 0:
                continue
            # Checked here too: a call with tuples of arrays costs more than the check.
            if row < meta[MARKED] and block_state[row >> BLOCK_BITS] == PENDING and saved[row] == 0:
                save_row(rows, width, row)
            starts[live], sources[live] = row * width, lo + i
            end = np.uint64((row + 1) * width)     # unsigned: see `probe`
            steps[live] = np.int64(words[end - np.uint64(2)]) + 1
            words[end - np.uint64(2)] += np.uint32(1)
            words[end - np.uint64(1)] += counts[lo + i] if counts.size else np.uint32(1)
            longs[((end - np.uint64(HEADER)) >> np.uint64(1)) + np.uint64(1)] = step
            live += 1
        if not half:
            update_rows(kind, floats, starts, live, dim, grads, sources, steps, hyper, bias)
            continue
        for i in range(live):
            found[i], starts[i] = starts[i], i * unpacked
            unpack(words, found[i], dim, scratch[starts[i]:starts[i] + dim])
            for j in range(state_width):
                scratch[starts[i] + dim + j] = floats[found[i] + packed + j]
        update_rows(kind, scratch, starts, live, dim, grads, sources, steps, hyper, bias)
        for i in range(live):
            noise = mix64(mix64(np.uint64(ids[sources[i]]) ^ salt) + np.uint64(steps[i])) | np.uint64(1)
            pack(scratch[starts[i]:starts[i] + dim], dim, words, found[i], noise)
            for j in range(state_width):
                floats[found[i] + packed + j] = scratch[starts[i] + dim + j]


@kernel(NONE, INT, F32, INT, GRADS, INT, F32, F32)
def apply_dense(
    kind: int, cell: NDArray[np.float32], dim: int, grad: NDArray[np.float32], t: int,
    hyper: NDArray[np.float32], bias: NDArray[np.float32],
) -> None:
    """One optimizer step on a chunk of a dense block: cell holds dim values, and their state behind them."""
    starts, steps = np.zeros(1, np.int64), np.full(1, t, np.int64)
    update_rows(kind, cell, starts, 1, dim, grad, np.zeros(1, np.int64), steps, hyper, bias)


@kernel(NONE, F32, INT, F32)
def fill_dense_state(state: NDArray[np.float32], kind: int, hyper: NDArray[np.float32]) -> None:
    """Optimizer state of a chunk that was never updated."""
    fill_state(state, kind, hyper)


@kernel(INT, IDS, WORD, U8, U32)
def first_foreign(
    ids: NDArray[np.int64], salt: Any, owned: NDArray[np.uint8], asked: NDArray[np.uint32]
) -> int:
    """The index of the first id whose slot is not owned, or -1; counts the ids before it by slot.

    owned: uint8 [SLOTS]. asked: uint32 [SLOTS]; threads that count at once may lose some.
    """
    for i in range(ids.size):
        slot = np.int64(mix64(np.uint64(ids[i]) ^ salt) >> np.uint64(52))
        if owned[slot] == 0:
            return i
        asked[slot] += np.uint32(1)
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
