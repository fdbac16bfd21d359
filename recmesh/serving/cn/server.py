"""Connections of a CN, and a request's way: pre here, dense on an HN, post here.

    load       model, folder, timeout_s, settings            by the parent process alone; before the answer there may be
                                                             others with `waits`: what it waits for
    unload     model                                         as above
    infer      model, outputs, budget_ns, priority, timeout_us   and the model's inputs
    cancel     target                                        goes on to the HN
    hns        addresses                                     by the parent alone: these are asked from now on; answered
                                                             when they can be, or cannot be reached
    fresh      model, act, version                           by the parent alone; of a model that follows a job
    ping                                                     models, requests that wait, HNs, and how busy it was
    status                                                   all of it, and its HNs' (docs/reference/serving.md)

One thread computes: post before pre, so that what has begun is finished first; models take turns at pre (`line`). How
a request gets to an HN and back is `dispatch`'s.
"""

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from recmesh.runtime.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    MeshError,
    ResourceExhausted,
    Unavailable,
)
from recmesh.serving.admission.domain.hedging import HedgeRules
from recmesh.serving.admission.messages import ToCn
from recmesh.serving.cn.alarms import Alarms
from recmesh.serving.cn.asking import ByHn
from recmesh.serving.cn.dispatch import Dispatch
from recmesh.serving.cn.fleet import Fleet
from recmesh.serving.cn.flights import Attempt, Flight, gone
from recmesh.serving.cn.halves import Halves
from recmesh.serving.cn.line import Line, Turn
from recmesh.serving.cn.loaded import Loaded, opened
from recmesh.serving.cn.model import CnModel
from recmesh.serving.cn.peers import Hns
from recmesh.serving.cn.status import status_of
from recmesh.serving.failures import describe
from recmesh.serving.frames import FrameError, Header
from recmesh.serving.fresh import asking
from recmesh.serving.hn.batching import MOST_WAITING
from recmesh.serving.hn.server import MAX_BUDGET_S, reply
from recmesh.serving.programs import Arrays
from recmesh.serving.programs.warmup import check_outputs, warm_up_inputs
from recmesh.serving.settings import ServingSettings
from recmesh.serving.tensors import Tensor
from recmesh.serving.transport import Message, Transport
from recmesh.serving.transport.endpoints import Endpoint

MOST_INSIDE = 1024
"""Requests that are begun or wait to be, of all models."""
AGAIN_S = 0.1
NOT_YET = frozenset({"NO_HN", "HN_LOST", "DRAINING", "NOT_LOADED", "NOT_HELD"})
"""Of HNs that may be starting, or be reading their half, while a CN loads its own."""
SETTLE_S, LOOK_S = 5.0, 0.01
"""For so long HNs that are to be asked may take to be of use, while those that were asked before still are."""
NEVER = frozenset({"BAD_TOKEN", "BAD_CERTIFICATE", "BAD_PROTOCOL"})
"""Of HNs that are not of this mesh: waiting for them is of no use."""


