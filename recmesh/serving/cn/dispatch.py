"""How a request gets to an HN and its answer back: choose, ask to be let in, send, try another, hedge, cancel.

All of it runs in one thread, the one that `later` puts work into. A request is computed at most by three HNs, by two at
a time; computing twice changes nothing.
"""

import threading
import time
from collections.abc import Callable
from functools import partial

from recmesh.runtime.errors import MeshError
from recmesh.serving.admission.messages import Refused
from recmesh.serving.cn.alarms import Alarms
from recmesh.serving.cn.asking import Asking, ByHn, Grant
from recmesh.serving.cn.flights import Attempt, Flight, gone
from recmesh.serving.cn.peers import Hns
from recmesh.serving.frames import Header
from recmesh.serving.transport import Message

MOST_ATTEMPTS = 3
"""Of HNs that may have computed a request."""
MOST_ASKS = 12
"""With those for whose grant this process was too slow: they computed nothing."""
FAILURES = frozenset({"HN_LOST", "DRAINING", "NOT_LOADED", "OTHER_HALF", "HN_TOO_SLOW", "DEADLINE_IN_ADMISSION"})
"""Reasons for which an HN is left alone when they come in a row."""
ELSEWHERE = frozenset({
    "HN_LOST", "DRAINING", "NOT_LOADED", "NOT_HELD", "OTHER_HALF", "QUEUE_FULL", "DEADLINE_BEHIND_QUEUE",
    "SHED_FOR_PRIORITY",
})  # fmt: skip
"""Reasons of one HN for which another may be asked."""
ASK_AGAIN = frozenset({"NOT_GRANTED", "GRANT_EXPIRED"})
"""This process was too slow for its grant, or the HN has forgotten it: any HN may be asked, the same too."""

Later = Callable[[Flight, Callable[[], None]], None]
"""Run this in the thread, by the flight's priority."""
Answered = Callable[[Flight, Attempt, Message, int], None]
"""Whose answer it is, and when it came, in nanoseconds of the monotonic clock."""


