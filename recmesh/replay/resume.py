"""Which rows a partition has already, by the ids of the messages at its end. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


def message_id(file: str, round_: int, row: int) -> str:
    """Of a row of a file, in one of its repetitions."""
    return f"{file}:{round_}:{row}"


def number_of(message_id: str, offsets: Mapping[str, int], total: int) -> int | None:
    """Where a row stands in the order of sending, over files and rounds; None: it is of something else."""
    file, _, rest = message_id.partition(":")
    round_, _, row = rest.partition(":")
    if file not in offsets or not (round_.isdigit() and row.isdigit()):
        return None
    return int(round_) * total + offsets[file] + int(row)


@dataclass(frozen=True, slots=True)
class There:
    """Rows of one partition."""

    before: int = 0
    """All rows with a lower number are there."""
    found: frozenset[int] = frozenset()

    def __contains__(self, number: int) -> bool:
        return number < self.before or number in self.found


def there(numbers: Iterable[int], *, in_flight: int, whole: bool) -> There | None:
    """What can be said by the numbers of the last messages of a partition; None: more of them are needed.

    Rows are sent in order, and no more than `in_flight` are on their way at once: so one that is missing stands among
    the last so many that were stored. `whole`: these are all messages that were ever stored there.
    """
    found = frozenset(numbers)
    if whole:
        return There(0, found)
    return There(min(found), found) if len(found) > in_flight else None