class Server:
    """Loaded models, and requests for them from any number of connections."""

    def __init__(
        self, hns: Hns, *, alarms: Alarms, log: Callable[[str], None], threads: int = 1,
        hedging: HedgeRules | None = None, most_waiting: int = MOST_WAITING,
    ) -> None:  # fmt: skip
        """`most_waiting`: requests of one model that may wait to be begun."""
        self._hns = hns
        self._asking = ByHn(hns, alarms)
        self._halves = Halves(hns, alarms=alarms, log=log)
        self._hedging = hedging
        self._log = log
        self._threads = threads
        self._most_waiting = most_waiting
        self._models: dict[str, Loaded] = {}
        self._connections = itertools.count()
        self._line: Line[Flight] = Line()
        self._flights: dict[tuple[int, int], Flight] = {}
        self._own = itertools.count(1)
        self._changing = threading.Lock()
        self._uses = 0
        """How often other HNs were to be used."""
        self._draining = False
        self._busy_ns = self._answered = 0
        self._dispatch = Dispatch(
            hns, self._asking, alarms, later=self._later,
            answered=self._finish, failed=self._end,
        )  # fmt: skip
        hns.listeners.append(self)
        threading.Thread(target=self._compute, name="compute", daemon=True).start()

    def serve(self, transport: Transport, *, trusted: bool = False) -> None:
        """Answer until the other side goes. Only who is trusted may load and unload."""
        caller = next(self._connections)
        try:
            while (message := transport.receive()) is not None:
                self._handle(transport, caller, message, trusted=trusted)
                del message
        except (FrameError, InvalidArgument) as error:
            self._log(f"a connection is given up: {error}")
        finally:
            transport.close()
            for flight in list(self._flights.values()):
                if flight.caller == caller:
                    self._cancel(flight)

    def load(
        self, key: str, folder: Path, *, timeout_s: float, settings: ServingSettings | None = None,
        waits: Callable[[str], None] = lambda _why: None,
    ) -> None:
        """Read the stages, then run a request of zeros all the way; returns when the model can serve.

        HNs that load what they are told to are told. An HN may be starting, or be reading its half, at the same time:
        that is waited for, and `waits` told why.
        """
        until = time.monotonic() + timeout_s
        settings = settings or ServingSettings()
        loaded = opened(
            key, folder, settings, self._hns, threads=self._threads, hedging=self._hedging, log=self._log,
            turn=Turn(self._most_waiting),
        )
        header: Header = {
            "folder": str(folder), "part": "dense",
            "settings": settings.model_dump(mode="json", exclude={"embeddings", "freshness"}),   # not the HN's matter
        }
        self.admit(loaded, header, until=until, waits=waits)

    def admit(
        self, loaded: Loaded, header: Header, *, until: float, waits: Callable[[str], None] = lambda _why: None
    ) -> None:
        """Serve what was read here, once it is warm; `header` as `Halves.load` has it."""
        key, before = loaded.model.key, self._halves.wanted(loaded.model.key)
        said = ""
        try:
            self._halves.load(key, header, loaded.members, until=until)
            while True:
                try:
                    self._warm_up(loaded, until)
                    break
                except Unavailable as error:
                    if error.reason in NEVER:
                        raise FailedPrecondition(error.message, reason=error.reason) from None
                    if error.reason not in NOT_YET or time.monotonic() + AGAIN_S > until:
                        raise
                    if str(error) != said:
                        said = str(error)
                        waits(f"{error.reason}: {said}")
                    time.sleep(AGAIN_S)
        except BaseException:
            self._halves.put_back(key, before)
            self._leave(loaded)
            raise
        loaded.begin()
        self._install(loaded)

    def use(self, hns: Sequence[Endpoint], *, patience_s: float = SETTLE_S) -> None:
        """These are the usual HNs from now on; those that were answer what they were asked, and are left.

        Returns when these can be asked for all models, as far as they can be reached; until then those that were
        usual are asked, too, so that no request finds none.
        """
        until = time.monotonic() + patience_s
        with self._changing:
            self._uses += 1
            time_used, models = self._uses, list(self._models.values())
            self._hns.add(hns)
            for loaded in models:
                self._follow(loaded)
        links = [link for each in hns if (link := self._hns.link(str(each))) is not None]
        there = {link.name for link in links if link.reach(until)}
        usual = [loaded for loaded in models if loaded.is_usual]
        while any(there.difference(loaded.fleet.able) for loaded in usual) and time.monotonic() < until:
            time.sleep(LOOK_S)
        with self._changing:
            if time_used != self._uses:
                return                           # others are to be used by now
            self._hns.use(hns)
            for loaded in self._models.values():
                self._follow(loaded)

    def install(self, model: CnModel) -> None:
        """Serve this model from now on, by the usual HNs."""
        fleet = Fleet(self._hns.usual, hedging=self._hedging)
        self._install(Loaded(model, fleet, is_usual=True, turn=Turn(self._most_waiting)))

    def unload(self, key: str) -> None:
        """Forget the model; so do HNs that loaded it for this CN."""
        loaded = self._models.pop(key, None)
        self._halves.unload(key)
        self._leave(loaded)

    def submit(
        self, key: str, inputs: Arrays, outputs: Sequence[str], *, deadline: float,
        answer: Callable[[Header, Sequence[Tensor]], None], fail: Callable[[Exception], None], priority: int = 0,
        timeout_us: int = 0, caller: int = -1, call: int = 0,
    ) -> None:  # fmt: skip
        """Run the model; one of `answer` and `fail` is called once, in another thread. Raises what can be said at
        once: Unavailable, ResourceExhausted, DeadlineExceeded."""
        if self._draining:
            raise Unavailable("this process is being stopped", reason="DRAINING")
        loaded = self._models.get(key)
        if loaded is None:
            raise Unavailable(f"model {key!r} is not loaded", reason="NOT_LOADED")
        self._start(Flight(
            loaded.model, loaded.fleet, inputs, outputs, deadline, priority, timeout_us, answer, fail, caller,
            call or next(self._own), turn=loaded.turn, following=loaded.following,
        ))  # fmt: skip

    def drain(self, timeout_s: float) -> bool:
        """Take no more requests, finish those that are there; False when they took longer."""
        self._draining = True
        until = time.monotonic() + timeout_s
        while self._flights:
            if time.monotonic() > until:
                return False
            time.sleep(0.01)
        return True

    def state(self) -> dict[str, Any]:
        """What people want to know of a CN itself; docs/reference/serving.md."""
        return {
            "role": "cn",
            "draining": self._draining,
            "requests": len(self._flights),
            "queued": len(self._line),
            "models": {key: dict(loaded.fleet.state()) for key, loaded in self._models.items()},
        }

    def connected(self, hn: str) -> None:
        """Of HNs' connections."""
        self._halves.connected(hn)

    def told(self, hn: str, message: ToCn) -> None:
        """Of HNs' connections: an HN says something about admission."""
        self._asking.received(hn, message)

    def lost(self, hn: str) -> None:
        """Of HNs' connections."""
        self._halves.lost(hn)
        self._asking.lost(hn)

    def _handle(self, transport: Transport, caller: int, message: Message, *, trusted: bool) -> None:
        header = message.header
        operation, call = header.get("op"), int(header.get("call", 0))
        if operation == "cancel":
            flight = self._flights.get((caller, int(header.get("target", 0))))
            if flight is not None:
                self._cancel(flight)
            return
        try:
            if operation == "infer":
                self._infer(transport, caller, call, message)
            elif operation == "ping":
                reply(transport, call, self.pinged())
            elif operation == "status":
                status_of(
                    self.state(), self._hns, self._asking, told=lambda state: reply(transport, call, {"status": state})
                )
            elif operation == "hns" and trusted:
                self._use(transport, call, header)
            elif operation == "fresh" and trusted:
                self._freshen(transport, call, header)
            elif operation == "load" and trusted:
                self._load(transport, call, header)
            elif operation == "unload" and trusted:
                self.unload(str(header["model"]))
                reply(transport, call, {})
            else:
                raise InvalidArgument(f"operation {operation!r} is not for this connection", reason="BAD_OPERATION")
        except (MeshError, ValueError, TypeError, KeyError) as error:
            reply(transport, call, describe(error))

    def pinged(self) -> Header:
        """What `ping` answers: as much as whoever scales processes must know."""
        hns = {
            link.name: {"connected": link.connected, "why": link.refusal, "in_flight": link.in_flight}
            for link in self._hns.links()
        }
        queued = dict.fromkeys(sorted(self._models), 0)
        for flight in list(self._flights.values()):
            if not flight.begun and flight.model.key in queued:
                queued[flight.model.key] += 1
        return {
            "models": list(queued), "queued": queued, "hns": hns, "idle": not self._flights,
            "busy_s": self._busy_ns / 1e9, "answered": self._answered,
            "fresh": {
                key: loaded.following.status() for key, loaded in list(self._models.items())
                if loaded.following is not None
            },
        }  # fmt: skip

    def _use(self, transport: Transport, call: int, header: Header) -> None:
        hns = [Endpoint.parse(str(address)) for address in header["addresses"]]

        def use() -> None:                       # requests of this connection do not wait for it
            self.use(hns)
            reply(transport, call, {})

        threading.Thread(target=use, name="hns", daemon=True).start()

    def _freshen(self, transport: Transport, call: int, header: Header) -> None:
        key = str(header["model"])
        loaded = self._models.get(key)
        if loaded is None or loaded.following is None:
            raise FailedPrecondition(f"model {key} follows no job: its tables are in its program", reason="NOT_FRESH")
        following = loaded.following
        asking.answer(following.sparse, header, partial(reply, transport, call), status=following.status)

    def _load(self, transport: Transport, call: int, header: Header) -> None:
        key, folder, timeout_s = str(header["model"]), Path(str(header["folder"])), float(header["timeout_s"])
        settings = ServingSettings.parse(header.get("settings") or {})

        def load() -> None:
            try:
                self.load(
                    key, folder, timeout_s=timeout_s, settings=settings,
                    waits=lambda why: reply(transport, call, {"waits": why}),
                )
                reply(transport, call, {})
            except Exception as error:           # whatever a framework raises for a model that it cannot read
                reply(transport, call, describe(error))

        threading.Thread(target=load, name=f"load {key}", daemon=True).start()

    def _infer(self, transport: Transport, caller: int, call: int, message: Message) -> None:
        header = message.header
        self.submit(
            str(header["model"]), {tensor.name: tensor.array for tensor in message.tensors},
            [str(name) for name in header["outputs"]],
            deadline=time.monotonic() + min(MAX_BUDGET_S, int(header["budget_ns"]) / 1e9),
            answer=lambda fields, tensors: reply(transport, call, fields, tensors),
            fail=lambda error: reply(transport, call, describe(error)),
            priority=int(header.get("priority", 0)), timeout_us=int(header.get("timeout_us", 0)),
            caller=caller, call=call,
        )  # fmt: skip

    def _start(self, flight: Flight) -> None:
        if len(self._flights) >= MOST_INSIDE:
            raise ResourceExhausted(f"{MOST_INSIDE} requests are in this CN already", reason="QUEUE_FULL")
        flight.take()
        self._flights[flight.caller, flight.call] = flight
        try:
            shed = self._line.put(
                flight.turn, flight, rows=flight.rows, priority=flight.priority, deadline=flight.deadline
            )
        except MeshError:
            self._forget(flight)
            raise
        for other, error in shed:
            self._later(other, partial(self._end, other, error))

    def _later(self, flight: Flight, work: Callable[[], None]) -> None:
        self._line.go_on(flight, work, priority=flight.priority, deadline=flight.deadline)

    def _cancel(self, flight: Flight) -> None:
        self._line.remove(flight.turn, flight)
        self._dispatch.cancel(flight)

    def _install(self, loaded: Loaded) -> None:
        with self._changing:
            self._follow(loaded)                 # the HNs may have changed while it was loaded
            before, self._models[loaded.model.key] = self._models.get(loaded.model.key), loaded
        if before is not None:
            self._halves.leave(before.model.key, set(before.fleet.names) - set(loaded.fleet.names))
        self._leave(before)

    def _leave(self, loaded: Loaded | None) -> None:
        """It is served no more: connections to HNs of its own end, unless another model has them, too."""
        if loaded is None:
            return
        loaded.close()
        if not loaded.is_usual:
            self._hns.forget(loaded.fleet.names)

    def _follow(self, loaded: Loaded) -> None:
        if loaded.is_usual and loaded.fleet.names != self._hns.usual:
            self._halves.added(loaded.model.key, loaded.use(self._hns.usual))

    def _compute(self) -> None:
        while True:
            piece, late = self._line.next()
            while late:
                self._end(*late.pop())
            if piece is not None:
                self._do(piece.item, piece.work)
            del piece                            # or the request's memory would be held until the next one comes

    def _do(self, flight: Flight, work: Callable[[], None] | None) -> None:
        began = time.monotonic_ns()
        try:
            if work is None:
                self._begin(flight)
            else:
                work()
        except Exception as error:               # whatever: all other requests go on
            self._log(f"a request for {flight.model.key} failed: {type(error).__name__}: {error}")
            self._end(flight, error)
        took_ns = time.monotonic_ns() - began
        self._busy_ns += took_ns
        self._line.did(flight.turn, took_ns / 1e9, begun_rows=0 if work else flight.rows)

    def _begin(self, flight: Flight) -> None:
        flight.begun = time.monotonic_ns()
        try:
            flight.check()
            flight.prepare()
            flight.prepared = time.monotonic_ns()
            self._dispatch.send(flight)
        except Exception as error:
            self._end(flight, error)

    def _finish(self, flight: Flight, attempt: Attempt, message: Message, at_ns: int) -> None:
        try:
            if flight.cancelled:
                raise gone()
            known = flight.model.finish(flight.known, {tensor.name: tensor for tensor in message.tensors})
            tensors = [Tensor.of(name, known[name]) for name in flight.outputs]
            fields = _times(flight, attempt, message.header, at_ns)
            if flight.version is not None:
                fields["fresh_version"] = _same_version(flight.version.number, message.header)
            self._answered += 1
            if self._forget(flight):
                flight.answer(fields, tensors)
        except Exception as error:
            self._end(flight, error)

    def _end(self, flight: Flight, error: Exception) -> None:
        if self._forget(flight):
            flight.fail(error)

    def _forget(self, flight: Flight) -> bool:
        """False when it was answered before."""
        flight.give_back()
        return self._flights.pop((flight.caller, flight.call), None) is not None

    def _warm_up(self, loaded: Loaded, until: float) -> None:
        done = threading.Event()
        outcome: list[Exception | Arrays] = []

        def answered(_: Header, tensors: Sequence[Tensor]) -> None:
            outcome.append({tensor.name: tensor.array for tensor in tensors})
            done.set()

        def failed(error: Exception) -> None:
            outcome.append(error)
            done.set()

        model = loaded.model
        outputs = [spec.name for spec in model.card.outputs]
        self._start(Flight(
            model, loaded.fleet, warm_up_inputs(model.card), outputs, until, 0, 0, answered, failed,
            call=next(self._own), turn=loaded.turn, following=loaded.following,
        ))  # fmt: skip
        if not done.wait(max(0.0, until - time.monotonic()) + 1.0):
            raise DeadlineExceeded(f"model {model.key} was not warm in time", reason="WARM_UP_TOO_SLOW")
        [result] = outcome
        if isinstance(result, Exception):
            raise result
        check_outputs(model.card, result)


