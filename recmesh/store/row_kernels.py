"""Rows in slabs, and the compiled kernels that take whole rows: fetch, put, remove, pick, copy, overdue.

**Row.** `width` float32 words: values [dim], optimizer state [k], padding, then a header of six words: id
(2), last step (2), own update count, frequency. One row is one run of memory, so that an update misses the
cache once, and a block of rows is copied whole, metadata and all.

Values are float32, or (`half`) bfloat16, two in a word. Optimizer state is float32 always: sums of squares
in eight bits would stop to grow.

**Candidates.** An id whose frequency is below its table's minimum has no row but a place in a second slab,
whose rows are headers. To every reader it is a row of initial values and fresh state; `put` turns such rows
back into candidates, so neither snapshots nor moves know of them.

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

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from recmesh.store.arithmetic import bits_of, fill_initial, fill_state, mix64, pack, unpack
from recmesh.store.jit import (
    COUNTS,
    F32,
    F32_2D,
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
)
from recmesh.store.probing import CANDIDATE, GROWING_INDEX, INDEX, Entries, enter, leave, probe, repoint, word_of

BLOCK = 1024
BLOCK_BITS = 10
HEADER = 6
"""Words at a row's end: id, id, last step, last step, updates, frequency."""
CANDIDATE_WIDTH = 8
"""Words of a candidate: a header, from an even word on."""

COPIED, PENDING = range(2)

# Places in a slab's `meta` (int64): rows there are, rows at the mark, places saved in the log since.
ROWS, MARKED, SAVED = range(3)

SLAB = (F32, U32, U64, F32, I64, U8, U32)      # the fields of `Places`
LAYOUT = (INT, INT, INT, INT, INT)             # of `Layout`
START = (INT, WORD, REAL, INT, F32)            # of `Start`


class Places(NamedTuple):
    """The arrays of a slab; floats, words and longs are one memory."""

    floats: NDArray[np.float32]
    words: NDArray[np.uint32]
    longs: NDArray[np.uint64]
    log: NDArray[np.float32]
    meta: NDArray[np.int64]
    block_state: NDArray[np.uint8]
    saved: NDArray[np.uint32]


class Layout(NamedTuple):
    """Where things are in a row, and from which frequency on an id has one."""

    width: int
    dim: int
    state_width: int
    half: int
    min_frequency: int


class Start(NamedTuple):
    """What a row begins with: see `fill_initial` and `fill_state`."""

    initial: int
    seed_salt: Any
    scale: float
    kind: int
    hyper: NDArray[np.float32]


@inline
def value_words(layout: Layout) -> Any:
    """Words that a row's values take."""
    return (layout.dim + 1) >> 1 if layout.half else layout.dim


@inline
def save_row(places: Places, width: int, row: int) -> None:
    """Keep what a snapshot still has to copy of this place, before it changes."""
    meta = places.meta
    if row < meta[MARKED] and places.block_state[row >> BLOCK_BITS] == PENDING and places.saved[row] == 0:
        source = places.floats[row * width:(row + 1) * width]
        target = places.log[meta[SAVED] * width:(meta[SAVED] + 1) * width]
        for j in range(np.uint64(width)):
            target[j] = source[j]
        meta[SAVED] += 1
        places.saved[row] = np.uint32(meta[SAVED])


