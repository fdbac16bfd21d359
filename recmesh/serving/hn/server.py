"""Connections of an HN and what may be asked over them.

    load       model, folder, part (whole | dense), settings    by the parent process; by CNs below `roots`
    unload     model                                             as above; what waits is still run
    fresh      model, act (status | rollback | resume), version  by the parent alone; of a whole model that follows
    hold       model, program, owner, version, given             and its constants, if given; of a half (`followed`)
    release    model, program, owner, versions                   no request of this owner is of them any more
    infer      model, outputs, budget_ns, priority, timeout_us   and the inputs; grant and peer, where there is
               admission; program: the digest of the half that the CN's half belongs to; version: whose rows these are
    cancel     target                                            the call with this number is not run, if it waits
    control    peer                                              this connection is for the asks of that peer
    admission  asks and what becomes of them, where there is admission (`desk`)
    ping                                                         models, how many requests wait, and how busy it was
    status                                                       all of it (docs/reference/serving.md)

Each call but `cancel`, `control` and `admission` has a number and is answered once. The time that is left
(`budget_ns`) travels, not a point in time: clocks of machines differ.
"""

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from recmesh.runtime.errors import (
    Aborted,
    FailedPrecondition,
    InvalidArgument,
    MeshError,
    PermissionDenied,
    ResourceExhausted,
    Unavailable,
)
from recmesh.serving.admission.frames import OPERATION
from recmesh.serving.failures import describe
from recmesh.serving.frames import FrameError, Header
from recmesh.serving.fresh import asking
from recmesh.serving.fresh.program import FreshProgram
from recmesh.serving.hn import parts
from recmesh.serving.hn.batching import MOST_WAITING
from recmesh.serving.hn.desk import Desk
from recmesh.serving.hn.followed import Followed
from recmesh.serving.hn.holders import Holders
from recmesh.serving.hn.model import Model, Request
from recmesh.serving.programs import DeviceLost, Program, framework
from recmesh.serving.programs.warmup import check_outputs, warm_up_inputs
from recmesh.serving.settings import ServingSettings
from recmesh.serving.tensors import Tensor
from recmesh.serving.transport import ConnectionLost, Message, Transport

MAX_BUDGET_S = 3600.0
LOADS_AT_ONCE = 1
KEEP_S = 600.0
"""For so long a model stays whose CNs were all lost."""


