"""Windows of time: which ones a dataset of streams has, in which order, and where each source's files of one lie."""

import heapq
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import chain
from typing import NamedTuple

from recmesh.spec.dataset import DatasetSpec, Stream, StreamSource


class Turn(NamedTuple):
    """A window of a stream."""

    begin: int
    """Unix seconds."""
    stream: int

    def __str__(self) -> str:
        return f"stream {self.stream}, window {shown(self.begin)}"


def turns(spec: DatasetSpec, *, after: Turn | None = None) -> Iterator[Turn]:
    """The windows of all streams in the order in which they are served; endless where a stream is.

    One stream after another, or, of streams that are served together, by their begin and then by the stream.
    """
    each = [_turns_of(spec, stream, after) for stream in range(len(spec.streams))]
    return heapq.merge(*each) if spec.together else chain(*each)


def _turns_of(spec: DatasetSpec, stream: int, after: Turn | None) -> Iterator[Turn]:
    for begin in begins(spec.streams[stream], after=_from(spec, stream, after)):
        yield Turn(begin, stream)


def _from(spec: DatasetSpec, stream: int, after: Turn | None) -> float | None:
    """The last begin of this stream that was served, when the turn before this one was `after`."""
    if after is None:
        return None
    if spec.together:
        return after.begin if stream <= after.stream else after.begin - 1
    return after.begin if stream == after.stream else float("inf") if stream < after.stream else None


def begins(stream: Stream, *, after: float | None = None) -> Iterator[int]:
    """When the windows of a stream begin: from the first in which a source has data to the last."""
    step = int(stream.window)
    first = min(_first(source, step) for source in stream.sources)
    ends = [source.end + source.offset for source in stream.sources if source.end is not None]
    end = max(ends) if len(ends) == len(stream.sources) else float("inf")
    if after is not None:
        if after >= end:
            return
        first = max(first, int(after // step + 1) * step)
    while first < end:
        yield first
        first += step


def active(stream: Stream, begin: int) -> list[int]:
    """The sources that have data in the window."""
    step = int(stream.window)
    return [
        index for index, source in enumerate(stream.sources)
        if _first(source, step) <= begin and (source.end is None or begin < source.end + source.offset)
    ]


def _first(source: StreamSource, step: int) -> int:
    return int((source.begin + source.offset) // step) * step


def filled(pattern: str, begin: float) -> str:
    """The path with the parts of the moment, in UTC."""
    at = datetime.fromtimestamp(begin, UTC)
    for field, text in (
        ("{YYYY}", f"{at:%Y}"), ("{MM}", f"{at:%m}"), ("{DD}", f"{at:%d}"), ("{HH}", f"{at:%H}"), ("{mm}", f"{at:%M}"),
    ):
        pattern = pattern.replace(field, text)
    return pattern


def shown(begin: float) -> str:
    """A moment as people write it."""
    return f"{datetime.fromtimestamp(begin, UTC):%Y-%m-%dT%H:%MZ}"
