"""The compiled index: open addressing with linear probing, in partitions that grow one at a time.

An entry is two words: the id, and (table << 32 | place + 1), 0 when free; bit 31 says that the place is
among the table's candidates, not its rows. The hash is splitmix64(id XOR table_salt); its bits 42..51, just
below those that choose the slot, choose one of 1024 partitions, whose regions (a power of two of entries) lie
in one reserved arena. A partition that fills moves to a region of twice the size at the arena's end: the
longest pause is a few 1024ths of a rehash, as each grows at another fill, and few in one call.

An entry leaves by backward shift (Knuth, The Art of Computer Programming 3, 6.4, algorithm R): those behind
it move up, so that no tombstone is left. Tables that evict as fast as they grow would otherwise fill with
tombstones, lengthen each probe, and be rehashed for nothing.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from recmesh.store.arithmetic import mix64
from recmesh.store.jit import I64, U64, inline

PARTITIONS = 1024

# Places in `ctl` (int64): of the index arena, of the log of regions that a growth left, and how many more entries
# may be moved before it is urgent.
NEXT, CAPACITY, FREED, HASTE = range(4)

INDEX = (U64, I64)                             # arena, parts [3, PARTITIONS] flat: offset, mask, used
GROWING_INDEX = (U64, I64, I64, I64, U64)      # and ctl, freed, salts

ROW_MASK = np.uint64(0xFFFFFFFF)
CANDIDATE = 1 << 31
_PARTITION_SHIFT = np.uint64(42)
_PARTITION_MASK = np.uint64(PARTITIONS - 1)
_FREE, _ONE = np.uint64(0), np.uint64(1)
# Linear probing stays short up to 11/16. A partition p grows at (9 + 2p/PARTITIONS)/16: hashing fills all of them
# alike, so that with one bound for all dozens would grow in one push. When a call has moved enough, the next one
# goes on; at 12/16 it is urgent.
_LEAST_FULL, _FULL_RANGE, _FULL_UNIT = 9 * PARTITIONS, 2, 16 * PARTITIONS
_URGENT = 12 * PARTITIONS


def full_at(p: Any, size: Any) -> Any:
    """Entries beyond which partition p, of `size` places, grows."""
    return (_LEAST_FULL + _FULL_RANGE * p) * size // _FULL_UNIT


class Entries(NamedTuple):
    """The arrays of an index."""

    arena: NDArray[np.uint64]
    parts: NDArray[np.int64]
    ctl: NDArray[np.int64]
    freed: NDArray[np.int64]
    salts: NDArray[np.uint64]


@inline
def word_of(table: Any, place: Any) -> Any:
    """The second word of an entry; `place` as from `probe`."""
    return (table << np.uint64(32)) | np.uint64(place + 1)


@inline
def home(parts: NDArray[np.int64], h: Any) -> Any:
    """The entry where a probe for hash h begins."""
    p = (h >> _PARTITION_SHIFT) & _PARTITION_MASK
    return parts[p] + np.int64(h & np.uint64(parts[np.uint64(PARTITIONS) + p]))


@inline
def probe(arena: NDArray[np.uint64], parts: NDArray[np.int64], h: Any, id_: Any, table: Any) -> Any:
    """The place of (table, id), or -1; from CANDIDATE on, less CANDIDATE, among the candidates."""
    p = (h >> _PARTITION_SHIFT) & _PARTITION_MASK
    offset, mask = np.uint64(parts[p]), np.uint64(parts[np.uint64(PARTITIONS) + p])
    k = h & mask
    while True:
        at = (offset + k) << _ONE              # unsigned: a signed index costs a test for a negative one
        word = arena[at + _ONE]
        if word == _FREE:
            return -1
        if arena[at] == id_ and (word >> np.uint64(32)) == table:
            return np.int64(word & ROW_MASK) - 1
        k = (k + _ONE) & mask


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
def enter(entries: Entries, h: Any, id_: Any, word: Any) -> None:
    """Enter an id that is not in the index."""
    arena, parts = entries.arena, entries.parts
    p = np.int64((h >> _PARTITION_SHIFT) & _PARTITION_MASK)
    ctl, used, size = entries.ctl, _FULL_UNIT * (parts[2 * PARTITIONS + p] + 1), parts[PARTITIONS + p] + 1
    if used > (_LEAST_FULL + _FULL_RANGE * p) * size and (ctl[HASTE] > 0 or used > _URGENT * size):
        ctl[HASTE] -= size
        _grow(arena, parts, ctl, entries.freed, entries.salts, p)
    offset, mask = parts[p], parts[PARTITIONS + p]
    k = np.int64(h & np.uint64(0xFFFFFFFFFFF)) & mask
    while arena[2 * (offset + k) + 1] != _FREE:
        k = (k + 1) & mask
    arena[2 * (offset + k)] = id_
    arena[2 * (offset + k) + 1] = word
    parts[2 * PARTITIONS + p] += 1


@inline
def leave(arena: NDArray[np.uint64], parts: NDArray[np.int64], salts: NDArray[np.uint64], h: Any, id_: Any,
          table: Any) -> Any:
    """Take (table, id) out of the index; returns its place as `probe`, or -1 when it was not there."""
    p = np.int64((h >> _PARTITION_SHIFT) & _PARTITION_MASK)
    offset, mask = parts[p], parts[PARTITIONS + p]
    k = np.int64(h & np.uint64(0xFFFFFFFFFFF)) & mask
    while True:
        word = arena[2 * (offset + k) + 1]
        if word == _FREE:
            return -1
        if arena[2 * (offset + k)] == id_ and (word >> np.uint64(32)) == table:
            break
        k = (k + 1) & mask
    row = np.int64(word & ROW_MASK) - 1
    hole = k
    while True:
        k = (k + 1) & mask
        word = arena[2 * (offset + k) + 1]
        if word == _FREE:
            break
        other = mix64(arena[2 * (offset + k)] ^ salts[np.int64(word >> np.uint64(32))])
        first = np.int64(other & np.uint64(0xFFFFFFFFFFF)) & mask
        if ((k - first) & mask) >= ((k - hole) & mask):    # its probe passes the hole: it may move there
            arena[2 * (offset + hole)] = arena[2 * (offset + k)]
            arena[2 * (offset + hole) + 1] = word
            hole = k
    arena[2 * (offset + hole) + 1] = _FREE
    parts[2 * PARTITIONS + p] -= 1
    return row


@inline
def repoint(arena: NDArray[np.uint64], parts: NDArray[np.int64], h: Any, id_: Any, word: Any) -> None:
    """Another word, of the same table, for an id that is in the index."""
    p = np.int64((h >> _PARTITION_SHIFT) & _PARTITION_MASK)
    offset, mask = parts[p], parts[PARTITIONS + p]
    k = np.int64(h & np.uint64(0xFFFFFFFFFFF)) & mask
    while (arena[2 * (offset + k)] != id_
           or (arena[2 * (offset + k) + 1] >> np.uint64(32)) != (word >> np.uint64(32))):
        k = (k + 1) & mask
    arena[2 * (offset + k) + 1] = word