class Server:
    """Loaded models, and calls to them from any number of connections."""

    def __init__(
        self, *, lost: Callable[[DeviceLost], None], log: Callable[[str], None], threads: int = 1,
        desk: Desk | None = None, roots: Sequence[Path] = (), keep_s: float = KEEP_S, needs_device: bool = False,
        most_waiting: int = MOST_WAITING,
    ) -> None:  # fmt: skip
        """`roots`: folders; CNs may have models below them loaded. `most_waiting`: requests of one model."""
        self._most_waiting = most_waiting
        self._desk = desk
        self._roots = [root.resolve() for root in roots]
        self._holders = Holders(keep_s=keep_s)
        self._holding = threading.Lock()
        self._needs_device = needs_device
        self._threads = threads
        self._lost = lost
        self._log = log
        self._models: dict[str, Model] = {}
        self._programs: dict[str, Program] = {}
        self._loading = threading.Semaphore(LOADS_AT_ONCE)
        self._connections = itertools.count()
        self._callers: set[int] = set()
        self._draining = False

    @property
    def terms(self) -> Header:
        """What those who connect should know: whether to ask before they send, whether models are loaded for them."""
        return {"admission": self._desk is not None, "loads": bool(self._roots)}

    def serve(self, transport: Transport, *, trusted: bool = False) -> None:
        """Answer until the other side goes. Who is trusted may load and unload whatever there is."""
        caller = next(self._connections)
        self._callers.add(caller)
        desk = None if trusted else self._desk
        peer = str(caller)
        if desk is not None:
            desk.joined(peer, transport)
        try:
            while (message := self._received(transport)) is not None:
                if message.header.get("op") == "control" and desk is not None:
                    desk.lost(peer)
                    peer = f"of {message.header.get('peer')}"
                    desk.joined(peer, transport)
                else:
                    self._handle(transport, caller, peer, message, desk, trusted=trusted)
                del message                      # or its memory would be held until the next one comes
        except FrameError as error:
            self._log(f"a connection is given up: {error}")
        finally:
            transport.close()
            self.cancel(lambda request: request.caller == caller)
            if desk is not None:
                desk.lost(peer)
            self._callers.discard(caller)
            for program in list(self._programs.values()):
                if isinstance(program, Followed):
                    program.keep(self._callers)
            with self._holding:
                self._holders.lost(caller, time.monotonic())

    def load(self, key: str, folder: Path, *, which: str, settings: ServingSettings) -> int:
        """Load, check and warm up; nanoseconds of the warm-up. A model of that key is replaced when it is ready."""
        with self._loading:
            wanted = parts.chosen(folder, which)
            card = wanted.part.card
            runtime, _ = framework(card.framework, threads=self._threads)
            if self._needs_device and runtime.device() == "cpu":
                raise FailedPrecondition(
                    f"{card.framework} sees no accelerator here: it may be built for CPUs alone (recmesh[cuda])",
                    reason="NO_DEVICE",
                )
            program = parts.opened(runtime, wanted, settings, log=self._log)
            started = time.monotonic_ns()
            try:
                check_outputs(card, program.run(warm_up_inputs(card)))
            except BaseException:
                _close(program)
                raise
            warm_up_ns = time.monotonic_ns() - started
            self.install(key, program, settings, can_batch=wanted.can_batch, digest=wanted.digest)
        return warm_up_ns

    def hold(self, key: str) -> None:
        """The model stays, whichever CNs come and go: it is this HN's own."""
        with self._holding:
            self._holders.hold(key, self)

    def forget_unwanted(self) -> None:
        """Unload models whose CNs were all lost long ago."""
        with self._holding:
            for key in self._holders.unwanted(time.monotonic()):
                self._log(f"model {key} is unloaded: the CNs that had it loaded are gone")
                self.unload(key)

    def install(
        self, key: str, program: Program, settings: ServingSettings, *, can_batch: bool, digest: str = ""
    ) -> None:
        """Run this program for the key from now on; what waits for the one before is still run by that."""
        made = Model(
            key, program, settings, can_batch=can_batch, most_waiting=self._most_waiting, lost=self._lost,
            log=self._log, digest=digest,
        )  # fmt: skip
        before, replaced = self._models.get(key), self._programs.get(key)
        if isinstance(program, Followed) and isinstance(replaced, Followed) and before and before.digest == digest:
            program.take_over(replaced)
        self._models[key], self._programs[key] = made, program
        if isinstance(program, FreshProgram):
            program.sparse.begin()
        if isinstance(program, Followed):
            program.keep(self._callers)          # one may have gone in that very moment
        if before is not None:
            before.close()
            _close(replaced)

    def unload(self, key: str) -> None:
        """Forget the model; what waits for it is still run."""
        model = self._models.pop(key, None)
        if model is not None:
            model.close()
            _close(self._programs.pop(key, None))

    def cancel(self, chosen: Callable[[Request], bool]) -> None:
        """Whatever is chosen and waits is not run."""
        for model in list(self._models.values()):
            model.cancel(chosen)

    def overdue(self) -> tuple[str, float]:
        """The model that runs for longest past the deadlines of its callers, and seconds."""
        times = {key: model.overdue_s for key, model in list(self._models.items())}
        return max(times.items(), key=lambda item: item[1], default=("", 0.0))

    def drain(self, timeout_s: float) -> bool:
        """Take no more calls, finish those that are there; False when they took longer."""
        self._draining = True
        if self._desk is not None:
            self._desk.drain()
        until = time.monotonic() + timeout_s
        while not self._idle():
            if time.monotonic() > until:
                return False
            time.sleep(0.01)
        return True

    def _idle(self) -> bool:
        return all(model.idle for model in list(self._models.values()))

    def _received(self, transport: Transport) -> Message | None:
        try:
            return transport.receive()
        except InvalidArgument as error:         # tensors that are none: no caller of ours sends such
            raise FrameError(str(error)) from None

    def _handle(
        self, transport: Transport, caller: int, peer: str, message: Message, desk: Desk | None, *, trusted: bool
    ) -> None:
        header = message.header
        operation, call = header.get("op"), int(header.get("call", 0))
        if operation == "cancel":
            target = int(header.get("target", 0))
            self.cancel(lambda request: request.caller == caller and request.call == target)
            return
        try:
            if operation == "infer":
                self._infer(transport, caller, call, message, desk)
            elif operation == OPERATION and desk is not None:
                desk.received(peer, message)
            elif operation == "hold":
                self._hold(transport, caller, call, message)
            elif operation == "release":
                self._half(header).release([int(each) for each in header["versions"]], (caller, int(header["owner"])))
                reply(transport, call, {})
            elif operation == "ping":
                reply(transport, call, self.pinged())
            elif operation == "status":
                reply(transport, call, {"status": self.status()})
            elif operation in ("load", "unload") and (trusted or self._roots):
                self._change(transport, caller, call, header, trusted=trusted)
            elif operation == "fresh" and trusted:
                self._freshen(transport, call, header)
            else:
                raise InvalidArgument(f"operation {operation!r} is not for this connection", reason="BAD_OPERATION")
        except (MeshError, ValueError, TypeError, KeyError) as error:
            reply(transport, call, describe(error))

    def _infer(
        self, transport: Transport, caller: int, call: int, message: Message, desk: Desk | None
    ) -> None:
        header = message.header
        peer = f"of {header['peer']}" if "peer" in header else str(caller)
        if desk is not None and not desk.arrived(peer, int(header.get("grant", 0))):
            raise ResourceExhausted("the request came without a grant, or too late for it", reason="NOT_GRANTED")
        if self._draining:
            raise Unavailable("this process is being stopped", reason="DRAINING")
        model = self._models.get(str(header["model"]))
        if model is None:
            raise Unavailable(f"model {header['model']!r} is not loaded", reason="NOT_LOADED")
        if header.get("program", model.digest) != model.digest:
            raise Unavailable(f"the halves of model {model.key} are not of one model", reason="OTHER_HALF")
        version, program = int(header.get("version", 0)), self._programs.get(model.key)
        if isinstance(program, Followed):
            program.check(version)               # at once; and again when it is computed
        budget_s = min(MAX_BUDGET_S, int(header["budget_ns"]) / 1e9)
        arrived = time.monotonic()

        def answer(fields: Header, tensors: Sequence[Tensor]) -> None:
            reply(transport, call, fields, tensors)
            if desk is not None:
                desk.computed(str(header["model"]), time.monotonic() - arrived)

        request = Request(
            caller, call, {tensor.name: tensor.array for tensor in message.tensors},
            [str(name) for name in header["outputs"]], time.monotonic() + budget_s,
            answer=answer,
            fail=lambda error: reply(transport, call, describe(error)), version=version, together=transport.together,
        )  # fmt: skip
        model.submit(request, priority=int(header.get("priority", 0)), timeout_us=int(header.get("timeout_us", 0)))

    def _change(self, transport: Transport, caller: int, call: int, header: Header, *, trusted: bool) -> None:
        key = str(header["model"])
        if header["op"] == "unload":
            with self._holding:
                free = self._holders.release(key, caller)
                if trusted or free:
                    self._holders.forget(key)
                    self.unload(key)             # before anybody else can say that it is wanted, and find it there
            reply(transport, call, {})
            return
        folder, which = Path(str(header["folder"])), str(header.get("part", "whole"))
        settings = ServingSettings.parse(header.get("settings") or {})
        if not trusted:
            self._check_root(folder)
        with self._holding:                      # in the reader's thread: unload, or the caller's end, comes after
            self._holders.hold(key, caller)

        def load() -> None:
            try:
                there = not trusted and self._has(key, folder, which, settings)
                warm_up_ns = 0 if there else self.load(key, folder, which=which, settings=settings)
                with self._holding:
                    wanted = self._holders.knows(key)
                    if not wanted:
                        self.unload(key)
                if not wanted:
                    raise Aborted(f"model {key} was unloaded while it was loaded", reason="NOT_WANTED")
                reply(transport, call, {"warm_up_ns": warm_up_ns})
            except Exception as error:           # whatever a framework raises for a model that it cannot read
                reply(transport, call, describe(error))

        threading.Thread(target=load, name=f"load {key}", daemon=True).start()

    def _hold(self, transport: Transport, caller: int, call: int, message: Message) -> None:
        header, tensors = message.header, message.tensors
        half = self._half(header)
        values = {tensor.name: tensor.array for tensor in tensors} if header.get("given") else None
        version, owner = int(header["version"]), int(header["owner"])

        def work() -> None:
            try:
                is_held = half.hold(version, (caller, owner), values)
                half.keep(self._callers)         # it may be gone meanwhile
                reply(transport, call, {"held": is_held})
            except Exception as error:           # of the framework, too
                reply(transport, call, describe(error))

        if values is None:
            work()
        else:                                    # copies of megabytes: not by the thread that reads requests
            threading.Thread(target=work, name=f"hold {header['model']}", daemon=True).start()

    def _half(self, header: Header) -> Followed:
        """The half that a CN means, if it is that which is loaded."""
        key = str(header["model"])
        model, program = self._models.get(key), self._programs.get(key)
        if model is None or program is None:
            raise Unavailable(f"model {key!r} is not loaded", reason="NOT_LOADED")
        if not isinstance(program, Followed) or header.get("program") != model.digest:
            raise Unavailable(f"the halves of model {key} are not of one model", reason="OTHER_HALF")
        return program

    def _freshen(self, transport: Transport, call: int, header: Header) -> None:
        key = str(header["model"])
        program = self._programs.get(key)
        if not isinstance(program, FreshProgram):
            raise FailedPrecondition(f"model {key} follows no job: its tables are in its program", reason="NOT_FRESH")
        asking.answer(program.sparse, header, partial(reply, transport, call), status=program.sparse.status)

    def _check_root(self, folder: Path) -> None:
        resolved = folder.resolve()
        if not any(resolved.is_relative_to(root) for root in self._roots):
            raise PermissionDenied(
                f"{folder} is not below a folder from which this HN loads models", reason="OUTSIDE_ROOTS"
            )

    def _has(self, key: str, folder: Path, which: str, settings: ServingSettings) -> bool:
        """Whether that very half is loaded, for another CN."""
        with self._loading:                      # it may be at it now
            there = self._models.get(key)
            if there is None or not there.digest or there.settings != settings:
                return False
            return parts.chosen(folder, which).digest == there.digest

    def pinged(self) -> Header:
        """What `ping` answers: as much as whoever scales processes must know."""
        models, programs = dict(self._models), dict(self._programs)
        return {
            "models": sorted(models), "queued": {key: model.queued for key, model in models.items()},
            "idle": self._idle(), "busy_s": {key: model.busy_s for key, model in models.items()},
            "answered": {key: model.answered for key, model in models.items()},
            "admission": None if self._desk is None else self._desk.state(),
            "fresh": {
                key: each.sparse.status() for key, each in programs.items() if isinstance(each, FreshProgram)
            },
        }

    def status(self) -> dict[str, Any]:
        """What people want to know of an HN; docs/reference/serving.md."""
        models, programs = dict(self._models), dict(self._programs)
        with self._holding:
            holders = {key: self._holders.of(key) for key in models}
        return {
            "role": "hn",
            "draining": self._draining,
            "models": {
                key: {
                    "queued": model.queued, "running": model.running, "answered": model.answered,
                    "digest": model.digest, "holders": holders[key],
                    "versions": _versions(programs.get(key)),
                }
                for key, model in models.items()
            },
            "admission": None if self._desk is None else self._desk.state(),
        }  # fmt: skip


def reply(transport: Transport, call: int, header: Header, tensors: Sequence[Tensor] = ()) -> None:
    """Answer a call; of no effect when nobody is there any more."""
    try:
        transport.send({**header, "call": call}, tensors)
    except ConnectionLost:
        transport.close()                        # its reader ends, and takes its other calls out


def _close(program: Program | None) -> None:
    if isinstance(program, FreshProgram):
        program.sparse.close()


def _versions(program: Program | None) -> list[int]:
    return program.versions if isinstance(program, Followed) else []

