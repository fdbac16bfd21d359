"""Formats that outlive a process: identities on the wire, sets of positions, initial values, snapshots.

Nothing here does I/O but `recmesh.formats.snapshot` and `inhand`; all that a saved model consists of is held by golden
vectors, because a changed bit would scatter it.
"""

from recmesh.formats.hashing import (
    CHUNK,
    MISSING_ID,
    SLOTS,
    chunk_count,
    fnv1a64,
    hash_strings,
    mix,
    slots_of,
    splitmix64,
    table_salt,
)
from recmesh.formats.initial import initial_rows
from recmesh.formats.intervals import IntervalSet, Ledger
from recmesh.formats.permutation import permutation
from recmesh.formats.slotmap import SlotMap, SlotMask

__all__ = [
    "CHUNK",
    "MISSING_ID",
    "SLOTS",
    "IntervalSet",
    "Ledger",
    "SlotMap",
    "SlotMask",
    "chunk_count",
    "fnv1a64",
    "hash_strings",
    "initial_rows",
    "mix",
    "permutation",
    "slots_of",
    "splitmix64",
    "table_salt",
]
