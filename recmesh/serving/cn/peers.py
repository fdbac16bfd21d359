"""Connections of a CN to its HNs: calls are sent, answers are matched to them, lost connections come back.

To an HN that wants to be asked, over a network, there are two: asks must not wait behind messages.
"""

import itertools
import math
import queue
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from recmesh.runtime.errors import (
    DeadlineExceeded,
    Internal,
    MeshError,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
)
from recmesh.serving.admission.frames import OPERATION, read, written
from recmesh.serving.admission.messages import ToCn, ToHn
from recmesh.serving.cn.alarms import Alarm, Alarms
from recmesh.serving.cn.fleet import Fleet
from recmesh.serving.failures import rebuilt
from recmesh.serving.frames import FrameError, Header
from recmesh.serving.tensors import Tensor
from recmesh.serving.transport import ConnectionLost, Message, Transport
from recmesh.serving.transport.endpoints import Dial, Endpoint

DIAL_S = 5.0
BACKOFF_S = (0.02, 0.05, 0.1, 0.2, 0.5)
MOST_IN_FLIGHT = 256
LARGE_BYTES = 64 << 10
"""Over a network, larger messages are sent by a thread of the link's own: whoever computes need not wait for it."""
CONTROL = "control"
"""The second connection's first frame: it is for asks and their answers, of the peer that it names."""

Done = Callable[[Message | MeshError], None]


@dataclass(frozen=True, slots=True)
class _Call:
    done: Done
    alarm: Alarm


@dataclass(frozen=True, slots=True)
class _Wires:
    """Where frames go while connected."""

    data: Transport
    control: Transport
    """The same where there is one connection."""
    peer: str
    """By what name the HN joins the two; empty of one."""

    def close(self) -> None:
        self.data.close()
        self.control.close()


class Events(Protocol):
    """Told by connections, in their threads."""

    def connected(self, hn: str) -> None:
        """Calls can be sent."""
        ...

    def told(self, hn: str, message: ToCn) -> None:
        """The HN says something about a request that it was asked for."""
        ...

    def lost(self, hn: str) -> None:
        """The connection ended."""
        ...


