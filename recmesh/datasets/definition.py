"""Streams of windows as Python writes them: the same as `streams` of a dataset's YAML."""

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Any, Literal, Self

When = str | float | date | datetime
"""A moment: ISO 8601, unix seconds, or Python's own; in UTC where none says otherwise."""


class Source:
    """A period of data in one store."""

    def __init__(self, mapping: Mapping[str, Any]) -> None:
        """Fields as of `StreamSource`; `Source.files` writes them."""
        self.mapping = dict(mapping)

    @classmethod
    def files(cls, *paths: str, start: When, end: When | None = None, **fields: Any) -> Self:
        """Files by time: `{YYYY}`, `{MM}`, `{DD}`, `{HH}`, `{mm}` in their paths. `fields` as of a source in YAML."""
        return cls({"files": list(paths), "start": start, "end": end} | fields)

    @classmethod
    def jetstream(cls, streams: str, *, start: When = "earliest", end: When | None = None, **fields: Any) -> Self:
        """A topic: a JetStream stream, or a pattern of those that are its partitions. `start`: a moment, `earliest`,
        `latest` or `group`."""
        return cls({"jetstream": streams, "start": start, "end": end} | fields)

    @classmethod
    def kafka(
        cls, topic: str, *, servers: str, start: When = "earliest", end: When | None = None, **fields: Any
    ) -> Self:
        """A topic in Kafka; `start` as of `jetstream`."""
        return cls({"kafka": topic, "servers": servers, "start": start, "end": end} | fields)


class DataStream:
    """Sources that are served together, window by window."""

    def __init__(
        self, sources: Sequence[Source], *, window: str | float = "1h", offsets: Sequence[str | float] = (),
        weights: Sequence[float] = (), mode: Literal["forward", "rebalance"] | None = None,
    ) -> None:
        """`offsets` and `weights`: one per source, or none. `mode`: of data executors; streams of one dataset agree."""
        for name, values in (("offsets", offsets), ("weights", weights)):
            if values and len(values) != len(sources):
                raise ValueError(f"{name}: {len(values)} for {len(sources)} sources")
        listed = [dict(source.mapping) for source in sources]
        for mapping, offset in zip(listed, offsets, strict=False):
            mapping["offset"] = offset
        for mapping, weight in zip(listed, weights, strict=False):
            mapping["weight"] = weight
        self.mapping = {"window": window, "sources": listed}
        self.mode = mode
