"""Identities of ids and slots. A wire format: golden vectors hold every function here.

    slot = top 12 bits of splitmix64(id XOR splitmix64(fnv1a64(table name)))

Ids are int64 everywhere; arithmetic is on their uint64 view. A chunk of a dense block is placed like a row:
its id is the chunk number, its table the block's name.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

SLOTS = 4096
"""Slots that ids and dense chunks fall into; the unit of placement."""
SLOT_BITS = 12
CHUNK = 16_384
"""float32 values in one chunk of a dense block; the last chunk may be shorter."""

GOLDEN = 0x9E3779B97F4A7C15
"""2^64 / φ, the increment of SplitMix64."""
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_FNV_OFFSET = 0xCBF29CE484222325
_FNV_PRIME = 0x100000001B3
_MASK = (1 << 64) - 1


def splitmix64(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The first output of SplitMix64 seeded with each x (Steele, Lea, Flood 2014): a bijection of uint64."""
    with np.errstate(over="ignore"):
        z = np.asarray(x, dtype=np.uint64) + np.uint64(GOLDEN)
        z = (z ^ (z >> np.uint64(30))) * _MIX_1
        z = (z ^ (z >> np.uint64(27))) * _MIX_2
        mixed: NDArray[np.uint64] = z ^ (z >> np.uint64(31))
    return mixed


def mix(x: int) -> int:
    """splitmix64 of one Python integer, taken modulo 2^64."""
    return int(splitmix64(np.asarray([x & _MASK], dtype=np.uint64))[0])


def fnv1a64(text: bytes | str) -> int:
    """FNV-1a, 64 bits, of the bytes (UTF-8 of a string)."""
    value = _FNV_OFFSET
    for byte in text.encode() if isinstance(text, str) else text:
        value = ((value ^ byte) * _FNV_PRIME) & _MASK
    return value


def table_salt(name: str) -> int:
    """splitmix64(fnv1a64(name)): what is XORed into ids of this table or dense block."""
    return mix(fnv1a64(name))


def slots_of(ids: NDArray[np.int64], name: str) -> NDArray[np.uint16]:
    """The slot of each id of the named table (or chunk number of the named dense block)."""
    keys = np.ascontiguousarray(ids, dtype=np.int64).view(np.uint64) ^ np.uint64(table_salt(name))
    return (splitmix64(keys) >> np.uint64(64 - SLOT_BITS)).astype(np.uint16)


def chunk_count(size: int) -> int:
    """Chunks of a dense block with `size` values."""
    return -(-size // CHUNK)


def hash_strings(values: Any) -> NDArray[np.int64]:
    """Ids of categories given as strings: the int64 view of splitmix64(fnv1a64(utf8 bytes)).

    `values` is an Arrow array (string, large_string, binary, or a dictionary of them; chunked or not) or a
    sequence of str or None. What is missing has the id of the empty string.
    """
    from recmesh.formats.strings import fnv1a64_of_strings  # Arrow is slow to import; services never need it

    return splitmix64(fnv1a64_of_strings(values)).view(np.int64)


MISSING_ID = int(splitmix64(np.asarray([_FNV_OFFSET], dtype=np.uint64)).view(np.int64)[0])
"""The id of the empty string, and of a missing category of any type."""


def hash_strings_slowly(values: Sequence[str | None]) -> NDArray[np.int64]:
    """`hash_strings` by its definition, one string at a time: what tests compare with."""
    hashes = np.asarray([fnv1a64(value or "") for value in values], dtype=np.uint64)
    return splitmix64(hashes).view(np.int64)
