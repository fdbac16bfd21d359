"""Connections of a CN to its HNs: calls are sent, answers are matched to them, lost connections come back."""

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from recmesh.runtime.errors import DeadlineExceeded, MeshError, ResourceExhausted, Unavailable
from recmesh.serving.admission.messages import ToCn, ToHn
from recmesh.serving.cn.asking import ByHn
from recmesh.serving.cn.choice import Choice
from recmesh.serving.failures import rebuilt
from recmesh.serving.frames import FrameError, Header
from recmesh.serving.hn.desk import OPERATION, read, written
from recmesh.serving.tensors import Tensor
from recmesh.serving.transport import ConnectionLost, Message, Transport
from recmesh.serving.transport.endpoints import Endpoint, dial_for_terms

DIAL_S = 5.0
BACKOFF_S = (0.02, 0.05, 0.1, 0.2, 0.5)
MOST_IN_FLIGHT = 256
SWEEP_S = 0.05

Done = Callable[[Message | MeshError], None]


@dataclass(frozen=True, slots=True)
class _Call:
    done: Done
    deadline: float
    sent: float


class Events(Protocol):
    """Told by connections, in their threads."""

    def answered(self, hn: str, seconds: float) -> None:
        """A call was answered after so long."""
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
        self, endpoint: Endpoint, *, token: str | None, log: Callable[[str], None], events: Events | None = None
    ) -> None:
        self.name = str(endpoint)
        self.refusal = ""
        """Why it is not connected."""
        self.admits = False
        """Whether it wants to be asked before it is sent a request."""
        self._endpoint = endpoint
        self._token = token
        self._events = events
        self._log = log
        self._numbers = itertools.count(1)
        self._calls: dict[int, _Call] = {}
        self._lock = threading.Lock()
        self._transport: Transport | None = None
        self._closed = threading.Event()
        threading.Thread(target=self._keep, name=f"hn {endpoint}", daemon=True).start()
        threading.Thread(target=self._sweep, name=f"deadlines {endpoint}", daemon=True).start()

    @property
    def connected(self) -> bool:
        """Whether a call could be sent now."""
        return self._transport is not None

    @property
    def in_flight(self) -> int:
        """Calls that are not answered."""
        return len(self._calls)

    def call(self, header: Header, tensors: Sequence[Tensor], *, deadline: float, done: Done) -> int:
        """Send; the call's number. Raises Unavailable or ResourceExhausted, and then never calls `done`."""
        transport = self._transport
        if transport is None:
            raise Unavailable(f"{self.name} is not connected: {self.refusal}", reason="HN_LOST")
        number = next(self._numbers)
        now = time.monotonic()
        with self._lock:
            if len(self._calls) >= MOST_IN_FLIGHT:
                raise ResourceExhausted(f"{self.name} has {MOST_IN_FLIGHT} calls to answer", reason="QUEUE_FULL")
            self._calls[number] = _Call(done, deadline, now)
        try:
            budget_ns = max(0, int((deadline - now) * 1e9))
            transport.send({**header, "call": number, "budget_ns": budget_ns}, tensors)
        except ConnectionLost as error:
            transport.close()
            if self._take(number) is not None:   # else the reading thread has told already
                raise Unavailable(f"{self.name}: {error}", reason="HN_LOST") from None
        except BaseException:
            self._take(number)
            raise
        return number

    def tell(self, message: ToHn) -> bool:
        """Say something about admission; False when it is not connected."""
        transport = self._transport
        if transport is None:
            return False
        try:
            transport.send(*written(message))
        except ConnectionLost:
            transport.close()
            return False
        return True

    def cancel(self, number: int) -> None:
        """The answer is not wanted any more: if the HN has not begun, it never will. `done` is still called."""
        if number in self._calls:
            self._withdraw(number)

    def close(self) -> None:
        """Go away; calls without an answer fail."""
        self._closed.set()
        if self._transport is not None:
            self._transport.close()

    def _keep(self) -> None:
        failures = 0
        while not self._closed.is_set():
            try:
                transport, terms = dial_for_terms(self._endpoint, token=self._token, timeout_s=DIAL_S)
            except MeshError as error:
                if str(error) != self.refusal and not isinstance(error, Unavailable):
                    self._log(f"{self.name} refuses this CN: {error}")
                self.refusal = str(error)
                self._closed.wait(BACKOFF_S[min(failures, len(BACKOFF_S) - 1)])
                failures += 1
                continue
            failures = 0
            self.admits = bool(terms.get("admission"))
            self._transport = transport
            self._read(transport)
            self._transport = None
            transport.close()
            self.refusal = "the connection ended"
            self._fail_all()
            if self._events is not None:
                self._events.lost(self.name)

    def _read(self, transport: Transport) -> None:
        try:
            while not self._closed.is_set() and (message := transport.receive()) is not None:
                self._received(message)
                del message                      # or its memory would be held until the next one comes
        except (FrameError, MeshError, TypeError, ValueError) as error:
            self._log(f"{self.name} speaks nonsense: {error}")

    def _received(self, message: Message) -> None:
        if message.header.get("op") == OPERATION:
            said = read(message)
            if self._events is not None and isinstance(said, ToCn):
                self._events.told(self.name, said)
            return
        call = self._take(int(message.header.get("call", 0)))
        if call is not None:
            if self._events is not None:
                self._events.answered(self.name, time.monotonic() - call.sent)
            call.done(rebuilt(message.header) if "error" in message.header else message)

    def _take(self, number: int) -> _Call | None:
        with self._lock:
            return self._calls.pop(number, None)

    def _fail_all(self) -> None:
        with self._lock:
            calls, self._calls = list(self._calls.values()), {}
        for call in calls:
            call.done(Unavailable(f"{self.name} ended before it answered", reason="HN_LOST"))

    def _sweep(self) -> None:
        """Calls whose time is over fail, and are cancelled at the HN: it may hang, or the network may."""
        while not self._closed.wait(SWEEP_S):
            now = time.monotonic()
            for number, call in list(self._calls.items()):
                if call.deadline <= now and self._take(number) is not None:
                    self._withdraw(number)
                    call.done(DeadlineExceeded(f"{self.name} did not answer in time", reason="HN_TOO_SLOW"))

    def _withdraw(self, number: int) -> None:
        transport = self._transport
        if transport is not None:
            try:
                transport.send({"op": "cancel", "target": number})
            except ConnectionLost:
                transport.close()