class HnLink:
    """One HN. Answers are given to `done` in this link's thread: it must not wait there."""

    def __init__(
        self, endpoint: Endpoint, *, dial: Dial, alarms: Alarms, log: Callable[[str], None],
        events: Events | None = None,
    ) -> None:  # fmt: skip
        self.name = str(endpoint)
        self.refusal = ""
        """Why it is not connected."""
        self.stranger: Unauthenticated | None = None
        """Where it is none of this mesh, or we are none of its: trying again is of no use."""
        self.terms: Mapping[str, Any] = {}
        """What it wants its clients to know."""
        self._endpoint = endpoint
        self._dial = dial
        self._alarms = alarms
        self._events = events
        self._log = log
        self._numbers = itertools.count(1)
        self._calls: dict[int, _Call] = {}
        self._unsent: set[int] = set()
        """Of them, those that are still in the mail."""
        self._lock = threading.Lock()
        self._wires: _Wires | None = None
        self._outbox: queue.SimpleQueue[tuple[Transport, Header, Sequence[Tensor]] | None] = queue.SimpleQueue()
        self._mail: queue.SimpleQueue[tuple[_Wires, Header, Sequence[Tensor], float, int] | None] = queue.SimpleQueue()
        self._closed = threading.Event()
        self._leaving = False
        self._again = threading.Event()
        """Dial now, and not after the wait that is under way."""
        self._tried = threading.Condition()
        self._dials = 0
        """How often it was tried."""
        threading.Thread(target=self._keep, name=f"hn {endpoint}", daemon=True).start()
        threading.Thread(target=self._write, name=f"words {endpoint}", daemon=True).start()
        if endpoint.carrier == "tcp":
            threading.Thread(target=self._post, name=f"mail {endpoint}", daemon=True).start()

    @property
    def connected(self) -> bool:
        """Whether a call could be sent now."""
        return self._wires is not None

    @property
    def admits(self) -> bool:
        """Whether it wants to be asked before it is sent a request."""
        return bool(self.terms.get("admission"))

    @property
    def loads(self) -> bool:
        """Whether it loads the models that it is told to."""
        return bool(self.terms.get("loads"))

    @property
    def in_flight(self) -> int:
        """Calls that are not answered."""
        return len(self._calls)

    def reach(self, until: float) -> bool:
        """Whether it is connected, which is tried now rather than after a wait: the last try may have been before the
        HN came. Returns once that is known, or at `until`."""
        with self._tried:
            most = self._dials + 2               # the one that is under way may have begun too early
            while not self.connected and not self._closed.is_set() and self._dials < most:
                self._again.set()
                if not self._tried.wait(max(0.0, until - time.monotonic())):
                    break
        return self.connected

    def call(self, header: Header, tensors: Sequence[Tensor], *, deadline: float, done: Done) -> int:
        """Send, or have it sent; the call's number. Raises Unavailable or ResourceExhausted, and then never calls
        `done`."""
        wires = self._wires
        if wires is None:
            raise Unavailable(f"{self.name} is not connected: {self.refusal}", reason="HN_LOST")
        number = next(self._numbers)
        with self._lock:
            if len(self._calls) >= MOST_IN_FLIGHT:
                raise ResourceExhausted(f"{self.name} has {MOST_IN_FLIGHT} calls to answer", reason="QUEUE_FULL")
            alarm = self._alarms.set(deadline, partial(self._late, number))
            self._calls[number] = _Call(done, alarm)
        header = {**header, "call": number, **({"peer": wires.peer} if wires.peer else {})}
        if self._endpoint.carrier == "tcp" and sum(tensor.array.nbytes for tensor in tensors) > LARGE_BYTES:
            with self._lock:
                self._unsent.add(number)
            self._mail.put((wires, header, tensors, deadline, number))
            return number
        try:
            wires.data.send({**header, "budget_ns": _left_ns(deadline)}, tensors)
        except ConnectionLost as error:
            wires.close()
            if self._take(number) is not None:   # else the reading thread has told already
                raise Unavailable(f"{self.name}: {error}", reason="HN_LOST") from None
        except BaseException:
            self._take(number)
            raise
        return number

    def tell(self, message: ToHn) -> bool:
        """Say something about admission; False when it is not connected. Does not wait for the network."""
        wires = self._wires
        if wires is None:
            return False
        self._outbox.put((wires.control, *written(message)))
        return True

    def cancel(self, number: int) -> bool:
        """The answer is not wanted any more: if the HN has not begun, it never will. `done` is still called; but where
        it was not even sent, which is True, it is not."""
        with self._lock:
            is_unsent = number in self._unsent
            self._unsent.discard(number)
        if is_unsent:
            self._take(number)
        elif number in self._calls:
            self._withdraw(number)
        return is_unsent

    def leave(self) -> None:
        """Go away once all calls are answered; its end is no event any more."""
        self._leaving = True
        if not self._calls:
            self.close()

    def close(self) -> None:
        """Go away; calls without an answer fail."""
        self._closed.set()
        self._again.set()
        self._outbox.put(None)
        self._mail.put(None)
        if self._wires is not None:
            self._wires.close()

    def _keep(self) -> None:
        failures = 0
        while not self._closed.is_set():
            try:
                wires, self.terms = self._connect()
            except MeshError as error:
                if str(error) != self.refusal and not isinstance(error, Unavailable):
                    self._log(f"{self.name} refuses this CN: {error}")
                self.refusal = str(error)
                self.stranger = error if isinstance(error, Unauthenticated) else None
                self._was_tried()
                self._again.wait(BACKOFF_S[min(failures, len(BACKOFF_S) - 1)])
                self._again.clear()
                failures += 1
                continue
            failures, self.refusal, self.stranger = 0, "", None
            self._wires = wires
            self._was_tried()
            if wires.peer:
                threading.Thread(target=self._read, args=(wires, wires.control), name="words", daemon=True).start()
            if self._events is not None:
                self._events.connected(self.name)
            self._read(wires, wires.data)
            self._wires = None
            self.refusal = "the connection ended"
            self._fail_all()
            if self._events is not None and not self._leaving:
                self._events.lost(self.name)

    def _was_tried(self) -> None:
        with self._tried:
            self._dials += 1
            self._tried.notify_all()

    def _connect(self) -> tuple[_Wires, Mapping[str, Any]]:
        data, terms = self._dial(self._endpoint, timeout_s=DIAL_S)
        if not terms.get("admission") or self._endpoint.carrier != "tcp":
            return _Wires(data, data, ""), terms
        try:
            control, _ = self._dial(self._endpoint, timeout_s=DIAL_S, urgent=True)
            peer = secrets.token_hex(8)
            control.send({"op": CONTROL, "peer": peer})
        except (MeshError, ConnectionLost) as error:
            data.close()
            raise Unavailable(f"{self.name} cannot be asked: {error}", reason="HN_UNREACHABLE") from None
        return _Wires(data, control, peer), terms

    def _read(self, wires: _Wires, transport: Transport) -> None:
        """Until it ends, and with it the other one."""
        try:
            while not self._closed.is_set() and (message := transport.receive()) is not None:
                self._received(message)
                del message                      # or its memory would be held until the next one comes
        except (FrameError, MeshError, TypeError, ValueError) as error:
            self._log(f"{self.name} speaks nonsense: {error}")
        wires.close()

    def _received(self, message: Message) -> None:
        if message.header.get("op") == OPERATION:
            said = read(message)
            if self._events is not None and isinstance(said, ToCn):
                self._events.told(self.name, said)
            return
        call = self._take(int(message.header.get("call", 0)))
        if call is not None:
            call.done(rebuilt(message.header) if "error" in message.header else message)

    def _take(self, number: int) -> _Call | None:
        with self._lock:
            call = self._calls.pop(number, None)
            self._unsent.discard(number)
        if call is not None:
            call.alarm.cancel()
        if self._leaving and not self._calls:
            self.close()
        return call

    def _fail_all(self) -> None:
        for number in list(self._calls):
            call = self._take(number)
            if call is not None:
                call.done(Unavailable(f"{self.name} ended before it answered", reason="HN_LOST"))

    def _late(self, number: int) -> None:
        """A call whose time is over fails, and is cancelled at the HN: it may hang, or the network may."""
        call = self._take(number)
        if call is not None:
            self._withdraw(number)
            call.done(DeadlineExceeded(f"{self.name} did not answer in time", reason="HN_TOO_SLOW"))

    def _withdraw(self, number: int) -> None:
        wires, header = self._wires, {"op": "cancel", "target": number}
        if wires is not None and wires.peer:     # behind the messages of its connection; asks go by the other
            self._mail.put((wires, header, (), math.inf, 0))
        elif wires is not None:
            self._outbox.put((wires.data, header, ()))

    def _post(self) -> None:
        while (mail := self._mail.get()) is not None:
            wires, header, tensors, deadline, number = mail
            failure: MeshError | None = None
            with self._lock:
                is_wanted = number in self._unsent and number in self._calls
                self._unsent.discard(number)
            if is_wanted or not number:          # else it is too late, or the connection ended
                try:
                    wires.data.send({**header, "budget_ns": _left_ns(deadline)} if number else header, tensors)
                except ConnectionLost as error:
                    wires.close()
                    failure = Unavailable(f"{self.name}: {error}", reason="HN_LOST")
                except Exception as error:       # whatever: others want to be sent too
                    failure = Internal(f"{type(error).__name__}: {error}", reason="NOT_SENT")
            del mail, tensors                    # or their memory would be held until the next one comes
            if failure is not None and (call := self._take(number)) is not None:
                call.done(failure)

    def _write(self) -> None:
        """Words that nobody may have to wait for."""
        while (word := self._outbox.get()) is not None:
            transport, header, tensors = word
            try:
                transport.send(header, tensors)
            except ConnectionLost:
                transport.close()


