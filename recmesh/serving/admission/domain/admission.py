"""All that an HN decides about what may be sent to it: a state and events, each giving messages to CNs. Pure.

Every ask is answered: granted, refused at once, or refused while it waits, by its deadline at the latest. What is
granted arrives, is cancelled, or expires; each gives its bytes back to the window exactly once.
"""

import heapq
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from recmesh.serving.admission.domain.bandwidth import Bandwidth
from recmesh.serving.admission.domain.delay import Delays
from recmesh.serving.admission.domain.durations import Durations
from recmesh.serving.admission.domain.queue import Limits, Queue
from recmesh.serving.admission.domain.waiting import Key, Waiting
from recmesh.serving.admission.domain.window import Bounds, Window
from recmesh.serving.admission.messages import Ask, Cancel, Done, Grant, Reason, Refuse, Sent, ToCn, ToHn
from recmesh.serving.admission.settings import Settings

_TICK_S = 1e-6
"""So much after its latest start a message is late, whatever the rounding."""

Effects = list[tuple[str, ToCn]]
"""What to send to whom."""


@dataclass(frozen=True, slots=True)
class _Granted:
    ask: Ask
    at: float
    round: int
    due: float
    """As in `Waiting`; infinite without a deadline."""
    expires_at: float


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state now, and counts since the start."""

    window_bytes: int
    in_flight_bytes: int
    congestion_level: float
    bandwidth_bytes_per_s: float
    base_s: float
    waiting: int
    waiting_bytes: int
    asked: int
    granted: int
    arrived: int
    cancelled: int
    came_too_late: int
    """Messages without a grant."""
    refused: Mapping[Reason, int]


class Admission:
    """`now` is one clock's seconds, never going back."""

    def __init__(self, settings: Settings, *, queue: Queue | None = None) -> None:
        """`queue`: another order than that by deadline."""
        self._settings = settings
        self._bandwidth = Bandwidth(settings.bandwidth_bytes_per_s)
        self._window = Window(Bounds(
            settings.window_start_bytes, settings.window_min_bytes, settings.window_max_bytes,
            high=settings.congestion_high, low=settings.congestion_low,
        ))
        self._durations, self._delays = Durations(), Delays()
        self._queue = _by_deadline(settings) if queue is None else queue
        self._granted: dict[Key, _Granted] = {}
        self._expiries: list[tuple[float, Key]] = []
        self._busy_until = 0.0
        self._draining = False
        self._counts: Counter[str] = Counter()
        self._refused: Counter[Reason] = Counter()

    # ---- events

    def receive(self, peer: str, message: ToHn, now: float) -> Effects:
        """A CN says something; see `messages`."""
        key = peer, message.request
        match message:
            case Ask():
                return self._ask(key, message, now)
            case Cancel():
                return self._cancel(key, now)
            case Sent():
                return self.arrived(peer, message.request, now)[1]

    def arrived(self, peer: str, request: int, now: float) -> tuple[bool, Effects]:
        """A message is here, whole; False when it has no grant."""
        granted = self._granted.pop((peer, request), None)
        if granted is None:
            self._counts["came_too_late"] += 1
            return False, []
        self._counts["arrived"] += 1
        size_bytes, took_s = granted.ask.size_bytes, now - granted.at
        self._window.give(size_bytes)
        self._busy_until = min(self._busy_until, now + self._window.in_flight_bytes / self._bandwidth.bytes_per_s)
        expected_s = self._bandwidth.expected_s(size_bytes)
        self._window.learn(granted.round, size_bytes, took_s=took_s, expected_s=expected_s)
        measured = self._bandwidth.arrived(
            now, size_bytes, took_s=took_s, last=not self._granted, window_bytes=self._window.limit_bytes
        )
        effects: Effects = [(peer, Done(request))]
        if measured:
            self._refuse_late(now, effects)
        self._grant(now, effects)
        return True, effects

    def computed(self, model: str, seconds: float) -> None:
        """From a message's arrival until its answer was ready."""
        self._durations.see(model, seconds)

    def lost(self, peer: str, now: float) -> Effects:
        """A CN is gone, with all it asked for."""
        effects: Effects = []
        self._delays.forget(peer)
        for item in self._queue.of_peer(peer):
            self._queue.leave(item)
        for key in [each for each in self._granted if each[0] == peer]:
            self._take_back(key, now)
        self._grant(now, effects)
        return effects

    def drain(self) -> None:
        """Refuse what is new."""
        self._draining = True

    def wake(self, now: float) -> Effects:
        """Time has passed; see `next_wake`."""
        effects: Effects = []
        while self._expiries and self._expiries[0][0] <= now:
            at, key = heapq.heappop(self._expiries)
            if key in self._granted and self._granted[key].expires_at == at:
                self._take_back(key, now)
                self._refuse(key, Reason.GRANT_EXPIRED, effects)
        for item in self._queue.drop_overdue(now):
            self._refuse(item.key, Reason.WAITED_TOO_LONG, effects)
        self._refuse_late(now, effects)
        self._grant(now, effects)
        return effects

    def next_wake(self, now: float) -> float | None:
        """When `wake` has something to do, at the latest; None: never, as things stand."""
        while self._expiries:
            at, key = self._expiries[0]
            if key in self._granted and self._granted[key].expires_at == at:
                break
            heapq.heappop(self._expiries)
        moments = [self._expiries[0][0]] if self._expiries else []
        if (until := self._queue.undated_until) is not None:
            moments.append(until)
        if (item := self._queue.next_dated) is not None:
            moments.append(item.due - self._bandwidth.expected_s(item.size_bytes) + _TICK_S)
        needs_more = self._busy_until - self._lead_s() + _TICK_S
        if len(self._queue) and self._granted and needs_more > now:
            moments.append(needs_more)
        return min(moments, default=None)

    def snapshot(self) -> Snapshot:
        """For dashboards."""
        return Snapshot(
            self._window.limit_bytes, self._window.in_flight_bytes, self._window.level, self._bandwidth.bytes_per_s,
            self._bandwidth.base_s, len(self._queue), self._queue.size_bytes, self._counts["asked"],
            self._counts["granted"], self._counts["arrived"], self._counts["cancelled"],
            self._counts["came_too_late"], dict(self._refused),
        )

    # ---- asks

    def _ask(self, key: Key, ask: Ask, now: float) -> Effects:
        effects: Effects = []
        if key in self._granted:
            left_s = max(0.0, self._granted[key].expires_at - now)
            return [(key[0], Grant(ask.request, left_s))]
        if key in self._queue:
            return []
        self._counts["asked"] += 1
        late_s = 0.0 if ask.at_s is None else self._delays.see(key[0], ask.at_s, now)
        item = Waiting(key, ask, now, self._due(ask, now - late_s))
        left: list[tuple[Waiting, Reason]] = []
        refusal = self._unfit(item, now)
        if refusal is None:
            refusal, left = self._queue.join(
                item, now, free_at=self._free_at(now), rate=self._bandwidth.bytes_per_s,
                margin_s=self._settings.margin_s,
            )
        for other, reason in left:
            self._refuse(other.key, reason, effects)
        if refusal is not None:
            self._refused[refusal.reason] += 1
            effects.append((key[0], refusal))
        self._grant(now, effects)
        return effects

    def _due(self, ask: Ask, sent_at: float) -> float:
        """`sent_at` but for the way of an ask that meets no queue, which is half of `base_s`."""
        if ask.left_s is None:
            return sent_at + self._settings.undated_patience_s
        ways_s = self._bandwidth.base_s + ask.return_bytes / self._bandwidth.bytes_per_s
        return sent_at + ask.left_s - self._durations.expected_s(ask.model) - ways_s

    def _unfit(self, item: Waiting, now: float) -> Refuse | None:
        """Why it could not even wait."""
        ask, settings = item.ask, self._settings
        if ask.size_bytes > settings.message_most_bytes:
            return Refuse(ask.request, Reason.TOO_LARGE)
        if self._draining:
            return Refuse(ask.request, Reason.DRAINING)
        alone = now + self._bandwidth.expected_s(ask.size_bytes) + settings.margin_s
        if item.dated and alone > item.due:
            return Refuse(ask.request, Reason.DEADLINE_TOO_SHORT, short_s=alone - item.due)
        return None

    def _refuse_late(self, now: float, effects: Effects) -> None:
        """Whoever can't be in time any more, as the link was slower than it was when they asked."""
        for item in self._queue.drop_late(self._free_at(now), self._bandwidth.bytes_per_s):
            self._refuse(item.key, Reason.LINK_SLOWED, effects)

    def _refuse(self, key: Key, reason: Reason, effects: Effects) -> None:
        self._refused[reason] += 1
        effects.append((key[0], Refuse(key[1], reason)))

    # ---- grants

    def _grant(self, now: float, effects: Effects) -> None:
        while True:
            free_at, rate = self._free_at(now), self._bandwidth.bytes_per_s
            item = self._queue.next(free_at, rate)
            if item is None:
                return
            if item.dated and free_at + item.size_bytes / rate > item.due:
                self._queue.leave(item)
                self._refuse(item.key, Reason.LINK_SLOWED, effects)
            elif self._is_time(now) and self._window.fits(item.size_bytes) and self._harmless(item, now):
                self._queue.serve(item, now)
                effects.append((item.key[0], self._granting(item, now)))
            else:
                return

    def _is_time(self, now: float) -> bool:
        """Whether the link needs more, so as not to run dry. What waits here can still be overtaken; what is granted
        cannot, so nothing is granted earlier than that."""
        return not self._granted or self._left_s(now) <= self._lead_s()

    def _lead_s(self) -> float:
        return self._bandwidth.base_s + self._settings.margin_s

    def _left_s(self, now: float) -> float:
        """What is under way needs, if all goes well."""
        return min(self._window.in_flight_bytes / self._bandwidth.bytes_per_s, max(0.0, self._busy_until - now))

    def _harmless(self, item: Waiting, now: float) -> bool:
        """Whether what is under way stays in time with it. Messages share the link, so one that was granted earlier
        need not arrive earlier: at worst all arrive together, or each of n takes n times what is left."""
        bytes_per_s = self._bandwidth.bytes_per_s
        left_s = self._left_s(now)
        alone = now + left_s
        shared = now + min(left_s + item.size_bytes / bytes_per_s, left_s * (len(self._granted) + 1))
        return not any(alone <= each.due < shared for each in self._granted.values())

    def _granting(self, item: Waiting, now: float) -> Grant:
        if not self._granted:
            self._bandwidth.began(now)
        self._busy_until = max(self._busy_until, now) + item.size_bytes / self._bandwidth.bytes_per_s
        patience_s = self._settings.grant_patience * (self._bandwidth.base_s + self._busy_until - now)
        expires_s = max(self._settings.grant_min_s, patience_s)
        self._granted[item.key] = _Granted(
            item.ask, now, self._window.round, item.due if item.dated else math.inf, now + expires_s
        )
        heapq.heappush(self._expiries, (now + expires_s, item.key))
        self._window.take(item.size_bytes)
        self._counts["granted"] += 1
        return Grant(item.key[1], expires_s)

    def _cancel(self, key: Key, now: float) -> Effects:
        effects: Effects = []
        if (item := self._queue.get(key)) is not None:
            self._queue.leave(item)
        elif key in self._granted:
            self._take_back(key, now)
        else:
            return []
        self._counts["cancelled"] += 1
        self._grant(now, effects)
        return effects

    def _take_back(self, key: Key, now: float) -> None:
        """What was granted will not come."""
        granted = self._granted.pop(key)
        self._window.give(granted.ask.size_bytes)
        self._bandwidth.forget(now, last=not self._granted)
        self._busy_until = min(self._busy_until, now + self._window.in_flight_bytes / self._bandwidth.bytes_per_s)

    # ---- estimates

    def _free_at(self, now: float) -> float:
        """When what was granted has arrived, and one message's latency; what waits can be there from then on."""
        return now + self._bandwidth.base_s + self._left_s(now)


def _by_deadline(settings: Settings) -> Queue:
    limits = Limits(
        settings.waiting_most, settings.waiting_most_bytes, settings.peer_waiting_most, settings.undated_share
    )
    return Queue(limits, weight=lambda model: settings.shares.get(model, 1.0))
