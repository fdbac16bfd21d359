"""The one shape of this package's refusals: which field, and why."""

from collections.abc import Iterator
from contextlib import contextmanager

from recmesh.runtime.errors import InvalidArgument, MeshError, Violation


class Damaged(Exception):
    """What packs a file cannot be undone; the message says where and why. `contents` names the file."""


def wrong(path: str, reason: str, *, message: str = "") -> InvalidArgument:
    """One wrong field; the message repeats the reason unless a better one is given."""
    return InvalidArgument(message or reason, violations=[Violation(path, reason)])


@contextmanager
def in_stream(stream: int, source: int) -> Iterator[None]:
    """Errors about fields of the one source name those of this source of a stream; others name the source."""
    try:
        yield
    except MeshError as error:
        there = f"data.streams.{stream}.sources.{source}."
        found = [
            Violation(item.path.replace("data.source.", there, 1), item.reason.replace("data.source.", there))
            for item in error.violations
        ]
        found = found or [Violation(there.removesuffix("."), error.message)]
        message = error.message.replace("data.source.", there)
        raise type(error)(message, reason=error.reason, violations=found) from error
