"""A CN's side of admission: asks the HN that a request is for, where that HN wants to be asked."""

import itertools
import threading
import time
from dataclasses import dataclass
from typing import Protocol

from recmesh.runtime.errors import DeadlineExceeded, MeshError, Unavailable
from recmesh.serving.admission.client import Refused
from recmesh.serving.admission.messages import Ask, Cancel, Refuse, ToCn, ToHn
from recmesh.serving.admission.messages import Grant as Granted
from recmesh.serving.cn.admission import Asking, Decided, Grant

SWEEP_S = 0.05
MOST_PRIORITY = 255


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
    deadline: float


class ByHn:
    """`Admission` that leaves the decision to the HN."""

    def __init__(self, links: Links) -> None:
        self._links = links
        self._numbers = itertools.count(1)
        self._waiting: dict[tuple[str, int], _Waiting] = {}
        self._lock = threading.Lock()
        threading.Thread(target=self._sweep, name="asks", daemon=True).start()

    def ask(self, asking: Asking, decided: Decided) -> None:
        """At once where the HN does not want to be asked."""
        if not self._links.wants(asking.hn):
            decided(Grant(asking.hn))
            return
        number, now = next(self._numbers), time.monotonic()
        with self._lock:
            self._waiting[asking.hn, number] = _Waiting(decided, asking.deadline)
        ask = Ask(
            number, asking.model, asking.size_bytes, max(0.0, asking.deadline - now),
            priority=min(asking.priority, MOST_PRIORITY), at_s=now,
        )  # fmt: skip
        if not self._links.tell(asking.hn, ask):
            self._decide(asking.hn, number, _lost(asking.hn))

    def release(self, grant: Grant, *, sent: bool) -> None:
        """What was sent gave its place back when it arrived; what never will be sent does so now."""
        if grant.number and not sent:
            self._links.tell(grant.hn, Cancel(grant.number))

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

    def _decide(self, hn: str, number: int, decision: Grant | MeshError) -> bool:
        with self._lock:
            waiting = self._waiting.pop((hn, number), None)
        if waiting is not None:
            waiting.decided(decision)
        return waiting is not None

    def _sweep(self) -> None:
        """An HN that does not answer does not keep a request beyond its deadline."""
        while True:
            time.sleep(SWEEP_S)
            now = time.monotonic()
            for (hn, number), waiting in list(self._waiting.items()):
                if waiting.deadline <= now:
                    self._links.tell(hn, Cancel(number))
                    late = DeadlineExceeded(f"{hn} did not grant the request in time", reason="DEADLINE_IN_ADMISSION")
                    self._decide(hn, number, late)


def _lost(hn: str) -> Unavailable:
    return Unavailable(f"{hn} ended before it granted the request", reason="HN_LOST")