class Dispatch:
    """Used in the thread of `later` alone, but for `cancel`."""

    def __init__(
        self, hns: Hns, asking: ByHn, alarms: Alarms, *, later: Later, answered: Answered,
        failed: Callable[[Flight, Exception], None],
    ) -> None:  # fmt: skip
        """For each flight that is sent either `answered` or `failed` is called in the end."""
        self._hns = hns
        self._asking = asking
        self._alarms = alarms
        self._later = later
        self._answered = answered
        self._failed = failed

    def send(self, flight: Flight) -> None:
        """Get the answer of its dense half."""
        flight.tensors = flight.model.sent(flight.known)
        after_s = flight.fleet.called()
        if after_s is not None and len(flight.fleet.names) > 1:
            hedge = partial(self._later, flight, partial(self._hedge, flight))
            flight.hedge = self._alarms.set(time.monotonic() + after_s, hedge)
        self._try(flight)

    def cancel(self, flight: Flight) -> None:
        """Nobody waits for it. From any thread; the HNs are told, and places that it waits for are given up."""
        flight.cancelled = True
        self._later(flight, partial(self._end, flight, gone()))

    def _try(self, flight: Flight, why: MeshError | None = None) -> None:
        """Ask one more HN. Where there is none the flight ends by `why`, unless another HN is still asked."""
        try:
            flight.check()
            try:
                link = self._hns.choose(flight.fleet, but=flight.tried)
            except MeshError as error:
                raise why or error from None     # nobody else is there: tell what happened, not that
        except MeshError as error:
            if not flight.under_way:
                self._end(flight, error)
            return
        attempt = Attempt(link, time.monotonic())
        flight.attempts.append(attempt)
        flight.tried |= {link.name}
        flight.fleet.began(link.name)
        size_bytes, thread = flight.size_bytes, threading.current_thread()
        asking = Asking(
            link.name, flight.model.key, size_bytes, flight.deadline, flight.priority,
            flight.fleet.answer_bytes(size_bytes),
        )  # fmt: skip

        def decided(decision: Grant | MeshError) -> None:
            if threading.current_thread() is thread:
                self._decided(flight, attempt, decision)
            else:                                # in the thread of a connection, which must not wait for a send
                self._later(flight, partial(self._decided, flight, attempt, decision))

        number = self._asking.ask(asking, decided)
        if not attempt.over and not attempt.granted_ns:
            attempt.ask = number

    def _decided(self, flight: Flight, attempt: Attempt, decision: Grant | MeshError) -> None:
        attempt.ask = 0
        if attempt.over:                         # it was given up in the very moment
            if isinstance(decision, Grant):
                self._asking.give_up(decision.hn, decision.number)
            return
        if isinstance(decision, MeshError):
            self._fails(flight, attempt, decision)
            return
        attempt.granted_ns = time.monotonic_ns()
        header: Header = {
            "op": "infer", "model": flight.model.key, "outputs": flight.model.asked(flight.outputs),
            "priority": flight.priority, "timeout_us": flight.timeout_us, "grant": decision.number,
            "program": flight.model.dense.sha256,
        }  # fmt: skip
        if flight.version is not None:
            header["version"] = flight.version.number

        def done(result: Message | MeshError) -> None:
            self._later(flight, partial(self._done, flight, attempt, result, time.monotonic_ns()))

        try:
            flight.check()
            attempt.grant = decision.number
            attempt.call = attempt.link.call(header, flight.tensors, deadline=flight.deadline, done=done)
        except Exception as error:               # whatever: this thread must go on
            self._asking.give_up(decision.hn, decision.number)
            if isinstance(error, MeshError):
                self._fails(flight, attempt, error)
            else:
                self._end(flight, error)

    def _done(self, flight: Flight, attempt: Attempt, result: Message | MeshError, at_ns: int) -> None:
        if attempt.over:
            return
        if isinstance(result, MeshError):
            self._fails(flight, attempt, result)
            return
        attempt.over = True
        flight.fleet.answered(
            attempt.link.name, at_ns / 1e9 - attempt.began, sent_bytes=flight.size_bytes,
            answer_bytes=sum(tensor.array.nbytes for tensor in result.tensors),
        )  # fmt: skip
        self._drop(flight)
        self._answered(flight, attempt, result, at_ns)

    def _fails(self, flight: Flight, attempt: Attempt, error: MeshError) -> None:
        """This HN will not answer it; another may."""
        attempt.over = True
        attempt.too_late = error.reason in ASK_AGAIN
        if error.reason in FAILURES:
            flight.fleet.failed(attempt.link.name)
        else:
            retry_after_s = error.refusal.retry_after_s if isinstance(error, Refused) else 0.0
            flight.fleet.refused(attempt.link.name, retry_after_s=retry_after_s)
        if error.reason == "NOT_HELD":
            self._anew(flight, attempt)
        if not elsewhere(error) and error.reason not in ASK_AGAIN:
            if not flight.under_way:             # else the other HN may still answer: it was asked earlier
                self._end(flight, error)
        elif flight.computed < MOST_ATTEMPTS and len(flight.attempts) < MOST_ASKS:
            if error.reason in ASK_AGAIN:
                flight.tried = frozenset(each.link.name for each in flight.under_way)
            self._try(flight, error)
        elif not flight.under_way:
            self._end(flight, error)

    def _anew(self, flight: Flight, attempt: Attempt) -> None:
        """An HN does not hold the constants of the request's version. If that does not serve any more, the request is
        made one of the version that does, which all HNs that are asked hold; but not while another HN computes it."""
        following, version = flight.following, flight.version
        if following is None or version is None:
            return
        following.lacks(attempt.link.name, version)
        if following.sparse.version is not version and not flight.under_way:
            flight.give_back()
            flight.take()
            flight.prepare()
            flight.tensors = flight.model.sent(flight.known)
            flight.tried = frozenset()

    def _hedge(self, flight: Flight) -> None:
        """It takes longer than usual: a second HN beside the first, if there is one and the budget has it."""
        if len(flight.under_way) != 1 or len(flight.attempts) >= MOST_ATTEMPTS or flight.cancelled:
            return
        if self._hns.there(flight.fleet, but=flight.tried) and flight.fleet.spend():
            self._try(flight)

    def _end(self, flight: Flight, error: Exception) -> None:
        self._drop(flight)
        self._failed(flight, error)

    def _drop(self, flight: Flight) -> None:
        """Whoever is still asked need not answer."""
        if flight.hedge is not None:
            flight.hedge.cancel()
        for attempt in flight.under_way:
            attempt.over = True
            flight.fleet.dropped(attempt.link.name, time.monotonic() - attempt.began)
            if attempt.call:
                if attempt.link.cancel(attempt.call):
                    self._asking.give_up(attempt.link.name, attempt.grant)
            else:
                self._asking.give_up(attempt.link.name, attempt.ask)


def elsewhere(error: MeshError) -> bool:
    """Whether another HN may have a better answer."""
    return error.refusal.reason.elsewhere if isinstance(error, Refused) else error.reason in ELSEWHERE