class Hns:
    """All HNs that this CN knows."""

    def __init__(
        self, endpoints: Sequence[Endpoint], choice: Choice, *, token: str | None, log: Callable[[str], None]
    ) -> None:
        self._choice = choice
        self._lock = threading.Lock()
        self._links = {
            str(endpoint): HnLink(endpoint, token=token, events=self, log=log) for endpoint in endpoints
        }
        self.asking: ByHn | None = None
        """Hears what HNs say about admission."""

    def choose(self, *, but: frozenset[str] = frozenset()) -> HnLink:
        """One that is connected, and none of those named; Unavailable tells why there is none."""
        links = [link for link in self._links.values() if link.connected and link.name not in but]
        if not links:
            why = "; ".join(f"{link.name}: {link.refusal or 'tried already'}" for link in self._links.values())
            raise Unavailable(f"no HN can be reached ({why or 'none is known'})", reason="NO_HN")
        with self._lock:
            name = self._choice.choose([link.name for link in links], [link.in_flight for link in links])
        return self._links[name]

    def link(self, name: str) -> HnLink | None:
        """By name."""
        return self._links.get(name)

    def states(self) -> dict[str, object]:
        """For people: by HN, whether it is connected, or why not, and calls that it has to answer."""
        return {
            link.name: {"connected": link.connected, "why": link.refusal, "in_flight": link.in_flight}
            for link in self._links.values()
        }

    def close(self) -> None:
        """Go away from all."""
        for link in self._links.values():
            link.close()

    def wants(self, hn: str) -> bool:
        """Whether this HN wants to be asked."""
        return self._links[hn].admits

    def tell(self, hn: str, message: ToHn) -> bool:
        """Say something about admission to an HN; False when it is not connected."""
        return self._links[hn].tell(message)

    def answered(self, hn: str, seconds: float) -> None:
        """Of a connection: a call was answered."""
        with self._lock:
            self._choice.observed(hn, seconds)

    def told(self, hn: str, message: ToCn) -> None:
        """Of a connection: the HN says something about admission."""
        if self.asking is not None:
            self.asking.received(hn, message)

    def lost(self, hn: str) -> None:
        """Of a connection: it ended."""
        if self.asking is not None:
            self.asking.lost(hn)
