"""What a topic must be able to do, whoever keeps it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

READ_S = 30.0
"""Within it a topic answers, or it is Unavailable."""
NOT_THERE_YET = "NOT_THERE_YET"
"""The reason of Unavailable where a partition ends before what is asked for."""


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
    """Empty where it has none (a tombstone of Kafka, a message without a body): that is no row."""
    came: float | None = None
    """When the server got it, unix seconds; None: it tells `time` alone."""


@dataclass(frozen=True, slots=True)
class Partition:
    """One ordered part of a topic. Its offsets grow by one from message to message; some may be missing."""

    uri: str
    """`jetstream:STREAM` or `kafka:TOPIC/NUMBER`."""
    tag: str
    """Another one after it was deleted and made again; empty where the broker is too old to tell."""
    span: Span
    mean_bytes: float = 0.0
    """Of its messages, as they are stored; 0: not known."""


class Topic(Protocol):
    """A topic. Safe to share between threads.

    Errors: Unavailable (it does not answer), NotFound (there is no such topic, or partition), Unauthenticated.
    """

    def partitions(self) -> Sequence[Partition]:
        """All of them as they are now, in order of their names; at least one."""
        ...

    def tag_of(self, uri: str) -> str:
        """A partition's as it is now. What was read before is of the partition with this tag, or of one before it."""
        ...

    def after(self, uri: str, time: float) -> int | None:
        """The offset of the first message with this time or a later one; None: there is none yet."""
        ...

    def time_of(self, uri: str, offset: int) -> float | None:
        """Of the message at this offset, or of the first one behind it; None: there is none yet."""
        ...

    def came_at(self, uri: str, offset: int) -> float | None:
        """As `time_of`, but when it came to the topic: of what happened long before, or is replayed, much later."""
        ...

    def read(self, uri: str, lo: int, hi: int) -> list[Message]:
        """The messages at offsets [lo, hi) that are there, in order; others have been deleted.

        Unavailable: some may be there all the same, as whoever answers knows less than the one that leads, or offset
        `hi - 1` is not there yet (reason NOT_THERE_YET).
        """
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
