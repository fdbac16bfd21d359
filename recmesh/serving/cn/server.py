"""Connections of a CN, and a request's way: pre here, dense on an HN, post here.

    load       model, folder, timeout_s                      by the parent process alone
    unload     model                                         as above
    infer      model, outputs, budget_ns, priority, timeout_us   and the model's inputs
    cancel     target                                        goes on to the HN
    ping                                                     models, HNs

One thread computes: post before pre, so that what has begun is finished first, and pre by priority. A request
that an HN cannot answer because it, or the connection to it, ended is sent to another HN, once: a model's
answer changes nothing, so it may be computed twice.
"""

import itertools
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from recmesh.runtime.errors import (
    Aborted,
    DeadlineExceeded,
    InvalidArgument,
    MeshError,
    ResourceExhausted,
    Unavailable,
)
from recmesh.serving.admission.client import Refused
from recmesh.serving.cn import model as models
from recmesh.serving.cn.admission import Admission, Asking, Grant
from recmesh.serving.cn.model import CnModel
from recmesh.serving.cn.peers import HnLink, Hns
from recmesh.serving.failures import describe
from recmesh.serving.frames import FrameError, Header
from recmesh.serving.hn.server import MAX_BUDGET_S, reply
from recmesh.serving.programs import Arrays
from recmesh.serving.programs.warmup import check_outputs, warm_up_inputs
from recmesh.serving.tensors import Tensor
from recmesh.serving.transport import Message, Transport

MOST_WAITING = 1024
ATTEMPTS = 2
AGAIN_S = 0.1
ELSEWHERE = frozenset({"HN_LOST", "DRAINING", "NOT_LOADED", "OTHER_HALF"})
"""Reasons of one HN for which another may be asked."""
ASK_AGAIN = frozenset({"NOT_GRANTED", "GRANT_EXPIRED"})
"""This process was too slow for its grant, or the HN has forgotten it: any HN may be asked, the same too."""
_FINISH, _RESEND, _BEGIN = 0, 1, 2


@dataclass(slots=True, eq=False)
class Flight:
    """A request on its way."""

    model: CnModel
    known: Arrays = field(repr=False)
    outputs: Sequence[str]
    deadline: float
    priority: int
    timeout_us: int
    answer: Callable[[Header, Sequence[Tensor]], None]
    fail: Callable[[Exception], None]
    caller: int = -1
    call: int = 0
    cancelled: bool = False
    tried: frozenset[str] = frozenset()
    attempts: int = 0
    sent_to: tuple[str, int] | None = None
    arrived: int = field(default_factory=time.monotonic_ns)
    begun: int = 0
    prepared: int = 0
    granted: int = 0


