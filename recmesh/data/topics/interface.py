"""What a topic must be able to do, whoever keeps it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

READ_S = 30.0
"""Within it a topic answers, or it is Unavailable."""


class Span(NamedTuple):
    """Offsets [first, end) of a partition are there; those before have been deleted, or were never."""

    first: int
    end: int


class Message(NamedTuple):
    """One message as it lies there."""

    offset: int
    time: float
    """Of the event, unix seconds."""
    value: bytes


@dataclass(frozen=True, slots=True)
class Partition:
    """One ordered part of a topic. Its offsets grow by one from message to message; some may be missing."""

    uri: str
    """`jetstream:STREAM` or `kafka:TOPIC/NUMBER`."""
    tag: str
    """Another one after it was deleted and made again."""
    span: Span


class Topic(Protocol):
    """A topic. Safe to share between threads.

    Errors: Unavailable (it does not answer), NotFound (there is no such topic, or partition), Unauthenticated.
    """

    def partitions(self) -> Sequence[Partition]:
        """All of them as they are now, in order of their names; at least one."""
        ...

    def after(self, uri: str, time: float) -> int | None:
        """The offset of the first message with this time or a later one; None: there is none yet."""
        ...

    def time_of(self, uri: str, offset: int) -> float | None:
        """Of the message at this offset, or of the first one behind it; None: there is none yet."""
        ...

    def read(self, uri: str, lo: int, hi: int) -> list[Message]:
        """The messages at offsets [lo, hi) that are there, in order."""
        ...

    def committed(self, group: str) -> Mapping[str, int]:
        """By partition, where the group goes on; partitions that it never committed are absent."""
        ...

    def commit(self, group: str, offsets: Mapping[str, int]) -> None:
        """By partition, where the group shall go on. Offsets may go back: a rollback does that."""
        ...

    def close(self) -> None:
        """Ends connections that nobody else uses."""
        ...
