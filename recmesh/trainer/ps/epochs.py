"""The newest lease epoch seen for each position: a hint, bounded in size, that may forget."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from recmesh.formats.intervals import Triple

_LIMIT = 16_384    # segments of one line; a live lease is about one


class NewestEpochs:
    """Per line, disjoint ascending segments [lo, hi) with an epoch each; equal neighbours are joined."""

    def __init__(self) -> None:
        self._lines: dict[int, tuple[list[int], list[int], list[int]]] = {}
        self.largest = 0
        """Of all epochs ever entered: where a queue that lost its epochs starts above."""

    def newest(self, batch: Sequence[Triple]) -> int:
        """The largest epoch entered for any position of the batch; 0 when there is none."""
        found = 0
        for line, lo, hi in batch:
            if line in self._lines:
                los, his, epochs = self._lines[line]
                found = max([found, *epochs[bisect_right(his, lo):bisect_left(los, hi)]])
        return found

    def enter(self, batch: Sequence[Triple], epoch: int) -> None:
        """All positions of the batch have this epoch now."""
        self.largest = max(self.largest, epoch)
        for line, lo, hi in batch:
            if lo < hi:
                self._enter(line, lo, hi, epoch)

    def _enter(self, line: int, lo: int, hi: int, epoch: int) -> None:
        los, his, epochs = self._lines.setdefault(line, ([], [], []))
        first, last = bisect_left(his, lo), bisect_right(los, hi)     # with neighbours that touch
        segments = [(lo, hi, epoch)]
        for a, b, old in zip(los[first:last], his[first:last], epochs[first:last], strict=True):
            if old == epoch:
                segments[0] = (min(segments[0][0], a), max(segments[0][1], b), epoch)
            else:
                segments += [(x, y, old) for x, y in ((a, min(b, lo)), (max(a, hi), b)) if x < y]
        segments.sort()
        los[first:last] = [a for a, _, _ in segments]
        his[first:last] = [b for _, b, _ in segments]
        epochs[first:last] = [e for _, _, e in segments]
        if len(los) > _LIMIT:
            del los[:_LIMIT // 2], his[:_LIMIT // 2], epochs[:_LIMIT // 2]
