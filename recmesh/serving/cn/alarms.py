"""Things that happen at a time, if nobody takes them back before: deadlines and hedges. One thread for all of a CN."""

import heapq
import itertools
import threading
import time
from collections.abc import Callable

_LEAST_SWEPT = 256
"""So many taken back, and more than are left: the heap is made anew without them."""


class Alarm:
    """One of them."""

    __slots__ = ("_alarms", "ring")

    def __init__(self, alarms: "Alarms", ring: Callable[[], None]) -> None:
        self._alarms = alarms
        self.ring: Callable[[], None] | None = ring
        """None: it rang, or was taken back."""

    def cancel(self) -> None:
        """It will not ring any more, unless it is doing so now."""
        self._alarms.forget(self)


class Alarms:
    """Used from any thread. What rings must be short and must not raise: all others wait for it."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._heap: list[tuple[float, int, Alarm]] = []
        self._gone = 0
        self._changed = threading.Condition()
        threading.Thread(target=self._work, name="alarms", daemon=True).start()

    def set(self, at: float, ring: Callable[[], None]) -> Alarm:
        """Call `ring` at this time of the monotonic clock, in the alarms' thread."""
        alarm = Alarm(self, ring)
        with self._changed:
            heapq.heappush(self._heap, (at, next(self._numbers), alarm))
            if self._heap[0][2] is alarm:
                self._changed.notify()
        return alarm

    def forget(self, alarm: Alarm) -> None:
        """See `Alarm.cancel`."""
        with self._changed:
            if alarm.ring is None:
                return
            alarm.ring = None                    # and all that it refers to
            self._gone += 1
            if self._gone > max(_LEAST_SWEPT, len(self._heap) // 2):
                self._heap = [item for item in self._heap if item[2].ring is not None]
                heapq.heapify(self._heap)
                self._gone = 0

    def _work(self) -> None:
        while True:
            with self._changed:
                ring = self._next()
            if ring is not None:
                ring()
            del ring                             # or what it refers to would be held until the next one

    def _next(self) -> Callable[[], None] | None:
        if not self._heap:
            self._changed.wait()
            return None
        at, _, alarm = self._heap[0]
        left_s = at - time.monotonic()
        if alarm.ring is not None and left_s > 0:
            self._changed.wait(left_s)
            return None
        heapq.heappop(self._heap)
        ring, alarm.ring = alarm.ring, None
        if ring is None:
            self._gone -= 1
        return ring