@inline
def vacate(entries: Entries, places: Places, width: int, row: int, table: Any, salt: Any, base: Any) -> None:
    """The place is free, and the last row takes it. `base`: CANDIDATE among the candidates, else 0."""
    last = places.meta[ROWS] - 1
    save_row(places, width, row)
    save_row(places, width, last)
    if row != last:
        source = places.floats[last * width:(last + 1) * width]
        target = places.floats[row * width:(row + 1) * width]
        for j in range(np.uint64(width)):
            target[j] = source[j]
        moved = places.longs[((row + 1) * width - HEADER) // 2]
        repoint(entries.arena, entries.parts, mix64(moved ^ salt), moved, word_of(table, row + base))
    places.meta[ROWS] = last


@inline
def set_header(places: Places, width: int, row: int, id_: Any, step: Any, updates: Any, frequency: Any) -> None:
    """What is known of a row beside its values and state."""
    end = (row + 1) * width
    places.longs[(end - HEADER) // 2] = id_
    places.longs[(end - HEADER) // 2 + 1] = step
    places.words[end - 2] = updates
    places.words[end - 1] = frequency


@inline
def begin_row(places: Places, layout: Layout, start: Start, row: int, id_: Any, scratch: NDArray[np.float32]) -> None:
    """Initial values and fresh state. scratch: [dim], for bfloat16 only."""
    at, words = row * layout.width, value_words(layout)
    if layout.half:
        fill_initial(scratch[:layout.dim], id_, start.initial, start.seed_salt, start.scale)
        pack(scratch, layout.dim, places.words, at, np.uint64(0))
    else:
        fill_initial(places.floats[at:at + words], id_, start.initial, start.seed_salt, start.scale)
    fill_state(places.floats[at + words:at + words + layout.state_width], start.kind, start.hyper)


@inline
def _copy_row(source: NDArray[np.float32], width: int, row: int, target: NDArray[np.float32]) -> None:
    values = source[row * width:(row + 1) * width]
    for j in range(np.uint64(width)):
        target[j] = values[j]


@kernel(NONE, *INDEX, IDS, WORD, WORD, F32, F32, INT, F32_2D, F32_2D, I64)
def fetch(
    arena: NDArray[np.uint64], parts: NDArray[np.int64], ids: NDArray[np.int64], table: Any, salt: Any,
    rows: NDArray[np.float32], candidates: NDArray[np.float32], width: int, out: NDArray[np.float32],
    out_candidates: NDArray[np.float32], found: NDArray[np.int64],
) -> None:
    """out, out_candidates := the rows of those ids that exist, behind the found [2] there are; found grows."""
    for i in range(ids.size):
        id_ = np.uint64(ids[i])
        place = probe(arena, parts, mix64(id_ ^ salt), id_, table)
        if place >= CANDIDATE:
            _copy_row(candidates, CANDIDATE_WIDTH, place - CANDIDATE, out_candidates[found[1]])
            found[1] += 1
        elif place >= 0:
            _copy_row(rows, width, place, out[found[0]])
            found[0] += 1


@inline
def _never_trained(values: NDArray[np.float32], state: NDArray[np.float32], layout: Layout, start: Start, id_: Any,
                   scratch: NDArray[np.float32], words: NDArray[np.uint32]) -> bool:
    """Whether values and state are what the row begins with. scratch, words: [dim + state_width]."""
    dim = layout.dim
    fill_initial(scratch[:dim], id_, start.initial, start.seed_salt, start.scale)
    if layout.half:
        pack(scratch, dim, words, 0, np.uint64(0))
        unpack(words, 0, dim, scratch)
    fill_state(scratch[dim:dim + layout.state_width], start.kind, start.hyper)
    for j in range(dim):
        if bits_of(scratch[j]) != bits_of(values[j]):
            return False
    for j in range(layout.state_width):
        if bits_of(scratch[dim + j]) != bits_of(state[j]):
            return False
    return True


@kernel(INT, *GROWING_INDEX, *SLAB, *SLAB, *LAYOUT, *START, IDS, WORD, WORD,
        GRADS_2D, GRADS_2D, COUNTS, COUNTS, STEPS, INT)
def put(
    arena: NDArray[np.uint64], parts: NDArray[np.int64], ctl: NDArray[np.int64], freed: NDArray[np.int64],
    salts: NDArray[np.uint64],
    floats: NDArray[np.float32], words: NDArray[np.uint32], longs: NDArray[np.uint64], log: NDArray[np.float32],
    meta: NDArray[np.int64], block_state: NDArray[np.uint8], saved: NDArray[np.uint32],
    c_floats: NDArray[np.float32], c_words: NDArray[np.uint32], c_longs: NDArray[np.uint64],
    c_log: NDArray[np.float32], c_meta: NDArray[np.int64], c_block_state: NDArray[np.uint8],
    c_saved: NDArray[np.uint32],
    width: int, dim: int, state_width: int, half: int, min_frequency: int,
    initial: int, seed_salt: Any, scale: float, kind: int, hyper: NDArray[np.float32],
    ids: NDArray[np.int64], table: Any, salt: Any, values: NDArray[np.float32], states: NDArray[np.float32],
    updates: NDArray[np.uint32], frequency: NDArray[np.uint32], last_step: NDArray[np.uint64], replace: int,
) -> int:
    """Rows as they are given. An id that is there already is replaced; without `replace` it ends the work.

    Returns the index of that id, or -1. What is rarer than the minimum and was never trained is a candidate.
    """
    entries = Entries(arena, parts, ctl, freed, salts)
    rows = Places(floats, words, longs, log, meta, block_state, saved)
    candidates = Places(c_floats, c_words, c_longs, c_log, c_meta, c_block_state, c_saved)
    layout = Layout(width, dim, state_width, half, min_frequency)
    start = Start(initial, seed_salt, scale, kind, hyper)
    scratch, packed = np.empty(dim + state_width, np.float32), np.empty(dim + state_width, np.uint32)
    for i in range(ids.size):
        id_ = np.uint64(ids[i])
        h = mix64(id_ ^ salt)
        place = probe(arena, parts, h, id_, table)
        if place >= 0 and not replace:
            return i
        rare = np.int64(frequency[i]) < min_frequency and _never_trained(
            values[i], states[i], layout, start, id_, scratch, packed)
        if place >= CANDIDATE and not rare:
            leave(arena, parts, salts, h, id_, table)
            vacate(entries, candidates, CANDIDATE_WIDTH, place - CANDIDATE, table, salt, CANDIDATE)
            place = -1
        elif 0 <= place and place < CANDIDATE and rare:
            leave(arena, parts, salts, h, id_, table)
            vacate(entries, rows, width, place, table, salt, 0)
            place = -1
        if rare:
            if place < 0:
                place = c_meta[ROWS] + CANDIDATE
                c_meta[ROWS] += 1
                enter(entries, h, id_, word_of(table, place))
            save_row(candidates, CANDIDATE_WIDTH, place - CANDIDATE)
            set_header(candidates, CANDIDATE_WIDTH, place - CANDIDATE, id_, last_step[i], updates[i], frequency[i])
            continue
        if place < 0:
            place = meta[ROWS]
            meta[ROWS] += 1
            enter(entries, h, id_, word_of(table, place))
        save_row(rows, width, place)
        at = place * width
        if half:
            pack(values[i], dim, words, at, np.uint64(0))
        else:
            for j in range(dim):
                floats[at + j] = values[i, j]
        at += value_words(layout)
        for j in range(state_width):
            floats[at + j] = states[i, j]
        set_header(rows, width, place, id_, last_step[i], updates[i], frequency[i])
    return -1


@kernel(INT, *GROWING_INDEX, *SLAB, *SLAB, INT, IDS, WORD, WORD)
def remove(
    arena: NDArray[np.uint64], parts: NDArray[np.int64], ctl: NDArray[np.int64], freed: NDArray[np.int64],
    salts: NDArray[np.uint64],
    floats: NDArray[np.float32], words: NDArray[np.uint32], longs: NDArray[np.uint64], log: NDArray[np.float32],
    meta: NDArray[np.int64], block_state: NDArray[np.uint8], saved: NDArray[np.uint32],
    c_floats: NDArray[np.float32], c_words: NDArray[np.uint32], c_longs: NDArray[np.uint64],
    c_log: NDArray[np.float32], c_meta: NDArray[np.int64], c_block_state: NDArray[np.uint8],
    c_saved: NDArray[np.uint32], width: int, ids: NDArray[np.int64], table: Any, salt: Any,
) -> int:
    """The rows of those ids that exist are gone, and the last rows take their places; returns how many."""
    entries = Entries(arena, parts, ctl, freed, salts)
    rows = Places(floats, words, longs, log, meta, block_state, saved)
    candidates = Places(c_floats, c_words, c_longs, c_log, c_meta, c_block_state, c_saved)
    removed = 0
    for i in range(ids.size):
        id_ = np.uint64(ids[i])
        place = leave(arena, parts, salts, mix64(id_ ^ salt), id_, table)
        if place >= CANDIDATE:
            vacate(entries, candidates, CANDIDATE_WIDTH, place - CANDIDATE, table, salt, CANDIDATE)
        elif place >= 0:
            vacate(entries, rows, width, place, table, salt, 0)
        removed += place >= 0
    return removed


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
            _copy_row(slab, width, row, out[n])
            n += 1
    return n


@kernel(INT, U64, U32, INT, INT, INT, WORD, U8, INT, INT, INT, INT, I64, U32, I64)
def overdue(
    longs: NDArray[np.uint64], words: NDArray[np.uint32], width: int, lo: int, hi: int, salt: Any,
    slots: NDArray[np.uint8], now: int, ttl: int, rare: int, rare_limit: int, ids: NDArray[np.int64],
    updates: NDArray[np.uint32], stopped: NDArray[np.int64],
) -> int:
    """Ids (and their updates) of rows to evict, at places from hi - 1 down to lo, in these slots; returns n.

    These are the rows not updated in the last `ttl` steps before `now` (0: no matter), and at most
    `rare_limit` others of a frequency up to `rare`, but none that this very step updated. stopped[0] := the
    last place looked at: ids may be full before lo.
    """
    n = others = 0
    row = hi
    while row > lo and n < ids.size:
        row -= 1
        end = (row + 1) * width
        age = now - np.int64(longs[(end - HEADER) // 2 + 1])
        expired = ttl > 0 and age >= ttl
        if expired or (others < rare_limit and age > 0 and np.int64(words[end - 1]) <= rare):
            id_ = longs[(end - HEADER) // 2]
            if slots[np.int64(mix64(id_ ^ salt) >> np.uint64(52))] != 0:
                ids[n], updates[n] = np.int64(id_), words[end - 2]
                n += 1
                others += not expired
    stopped[0] = row
    return n


@kernel(NONE, IDS, *LAYOUT, *START, F32_2D, F32_2D)
def fill_rows(
    ids: NDArray[np.int64], width: int, dim: int, state_width: int, half: int, min_frequency: int,
    initial: int, seed_salt: Any, scale: float, kind: int, hyper: NDArray[np.float32],
    values: NDArray[np.float32], state: NDArray[np.float32],
) -> None:
    """values [ids, dim], state [ids, state_width] := what the rows of these ids begin with."""
    packed = np.empty(dim, np.uint32)
    for i in range(ids.size):
        fill_initial(values[i], np.uint64(ids[i]), initial, seed_salt, scale)
        if half:
            pack(values[i], dim, packed, 0, np.uint64(0))
            unpack(packed, 0, dim, values[i])
        fill_state(state[i], kind, hyper)


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
