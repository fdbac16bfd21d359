"""Which partition a key belongs to: the same as nats-server's own `{{partition(N,1)}}` of a subject mapping."""

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

_OFFSET, _PRIME = 0x811C9DC5, 0x01000193


def fnv1a32(key: bytes) -> int:
    """FNV-1a, 32 bits."""
    value = _OFFSET
    for byte in key:
        value = (value ^ byte) * _PRIME & 0xFFFFFFFF
    return value


def partitions_of(keys: Any, count: int) -> NDArray[np.int64]:
    """[rows]: FNV-1a of each key's text, UTF-8, modulo the number of partitions.

    `keys` is an Arrow array; numbers are taken as they are written in decimal, a missing key is the empty text. Each
    different key is hashed once, all of them byte by byte together.
    """
    if isinstance(keys, pa.ChunkedArray):
        keys = keys.combine_chunks()
    if pa.types.is_dictionary(keys.type):
        keys = keys.dictionary_decode()
    encoded = keys.cast(pa.large_string()).fill_null("").dictionary_encode()
    offsets, data = _texts(encoded.dictionary)
    lengths = np.diff(offsets)
    value = np.full(len(lengths), _OFFSET, np.uint32)
    for place in range(int(lengths.max(initial=0))):
        longer = np.flatnonzero(lengths > place)
        value[longer] = (value[longer] ^ data[offsets[longer] + place]) * np.uint32(_PRIME)
    indices = encoded.indices.to_numpy(zero_copy_only=False)
    found: NDArray[np.int64] = (value % np.uint32(count)).astype(np.int64)[indices]
    return found


def _texts(texts: Any) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Offsets [n + 1] and bytes of an array of large strings."""
    _, offsets, data = texts.buffers()
    known = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    return known, np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