class Server:
    """Loaded models, and requests for them from any number of connections."""

    def __init__(
        self, hns: Hns, admission: Admission, *, log: Callable[[str], None], threads: int = 1
    ) -> None:
        self._hns = hns
        self._admission = admission
        self._log = log
        self._threads = threads
        self._models: dict[str, CnModel] = {}
        self._connections = itertools.count()
        self._order = itertools.count()
        self._work: queue.PriorityQueue[tuple[int, int, int, Callable[[], None]]] = queue.PriorityQueue()
        self._flights: dict[tuple[int, int], Flight] = {}
        self._warm_ups = itertools.count(1)
        self._lock = threading.Lock()
        self._draining = False
        self._thread = threading.Thread(target=self._compute, name="compute", daemon=True)
        self._thread.start()

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

    def load(self, key: str, folder: Path, *, timeout_s: float) -> None:
        """Read the stages, then run a request of zeros all the way; returns when the model can serve.

        An HN may be starting, or be reading its half, at the same time: that is waited for.
        """
        until = time.monotonic() + timeout_s
        loaded = models.load(key, folder, threads=self._threads)
        while True:
            try:
                self._warm_up(loaded, until)
                break
            except Unavailable as error:
                waits = error.reason in ELSEWHERE - {"OTHER_HALF"} or error.reason == "NO_HN"
                if not waits or time.monotonic() + AGAIN_S > until:
                    raise
                time.sleep(AGAIN_S)
        self.install(loaded)

    def install(self, model: CnModel) -> None:
        """Serve this model from now on."""
        self._models[model.key] = model

    def drain(self, timeout_s: float) -> bool:
        """Take no more requests, finish those that are there; False when they took longer."""
        self._draining = True
        until = time.monotonic() + timeout_s
        while self._flights:
            if time.monotonic() > until:
                return False
            time.sleep(0.01)
        return True

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
                reply(transport, call, {"models": sorted(self._models), "hns": self._hns.states()})
            elif operation == "load" and trusted:
                self._load(transport, call, header)
            elif operation == "unload" and trusted:
                self._models.pop(str(header["model"]), None)
                reply(transport, call, {})
            else:
                raise InvalidArgument(f"operation {operation!r} is not for this connection", reason="BAD_OPERATION")
        except (MeshError, ValueError, TypeError, KeyError) as error:
            reply(transport, call, describe(error))

    def _load(self, transport: Transport, call: int, header: Header) -> None:
        key, folder, timeout_s = str(header["model"]), Path(str(header["folder"])), float(header["timeout_s"])

        def load() -> None:
            try:
                self.load(key, folder, timeout_s=timeout_s)
                reply(transport, call, {})
            except Exception as error:           # whatever a framework raises for a model that it cannot read
                reply(transport, call, describe(error))

        threading.Thread(target=load, name=f"load {key}", daemon=True).start()

    def _infer(self, transport: Transport, caller: int, call: int, message: Message) -> None:
        header = message.header
        if self._draining:
            raise Unavailable("this process is being stopped", reason="DRAINING")
        model = self._models.get(str(header["model"]))
        if model is None:
            raise Unavailable(f"model {header['model']!r} is not loaded", reason="NOT_LOADED")
        budget_s = min(MAX_BUDGET_S, int(header["budget_ns"]) / 1e9)
        flight = Flight(
            model, {tensor.name: tensor.array for tensor in message.tensors},
            [str(name) for name in header["outputs"]], time.monotonic() + budget_s,
            int(header.get("priority", 0)), int(header.get("timeout_us", 0)),
            answer=lambda fields, tensors: reply(transport, call, fields, tensors),
            fail=lambda error: reply(transport, call, describe(error)),
            caller=caller, call=call,
        )  # fmt: skip
        self._start(flight)

    def _start(self, flight: Flight) -> None:
        if len(self._flights) >= MOST_WAITING:
            raise ResourceExhausted(f"{MOST_WAITING} requests are in this CN already", reason="QUEUE_FULL")
        self._flights[flight.caller, flight.call] = flight
        self._later(_BEGIN, flight, lambda: self._begin(flight))

    def _later(self, stage: int, flight: Flight, work: Callable[[], None]) -> None:
        self._work.put((stage, flight.priority or MOST_WAITING, next(self._order), work))

    def _compute(self) -> None:
        while True:
            *_, work = self._work.get()
            work()
            del work                             # or the request's memory would be held until the next one comes

    def _begin(self, flight: Flight) -> None:
        flight.begun = time.monotonic_ns()
        try:
            self._check(flight)
            flight.known = flight.model.prepare(flight.known)
            flight.prepared = time.monotonic_ns()
        except Exception as error:
            self._end(flight, error)
            return
        self._send(flight)

    def _send(self, flight: Flight) -> None:
        """Choose an HN, ask to be let in, send."""
        try:
            self._check(flight)
            link = self._hns.choose(but=flight.tried)
            tensors = flight.model.sent(flight.known)
        except Exception as error:
            self._end(flight, error)
            return
        flight.tried |= {link.name}
        flight.attempts += 1
        asking = Asking(
            link.name, flight.model.key, sum(tensor.array.nbytes for tensor in tensors), flight.deadline,
            flight.priority,
        )  # fmt: skip

        def decided(decision: Grant | MeshError) -> None:
            if threading.current_thread() is self._thread:
                self._decided(flight, link, tensors, decision)
            else:                                # in the thread of a connection, which must not wait for a send
                self._later(_RESEND, flight, lambda: self._decided(flight, link, tensors, decision))

        self._admission.ask(asking, decided)

    def _decided(
        self, flight: Flight, link: HnLink, tensors: Sequence[Tensor], decision: Grant | MeshError
    ) -> None:
        if isinstance(decision, MeshError):
            self._answered(flight, decision)
            return
        flight.granted = time.monotonic_ns()
        header = {
            "op": "infer", "model": flight.model.key, "outputs": flight.model.asked(flight.outputs),
            "priority": flight.priority, "timeout_us": flight.timeout_us, "grant": decision.number,
            "program": flight.model.dense.sha256,
        }  # fmt: skip

        def answered(result: Message | MeshError, *, sent: bool = True) -> None:
            self._admission.release(decision, sent=sent)
            self._answered(flight, result)

        try:
            self._check(flight)
            number = link.call(header, tensors, deadline=flight.deadline, done=answered)
        except Exception as error:               # whatever: this thread must go on
            self._admission.release(decision, sent=False)
            if isinstance(error, MeshError):
                self._answered(flight, error)
            else:
                self._end(flight, error)
            return
        flight.sent_to = link.name, number
        if flight.cancelled:                     # in the very moment
            link.cancel(number)

    def _answered(self, flight: Flight, result: Message | MeshError) -> None:
        """In the thread of a connection: nothing may be computed here."""
        if isinstance(result, Message):
            self._later(_FINISH, flight, lambda: self._finish(flight, result))
        elif flight.attempts < ATTEMPTS and (_elsewhere(result) or result.reason in ASK_AGAIN):
            first = result
            if result.reason in ASK_AGAIN:
                flight.tried = frozenset()
            self._later(_RESEND, flight, lambda: self._resend(flight, first))
        else:
            self._end(flight, result)

    def _resend(self, flight: Flight, why: MeshError) -> None:
        try:
            self._hns.choose(but=flight.tried)
        except MeshError:
            self._end(flight, why)               # nobody else is there: tell what happened, not that
            return
        self._send(flight)

    def _finish(self, flight: Flight, message: Message) -> None:
        back = time.monotonic_ns()
        try:
            if not flight.cancelled:
                known = flight.model.finish(flight.known, {tensor.name: tensor for tensor in message.tensors})
                tensors = [Tensor.of(name, known[name]) for name in flight.outputs]
                fields = self._times(flight, message.header, back)
                if self._forget(flight):
                    flight.answer(fields, tensors)
        except Exception as error:
            self._end(flight, error)
        if flight.cancelled:
            self._end(flight, _gone())

    def _times(self, flight: Flight, header: Header, back: int) -> Header:
        """Where the time went, in the phases of statistics and beside them in those of a split model."""
        on_hn = {name: int(header[name]) for name in ("queue_ns", "input_ns", "compute_ns", "output_ns")}
        pre_ns, wait_ns = flight.prepared - flight.begun, max(0, flight.granted - flight.prepared)
        transfer_ns = max(0, back - flight.granted - sum(on_hn.values()))
        post_ns = time.monotonic_ns() - back
        return {
            "queue_ns": flight.begun - flight.arrived + wait_ns + on_hn["queue_ns"],
            "input_ns": pre_ns + transfer_ns + on_hn["input_ns"],
            "compute_ns": on_hn["compute_ns"],
            "output_ns": on_hn["output_ns"] + post_ns,
            "executions": int(header.get("executions", 1)),
            "batch_size": int(header.get("batch_size", 0)),
            "split": {
                "pre_ns": pre_ns, "admission_ns": wait_ns, "transfer_ns": transfer_ns, "post_ns": post_ns,
                "hn_queue_ns": on_hn["queue_ns"], "hn": flight.sent_to[0] if flight.sent_to else "",
            },
        }  # fmt: skip

    def _check(self, flight: Flight) -> None:
        if flight.cancelled:
            raise _gone()
        if time.monotonic() >= flight.deadline:
            raise DeadlineExceeded("the deadline was over before the model could run", reason="DEADLINE_IN_QUEUE")

    def _cancel(self, flight: Flight) -> None:
        flight.cancelled = True
        if flight.sent_to is not None:
            link = self._hns.link(flight.sent_to[0])
            if link is not None:
                link.cancel(flight.sent_to[1])

    def _end(self, flight: Flight, error: Exception) -> None:
        if self._forget(flight):
            flight.fail(error)

    def _forget(self, flight: Flight) -> bool:
        """False when it was answered before."""
        return self._flights.pop((flight.caller, flight.call), None) is not None

    def _warm_up(self, model: CnModel, until: float) -> None:
        done = threading.Event()
        outcome: list[Exception | Arrays] = []

        def answered(_: Header, tensors: Sequence[Tensor]) -> None:
            outcome.append({tensor.name: tensor.array for tensor in tensors})
            done.set()

        def failed(error: Exception) -> None:
            outcome.append(error)
            done.set()

        outputs = [spec.name for spec in model.card.outputs]
        self._start(
            Flight(
                model, warm_up_inputs(model.card), outputs, until, 0, 0, answered, failed, call=next(self._warm_ups)
            )
        )
        if not done.wait(max(0.0, until - time.monotonic()) + 1.0):
            raise DeadlineExceeded(f"model {model.key} was not warm in time", reason="WARM_UP_TOO_SLOW")
        [result] = outcome
        if isinstance(result, Exception):
            raise result
        check_outputs(model.card, result)


def _elsewhere(error: MeshError) -> bool:
    """Whether another HN may have a better answer."""
    return error.refusal.reason.elsewhere if isinstance(error, Refused) else error.reason in ELSEWHERE


def _gone() -> Aborted:
    return Aborted("the caller went away before the model was run", reason="CANCELLED")