def _there(known: Mapping[str, HnLink], fleet: Fleet, *, but: frozenset[str]) -> list[str]:
    return [name for name in fleet.able if name not in but and name in known and known[name].connected]


def _left_ns(deadline: float) -> int:
    return max(0, int((deadline - time.monotonic()) * 1e9))


class Hns:
    """All HNs that this CN knows: those that it was started with, and those of models with HNs of their own."""

    def __init__(
        self, endpoints: Sequence[Endpoint], *, dial: Dial, alarms: Alarms, log: Callable[[str], None]
    ) -> None:
        self._dial = dial
        self._alarms = alarms
        self._log = log
        self._links: dict[str, HnLink] = {}
        self._lock = threading.Lock()
        self._uses: Counter[str] = Counter()
        """How often each was made known: once for all models that name none, and by each that names its own."""
        self._left: dict[str, HnLink] = {}
        """Those that answer what they were asked before, and nothing more."""
        self.listeners: list[Events] = []
        self.usual = self.know(endpoints)
        """Names of those for models that name none."""

    def know(self, endpoints: Sequence[Endpoint]) -> tuple[str, ...]:
        """Connect to those that are new; the names of all of them. They stay until they were forgotten as often."""
        names = tuple(dict.fromkeys(map(str, endpoints)))
        with self._lock:
            for endpoint in endpoints:
                if str(endpoint) not in self._links:
                    self._links[str(endpoint)] = HnLink(
                        endpoint, dial=self._dial, alarms=self._alarms, log=self._log, events=self
                    )
            self._uses.update(names)
        return names

    def forget(self, names: Sequence[str]) -> None:
        """Who knew them needs them no more. Those that nobody needs answer what they were asked, and are left."""
        with self._lock:
            self._uses.subtract(names)
            links = dict(self._links)            # requests choose in other threads: changed in one step
            gone = [links.pop(name) for name in names if self._uses[name] <= 0 and name in links]
            self._uses = +self._uses
            self._links = links
            for link in gone:
                link.leave()
            self._left = {name: link for name, link in self._left.items() if link.in_flight}
            self._left |= {link.name: link for link in gone if link.in_flight}
        for link in gone:
            self.lost(link.name)                 # said here: it may be made known again before it has ended

    def add(self, endpoints: Sequence[Endpoint]) -> None:
        """These are usual ones, too, from now on."""
        self.usual += self.know([each for each in endpoints if str(each) not in self.usual])

    def use(self, endpoints: Sequence[Endpoint]) -> None:
        """These are the usual ones from now on, instead of those that were."""
        before, self.usual = self.usual, self.know(endpoints)
        self.forget(before)

    def choose(self, fleet: Fleet, *, but: frozenset[str] = frozenset()) -> HnLink:
        """One that is connected, and none of those named; Unavailable tells why there is none."""
        known = self._links                      # requests and `use` are in different threads
        name = fleet.pick(_there(known, fleet, but=but))
        if name is None:
            able = fleet.able
            others = {name: "tried already" if name in able else "it is loading the model" for name in fleet.names}
            why = "; ".join(
                f"{name}: {known[name].refusal or other}" for name, other in others.items() if name in known
            )
            strangers = [known[name].stranger for name in fleet.names if name in known]
            if strangers and (first := strangers[0]) is not None and None not in strangers:
                raise Unavailable(f"no HN lets this CN in ({why})", reason=first.reason)
            raise Unavailable(f"no HN can be reached ({why or 'none is known'})", reason="NO_HN")
        return known[name]

    def there(self, fleet: Fleet, *, but: frozenset[str] = frozenset()) -> list[str]:
        """Those that are connected and have the model, without those named."""
        return _there(self._links, fleet, but=but)

    def link(self, name: str) -> HnLink | None:
        """By name."""
        return self._links.get(name) or self._left.get(name)

    def links(self) -> list[HnLink]:
        """All."""
        return list(self._links.values())

    def close(self) -> None:
        """Go away from all."""
        for link in [*self.links(), *self._left.values()]:
            link.close()

    def wants(self, hn: str) -> bool:
        """Whether this HN wants to be asked."""
        link = self.link(hn)
        return link is not None and link.admits

    def tell(self, hn: str, message: ToHn) -> bool:
        """Say something about admission to an HN; False when it is not connected."""
        link = self.link(hn)
        return link is not None and link.tell(message)

    def connected(self, hn: str) -> None:
        """Of a connection."""
        for listener in self.listeners:
            listener.connected(hn)

    def told(self, hn: str, message: ToCn) -> None:
        """Of a connection: the HN says something about admission."""
        for listener in self.listeners:
            listener.told(hn, message)

    def lost(self, hn: str) -> None:
        """Of a connection: it ended."""
        for listener in self.listeners:
            listener.lost(hn)
