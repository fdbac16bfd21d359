"""Everything that waits at one HN: who may join, who makes room, who is next."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from recmesh.serving.admission.domain.shares import Usage, above_share, outranked
from recmesh.serving.admission.domain.waiting import ByDeadline, ByShare, Key, Waiting
from recmesh.serving.admission.messages import Reason, Refuse


@dataclass(frozen=True, slots=True)
class Limits:
    """What may wait; `undated_share` of the link is kept for messages without a deadline, while such wait."""

    most: int
    most_bytes: int
    most_of_peer: int
    undated_share: float


class Queue:
    """`free_at` is when the link has brought what was granted; `rate` its bytes per second."""

    def __init__(self, limits: Limits, *, weight: Callable[[str], float]) -> None:
        self._limits = limits
        self._items: dict[Key, Waiting] = {}
        self._dated, self._undated = ByDeadline(), ByShare(weight)
        self._of_peer: Counter[str] = Counter()
        self._usage = Usage(weight)
        self._undated_credit = 0.0
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, key: Key) -> bool:
        return key in self._items

    def __iter__(self) -> Iterator[Waiting]:
        return iter(self._items.values())

    def join(
        self, item: Waiting, now: float, *, free_at: float, rate: float, margin_s: float
    ) -> tuple[Refuse | None, list[tuple[Waiting, Reason]]]:
        """(why it may not wait, who made room for it). It waits if then it and all others can be in time."""
        ask, limits = item.ask, self._limits
        if self._of_peer[item.key[0]] >= limits.most_of_peer:
            return Refuse(ask.request, Reason.PEER_QUEUE_FULL, retry_after_s=self.size_bytes / rate), []
        leaving: dict[Waiting, Reason] = {}
        if len(self._items) >= limits.most or self.size_bytes + ask.size_bytes > limits.most_bytes:
            victim = outranked(item, self._items.values())
            if victim is None or self.size_bytes - victim.size_bytes + ask.size_bytes > limits.most_bytes:
                return Refuse(ask.request, Reason.QUEUE_FULL, retry_after_s=self.size_bytes / rate), []
            leaving[victim] = Reason.SHED_FOR_PRIORITY
        if item.dated:
            left = rate * (1 - limits.undated_share) if len(self._undated) else rate
            short_s = self._make_room(item, leaving, now, free_at=free_at, rate=left, margin_s=margin_s)
            if short_s > 0:
                return Refuse(ask.request, Reason.DEADLINE_BEHIND_QUEUE, short_s=short_s, retry_after_s=short_s), []
        for victim in leaving:
            self.leave(victim)
        self._items[item.key] = item
        self.size_bytes += item.size_bytes
        self._of_peer[item.key[0]] += 1
        self._usage.waits(ask.model, item.size_bytes)
        if item.dated:
            self._dated.add(item)
        else:
            self._undated.add(item)
        return None, list(leaving.items())

    def leave(self, item: Waiting) -> None:
        """It waits no more, and is not sent."""
        self._forget(item)
        if item.dated:
            self._dated.remove(item)
        else:
            self._undated.remove(item)

    def serve(self, item: Waiting, now: float) -> None:
        """It is sent: it was `next`."""
        self._forget(item)
        self._usage.granted(item.ask.model, item.size_bytes, now)
        if item.dated:
            self._dated.remove(item)
            share = self._limits.undated_share
            self._undated_credit += item.size_bytes * share / (1 - share)
        else:
            self._undated.serve(item)
            self._undated_credit = max(0.0, self._undated_credit - item.size_bytes)
        if not len(self._undated):
            self._undated_credit = 0.0

    def next(self, free_at: float, rate: float) -> Waiting | None:
        """By deadline; one without a deadline when no other waits, or in its share where nobody is late by it."""
        dated, undated = self._dated.head, self._undated.head
        if dated is None or undated is None:
            return dated or undated
        if self._undated_credit < undated.size_bytes:
            return dated
        late = self._dated.late(free_at + undated.size_bytes / rate, rate)
        return undated if late is None else dated

    def drop_late(self, free_at: float, rate: float) -> list[Waiting]:
        """Who can't be in time any more, as the link is slower than it was; they have left."""
        dropped, start = [], 0
        while (place := self._dated.late(free_at, rate, start=start)) is not None:
            dropped.append(self._dated.first(place + 1)[place])
            self.leave(dropped[-1])
            start = place
        return dropped

    def drop_overdue(self, now: float) -> list[Waiting]:
        """Who has no deadline, and has waited as long as it may; they have left."""
        dropped = [each for each in self._undated if each.due <= now]
        for item in dropped:
            self.leave(item)
        return dropped

    def of_peer(self, peer: str) -> list[Waiting]:
        """What one CN has here."""
        return [each for each in self._items.values() if each.key[0] == peer]

    def get(self, key: Key) -> Waiting | None:
        """None: it does not wait."""
        return self._items.get(key)

    @property
    def next_dated(self) -> Waiting | None:
        """Who is due first."""
        return self._dated.head

    @property
    def undated_until(self) -> float | None:
        """When the first without a deadline has waited as long as it may."""
        return min((each.due for each in self._undated), default=None)

    def _make_room(
        self, item: Waiting, leaving: dict[Waiting, Reason], now: float, *, free_at: float, rate: float,
        margin_s: float,
    ) -> float:
        """Adds to `leaving` who has to go so that it and the others are in time; seconds that are short where those
        who may be sent away do not suffice.

        Of those up to the first who would be late one has to go, whatever the order: their bytes are too many.
        """
        trial = self._dated.without(leaving) if leaving else self._dated
        while True:
            place = trial.place(item.due)
            own_s = item.size_bytes / rate
            short_s = free_at + trial.bytes_before(place) / rate + own_s + margin_s - item.due
            late = None
            if short_s <= 0:
                late = trial.late(free_at + own_s, rate, start=place)
                if late is None:
                    return 0.0
                short_s = free_at + own_s + trial.bytes_before(late + 1) / rate - trial.first(late + 1)[late].due
            among = trial.first(place if late is None else late + 1)
            victim, reason = outranked(item, among), Reason.SHED_FOR_PRIORITY
            if victim is None:
                victim, reason = above_share(item, among, self._usage, now), Reason.SHED_FOR_FAIRNESS
            if victim is None:
                return short_s
            leaving[victim] = reason
            trial = self._dated.without(leaving)

    def _forget(self, item: Waiting) -> None:
        peer = item.key[0]
        del self._items[item.key]
        self.size_bytes -= item.size_bytes
        self._usage.waits(item.ask.model, -item.size_bytes)
        self._of_peer[peer] -= 1
        if not self._of_peer[peer]:
            del self._of_peer[peer]
