"""A CN's side of admission: asks the HN that a request is for, where that HN wants to be asked."""

import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from recmesh.runtime.errors import DeadlineExceeded, MeshError, Unavailable
from recmesh.serving.admission.messages import MOST_PRIORITY, Ask, Cancel, Refuse, Refused, ToCn, ToHn
from recmesh.serving.admission.messages import Grant as Granted
from recmesh.serving.cn.alarms import Alarm, Alarms


@dataclass(frozen=True, slots=True)
class Asking:
    """A request that is ready to be sent."""

    hn: str
    model: str
    size_bytes: int
    deadline: float | None
    """On this process' monotonic clock; None: none."""
    priority: int = 0
    return_bytes: int = 0
    """Expected of the answer."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Leave to send; `number` is what it was asked by, 0 where nobody was asked."""

    hn: str
    number: int = 0


Decided = Callable[[Grant | MeshError], None]
UNDATED_S = 60.0
"""An HN that is silent for so long does not answer any more, whatever the request's deadline."""


class Links(Protocol):
    """What asking needs of the connections to HNs."""

    def wants(self, hn: str) -> bool:
        """Whether this HN wants to be asked."""
        ...

    def tell(self, hn: str, message: ToHn) -> bool:
        """Say something to an HN; False when it is not connected."""
        ...


@dataclass(frozen=True, slots=True)
class _Waiting:
    decided: Decided
    alarm: Alarm


class ByHn:
    """Leaves the decision to the HN. Used from any thread."""

    def __init__(self, links: Links, alarms: Alarms) -> None:
        self._links = links
        self._alarms = alarms
        self._numbers = itertools.count(1)
        self._waiting: dict[tuple[str, int], _Waiting] = {}
        self._lock = threading.Lock()

    def ask(self, asking: Asking, decided: Decided) -> int:
        """`decided` is called once, with a grant or with why the request may not be sent: at once where the HN does
        not want to be asked, in a connection's thread otherwise. The number to give it up by."""
        if not self._links.wants(asking.hn):
            decided(Grant(asking.hn))
            return 0
        number, now = next(self._numbers), time.monotonic()
        left_s = None if asking.deadline is None else max(0.0, asking.deadline - now)
        with self._lock:                         # the alarm may ring at once, and waits for it
            alarm = self._alarms.set(
                now + (UNDATED_S if left_s is None else left_s), lambda: self._late(asking.hn, number)
            )
            self._waiting[asking.hn, number] = _Waiting(decided, alarm)
        ask = Ask(
            number, asking.model, asking.size_bytes, left_s, asking.return_bytes,
            min(asking.priority, MOST_PRIORITY), at_s=now,
        )  # fmt: skip
        if not self._links.tell(asking.hn, ask):
            self._decide(asking.hn, number, _lost(asking.hn))
        return number

    def give_up(self, hn: str, number: int) -> None:
        """What was asked, or granted and not sent, is not wanted any more: its place at the HN is free again.

        `decided` may still be called where the answer is on its way.
        """
        if number:
            self._take(hn, number)
            self._links.tell(hn, Cancel(number))

    def received(self, hn: str, message: ToCn) -> None:
        """An HN says something."""
        match message:
            case Granted():
                if not self._decide(hn, message.request, Grant(hn, message.request)):
                    self._links.tell(hn, Cancel(message.request))     # nobody waits for it any more
            case Refuse():
                self._decide(hn, message.request, Refused(message))

    def lost(self, hn: str) -> None:
        """The connection to an HN ended."""
        for name, number in list(self._waiting):
            if name == hn:
                self._decide(name, number, _lost(hn))

    def waiting(self, hn: str) -> int:
        """Asks that the HN has not answered."""
        return sum(name == hn for name, _ in list(self._waiting))

    def _decide(self, hn: str, number: int, decision: Grant | MeshError) -> bool:
        waiting = self._take(hn, number)
        if waiting is not None:
            waiting.decided(decision)
        return waiting is not None

    def _take(self, hn: str, number: int) -> _Waiting | None:
        with self._lock:
            waiting = self._waiting.pop((hn, number), None)
        if waiting is not None:
            waiting.alarm.cancel()
        return waiting

    def _late(self, hn: str, number: int) -> None:
        """An HN that does not answer does not keep a request beyond its deadline."""
        late = DeadlineExceeded(f"{hn} did not grant the request in time", reason="DEADLINE_IN_ADMISSION")
        if self._decide(hn, number, late):
            self._links.tell(hn, Cancel(number))


def _lost(hn: str) -> Unavailable:
    return Unavailable(f"{hn} ended before it granted the request", reason="HN_LOST")
