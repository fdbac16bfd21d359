"""The one shape of this package's refusals: which field, and why."""

from recmesh.runtime.errors import InvalidArgument, Violation


class Damaged(Exception):
    """What packs a file cannot be undone; the message says where and why. `contents` names the file."""


def wrong(path: str, reason: str, *, message: str = "") -> InvalidArgument:
    """One wrong field; the message repeats the reason unless a better one is given."""
    return InvalidArgument(message or reason, violations=[Violation(path, reason)])
