"""First come, first served, with refusal: the peer that orders by arrival, and refuses who would be late by that."""

from collections import deque
from collections.abc import Iterable

from recmesh.serving.admission.domain.queue import Limits, Queue
from recmesh.serving.admission.domain.waiting import Waiting
from recmesh.serving.admission.messages import Reason, Refuse


class FirstCome(Queue):
    """All else (window, grants, estimates) is as it is."""

    def __init__(self) -> None:
        super().__init__(Limits(1 << 20, 1 << 40, 1 << 20, undated_share=0.0), weight=lambda _: 1.0)
        self._order: deque[Waiting] = deque()

    def join(
        self, item: Waiting, now: float, *, free_at: float, rate: float, margin_s: float
    ) -> tuple[Refuse | None, list[tuple[Waiting, Reason]]]:
        """At the end, if it is in time there."""
        short_s = free_at + (self.size_bytes + item.size_bytes) / rate + margin_s - item.due
        if short_s > 0:
            return Refuse(item.ask.request, Reason.DEADLINE_BEHIND_QUEUE, short_s=short_s), []
        self._order.append(item)
        self._items[item.key] = item
        self.size_bytes += item.size_bytes
        return None, []

    def leave(self, item: Waiting) -> None:
        """It waits no more."""
        self._order.remove(item)
        self.size_bytes -= item.size_bytes
        del self._items[item.key]

    def serve(self, item: Waiting, now: float) -> None:
        """It is sent."""
        self.leave(item)

    def next(self, free_at: float, rate: float) -> Waiting | None:
        """Who came first."""
        return self._order[0] if self._order else None

    def drop_late(self, free_at: float, rate: float) -> list[Waiting]:
        """As the product does."""
        dropped, at = [], free_at
        for item in list(self._order):
            if at + item.size_bytes / rate > item.due:
                dropped.append(item)
                self.leave(item)
            else:
                at += item.size_bytes / rate
        return dropped

    @property
    def next_dated(self) -> Waiting | None:
        """Who can be late first."""
        return _first(self._order)


def _first(items: Iterable[Waiting]) -> Waiting | None:
    return next(iter(items), None)
