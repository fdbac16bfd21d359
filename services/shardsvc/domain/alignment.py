"""How partitions of topics, and files beside them, advance together within a window. Pure."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from recmesh.data.records import TaskRecord, is_partition
from recmesh.formats import IntervalSet
from services.shardsvc.domain.line import Line

MOST_ROWS = 8192
"""Of a topic's task at most: its messages are read at once."""
LEAST_ROWS = 256
"""Where more are waiting."""
K = TypeVar("K")
Place = tuple[int, str]
"""A view, and a partition of its topic."""


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a job is behind a partition."""

    uri: str
    offset: int
    """Of the oldest message that is not trained."""
    end: int
    """One past the newest message."""
    lag_s: float
    """Age of the oldest message that is not trained; 0: there is none."""
    assigned: bool
    """Messages of it are on the line, held by workers or waiting for them."""


def shares(
    waiting: Mapping[K, int], weights: Mapping[K, float] | None = None, *, most: int = MOST_ROWS
) -> dict[K, int]:
    """How many messages of each partition are next: all in proportion to what waits, `most` of the longest.

    Partitions that were written over the same time so stay together in time, however uneven their traffic is. A few
    more of a short one than its part is better than tasks of a few messages. `weights`: one of weight 2 counts as if
    twice as many waited; 1 where none is given.
    """
    wanted = {key: count * (weights or {}).get(key, 1.0) for key, count in waiting.items() if count > 0}
    if not wanted:
        return {}
    longest = max(wanted, key=lambda key: wanted[key])
    most = min(most, waiting[longest])
    return {
        key: min(waiting[key], most, max(math.ceil(each / wanted[longest] * most), LEAST_ROWS))
        for key, each in wanted.items()
    }


def is_released(served: int, total: int, *, elapsed: float) -> bool:
    """Whether the next group of a window's files may be written, of whose bytes so many are written already.

    `elapsed`: the part of the window that the topics beside them have passed, 0 to 1: files and messages so advance
    over the same time of events, apart from one group.
    """
    return elapsed >= 1.0 or served <= elapsed * total


def trained_to(line: Line, position: int) -> dict[Place, int]:
    """By partition, the oldest offset that stands at a position from this one on; partitions without one are absent."""
    found: dict[Place, int] = {}
    for record in line.from_position(position):
        if record.base + record.rows > position and record.file is not None and is_partition(record.file.uri):
            place = record.file.view, record.file.uri
            if place not in found:
                found[place] = record.file.first_row + max(0, position - record.base)
    return found


def unfinished(line: Line, done: IntervalSet) -> dict[Place, int]:
    """By partition, where a reader goes on that has no more than `done`: at the first task that is not whole."""
    found: dict[Place, int] = {}
    for record in line.from_position(first_gap(done)):
        if record.file is not None and is_partition(record.file.uri) and not _is_whole(record, done):
            found.setdefault((record.file.view, record.file.uri), record.file.first_row)
    return found


def first_gap(done: IntervalSet) -> int:
    """The first position that is not done."""
    pairs = done.pairs()
    return pairs[0][1] if pairs and pairs[0][0] == 0 else 0


def _is_whole(record: TaskRecord, done: IntervalSet) -> bool:
    return not done.missing_within(record.base, record.base + record.rows)
