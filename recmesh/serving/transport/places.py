"""Which parts of a piece of memory are taken: the lowest that is free is given, and comes back in any order."""

import bisect

ALIGN = 64


class Places:
    """Places in `size_bytes` of memory.

    The lowest first, not one after another in a circle: the same pages are used again, which are mapped and in the
    caches already. A request after a request would otherwise touch all of the memory in turn.
    """

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._taken: list[tuple[int, int]] = []
        """(begin, end), in order; as many as there are requests under way."""

    @property
    def held(self) -> int:
        """Places that have not come back."""
        return len(self._taken)

    def take(self, size_bytes: int) -> int | None:
        """Where `size_bytes` may be written; None when there is no room."""
        wanted = max(ALIGN, size_bytes + -size_bytes % ALIGN)
        at = 0
        for index, (begin, end) in enumerate(self._taken):
            if at + wanted <= begin:
                self._taken.insert(index, (at, at + wanted))
                return at
            at = end
        if at + wanted > self._size_bytes:
            return None
        self._taken.append((at, at + wanted))
        return at

    def give_back(self, at: int) -> None:
        """The place is free again; KeyError when nobody holds it."""
        index = bisect.bisect_left(self._taken, (at, 0))
        if index == len(self._taken) or self._taken[index][0] != at:
            raise KeyError(at)
        del self._taken[index]