def _same_version(number: int, header: Header) -> int:
    """The HN says by which version's constants it answered; it refuses what is of another, and this is the proof."""
    if header.get("fresh_version") != number:
        why = f"rows of version {number} were computed by version {header.get('fresh_version')}"
        raise Internal(why, reason="TWO_VERSIONS")
    return number


def _times(flight: Flight, attempt: Attempt, header: Header, back_ns: int) -> Header:
    """Where the time went, in the phases of statistics and beside them in those of a split model."""
    on_hn = {name: int(header[name]) for name in ("queue_ns", "input_ns", "compute_ns", "output_ns")}
    pre_ns, wait_ns = flight.prepared - flight.begun, max(0, attempt.granted_ns - flight.prepared)
    transfer_ns = max(0, back_ns - attempt.granted_ns - sum(on_hn.values()))
    post_ns = max(0, time.monotonic_ns() - back_ns)
    return {
        "queue_ns": flight.begun - flight.arrived + wait_ns + on_hn["queue_ns"],
        "input_ns": pre_ns + transfer_ns + on_hn["input_ns"],
        "compute_ns": on_hn["compute_ns"],
        "output_ns": on_hn["output_ns"] + post_ns,
        "executions": int(header.get("executions", 1)),
        "batch_size": int(header.get("batch_size", 0)),
        "split": {
            "pre_ns": pre_ns, "admission_ns": wait_ns, "transfer_ns": transfer_ns, "post_ns": post_ns,
            "hn_queue_ns": on_hn["queue_ns"], "hn": attempt.link.name, "asked": len(flight.attempts),
        },
    }  # fmt: skip
