"""Which part of a piece of memory is free: places are given in a circle, and come back in any order."""

from collections import deque
from dataclasses import dataclass

ALIGN = 64


@dataclass(slots=True)
class _Place:
    at: int
    size_bytes: int
    free: bool = False


class Ring:
    """Places in `size_bytes` of memory, oldest first. One that is held long keeps those given after it."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._given: deque[_Place] = deque()

    @property
    def held(self) -> int:
        """Places that have not come back."""
        return sum(not place.free for place in self._given)

    def take(self, size_bytes: int) -> int | None:
        """Where `size_bytes` may be written; None when there is no room."""
        wanted = max(ALIGN, size_bytes + -size_bytes % ALIGN)
        at = self._room(wanted)
        if at is not None:
            self._given.append(_Place(at, wanted))
        return at

    def give_back(self, at: int) -> None:
        """The place is free again; KeyError when nobody holds it."""
        for place in self._given:
            if place.at == at and not place.free:
                place.free = True
                break
        else:
            raise KeyError(at)
        while self._given and self._given[0].free:
            self._given.popleft()

    def _room(self, wanted: int) -> int | None:
        if not self._given:
            return 0 if wanted <= self._size_bytes else None     # the same pages again: they are in the caches
        begin, last = self._given[0].at, self._given[-1]
        end = last.at + last.size_bytes
        if last.at < begin:                                      # has gone round: free is what lies between
            return end if end + wanted <= begin else None
        if end + wanted <= self._size_bytes:
            return end
        return 0 if wanted <= begin else None
