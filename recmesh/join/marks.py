"""How far event time has come: no partition sends anything older than its mark any more. Pure."""

from dataclasses import dataclass

NEVER, ALWAYS = float("-inf"), float("inf")


@dataclass(slots=True)
class _Partition:
    newest: float = NEVER
    """Event time."""
    heard_at: float = NEVER
    """When something came, or something waited to be read, by the process's clock."""
    is_read: bool = False
    """All there was had been read then."""


class Marks:
    """The marks of one topic's partitions."""

    def __init__(self, partitions: int, *, disorder_s: float, idle_s: float) -> None:
        self._partitions = [_Partition() for _ in range(partitions)]
        self._disorder_s, self._idle_s = disorder_s, idle_s
        self._mark = NEVER

    @property
    def newest(self) -> float:
        """Of all partitions."""
        return max(partition.newest for partition in self._partitions)

    @property
    def heard_at(self) -> float:
        """When the last message came, or waited."""
        return max(partition.heard_at for partition in self._partitions)

    def hear(self, partition: int, time: float, now: float, *, is_read: bool) -> None:
        """A message came; `is_read`: no other waits behind it."""
        found = self._partitions[partition]
        found.newest, found.heard_at, found.is_read = max(found.newest, time), now, is_read

    def wait(self, partition: int, now: float) -> None:
        """Messages of the partition wait to be read, so it is not idle."""
        self._partitions[partition].heard_at, self._partitions[partition].is_read = now, False

    def empty(self, partition: int, now: float) -> None:
        """There is nothing to read in the partition."""
        self._partitions[partition].heard_at, self._partitions[partition].is_read = now, True

    def is_idle(self, now: float) -> bool:
        """Whether no partition has had anything for long."""
        return self._idle_s > 0 and all(
            partition.is_read and now - partition.heard_at >= self._idle_s for partition in self._partitions
        )

    def lift(self, mark: float) -> None:
        """Wait for nothing that is older than this."""
        self._mark = max(self._mark, mark)

    def end(self) -> None:
        """Nothing will come any more."""
        self._mark = ALWAYS

    def at(self, now: float, *, newest: float, heard_at: float) -> float:
        """The mark, which never goes back. `newest`: event time of whatever came from all topics, `heard_at`: when.

        An idle partition is where the newest of them is. When nobody sends, event time goes on with the clock.
        """
        lowest = ALWAYS
        for partition in self._partitions:
            mark = partition.newest
            if self._idle_s and partition.is_read and now - partition.heard_at >= self._idle_s:
                mark = max(mark, newest + max(0.0, now - heard_at - self._idle_s))
            lowest = min(lowest, mark - self._disorder_s)
        if self._mark < lowest < ALWAYS:
            self._mark = lowest
        return self._mark
