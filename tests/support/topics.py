"""A topic in memory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from recmesh.data.topics import Message, Partition, Span
from recmesh.data.topics.interface import NOT_THERE_YET
from recmesh.runtime.errors import NotFound, Unavailable


@dataclass
class MemoryTopic:
    """`Topic` in one process; partitions are `jetstream:NAME-0` and so on, or named one by one."""

    name: str = "clicks"
    messages: dict[str, list[Message]] = field(default_factory=dict)
    groups: dict[str, dict[str, int]] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    first: dict[str, int] = field(default_factory=dict)
    """Where partitions begin that have let go of messages."""
    mean_bytes: float = 0.0
    hidden: set[tuple[str, int]] = field(default_factory=set)
    """Offsets without messages, as Kafka's transactions have them."""

    def put(self, partition: int, value: bytes, *, time: float, came: float | None = None) -> None:
        """The next message; it comes when it happens, unless `came` is given."""
        uri = f"jetstream:{self.name}-{partition}"
        known = self.messages.setdefault(uri, [])
        known.append(Message(self.first.get(uri, 1) if not known else known[-1].offset + 1, time, value, came))

    def let_go(self, uri: str, below: int) -> None:
        """As retention does."""
        self.first[uri] = below
        self.messages[uri] = [each for each in self.messages[uri] if each.offset >= below]

    def partitions(self) -> Sequence[Partition]:
        if not self.messages:
            raise NotFound(self.name)
        uris = sorted(self.messages)
        return [Partition(uri, self.tags.get(uri, "made"), self._span(uri), self.mean_bytes) for uri in uris]

    def tag_of(self, uri: str) -> str:
        if uri not in self.messages:
            raise NotFound(uri)
        return self.tags.get(uri, "made")

    def _span(self, uri: str) -> Span:
        known = self.messages[uri]
        first = self.first.get(uri, 1)
        return Span(first, known[-1].offset + 1 if known else first)

    def _there(self, uri: str) -> list[Message]:
        return [each for each in self.messages[uri] if (uri, each.offset) not in self.hidden]

    def after(self, uri: str, time: float) -> int | None:
        return next((each.offset for each in self._there(uri) if each.time >= time), None)

    def time_of(self, uri: str, offset: int) -> float | None:
        return next((each.time for each in self._there(uri) if each.offset >= offset), None)

    def came_at(self, uri: str, offset: int) -> float | None:
        found = next((each for each in self._there(uri) if each.offset >= offset), None)
        return None if found is None else found.time if found.came is None else found.came

    def read(self, uri: str, lo: int, hi: int) -> list[Message]:
        end = self._span(uri).end
        if end < hi:
            raise Unavailable(f"{uri} ends at {end}", reason=NOT_THERE_YET)
        return [each for each in self._there(uri) if lo <= each.offset < hi]

    def committed(self, group: str) -> Mapping[str, int]:
        return dict(self.groups.get(group, {}))

    def commit(self, group: str, offsets: Mapping[str, int]) -> None:
        self.groups.setdefault(group, {}).update(offsets)

    def close(self) -> None:
        pass

    def without(self, uri: str, offset: int) -> None:
        """Deletes one message."""
        self.messages[uri] = [each for each in self.messages[uri] if each.offset != offset]

