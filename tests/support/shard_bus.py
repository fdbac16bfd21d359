"""A bucket and a log in memory, with the failures that a network has."""

from collections.abc import AsyncIterator, Callable, Sequence

from recmesh.runtime.bus import Entry
from recmesh.runtime.errors import Aborted, AlreadyExists, Unavailable


class MemoryBucket:
    """`KeyValueStore` in one process."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._revision = 0
        self.before_write: Callable[[], None] = lambda: None
        """Called before each write: a test lets somebody else write first."""

    def _put(self, key: str, value: bytes) -> int:
        self._revision += 1
        self._entries[key] = Entry(key, value, self._revision, 0.0)
        return self._revision

    async def get(self, key: str) -> Entry | None:
        return self._entries.get(key)

    async def create(self, key: str, value: bytes) -> int:
        self.before_write()
        if key in self._entries:
            raise AlreadyExists(key)
        return self._put(key, value)

    async def update(self, key: str, value: bytes, revision: int) -> int:
        self.before_write()
        if key not in self._entries or self._entries[key].revision != revision:
            raise Aborted(key)
        return self._put(key, value)

    async def delete(self, key: str, *, revision: int | None = None) -> None:
        self._entries.pop(key, None)

    async def entries(self, prefix: str = "") -> list[Entry]:
        return [self._entries[key] for key in sorted(self._entries) if key.startswith(prefix)]

    async def keys(self, prefix: str = "") -> Sequence[str]:
        return [entry.key for entry in await self.entries(prefix)]


class MemoryLog:
    """`AppendLog` in one process. `fail_at` counts appends: that one is lost, or stored and not answered."""

    def __init__(self) -> None:
        self.messages: dict[str, list[tuple[int, bytes]]] = {}
        self._sequence = 0
        self.appends = 0
        self.fail_at = 0
        self.fail_after_storing = False

    async def append(self, subject: str, records: bytes, *, expected_last: int | None = None) -> int:
        self.appends += 1
        failing = self.appends == self.fail_at
        if failing and not self.fail_after_storing:
            raise Unavailable("the message is lost")
        known = self.messages.setdefault(subject, [])
        if expected_last is not None and (known[-1][0] if known else 0) != expected_last:
            raise Aborted(subject)
        self._sequence += 1
        known.append((self._sequence, records))
        if failing:
            raise Unavailable("the answer is lost")
        return self._sequence

    async def read(self, subject: str, from_seq: int = 1) -> AsyncIterator[tuple[int, bytes]]:
        for sequence, data in list(self.messages.get(subject, [])):
            if sequence >= from_seq:
                yield sequence, data

    async def purge(self, subject: str, *, below: int = 0) -> None:
        kept = [each for each in self.messages.pop(subject, []) if below and each[0] >= below]
        if kept:
            self.messages[subject] = kept
