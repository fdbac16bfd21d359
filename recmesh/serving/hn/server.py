"""Connections of an HN and what may be asked over them.

    load       model, folder, part (whole | dense), settings    by the parent process alone
    unload     model                                             as above; what waits is still run
    infer      model, outputs, budget_ns, priority, timeout_us   and the inputs; grant, where there is admission;
               program: the digest of the half that the CN's half belongs to
    cancel     target                                            the call with this number is not run, if it waits
    admission  asks and what becomes of them, where there is admission (`desk`)
    ping                                                         models, and how many requests wait

Each call but `cancel` has a number and is answered once. The time that is left (`budget_ns`) travels, not a
point in time: clocks of machines differ.
"""

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from recmesh.runtime.errors import InvalidArgument, MeshError, NotFound, ResourceExhausted, Unavailable
from recmesh.serving import halves
from recmesh.serving.failures import describe
from recmesh.serving.frames import FrameError, Header
from recmesh.serving.hn.desk import OPERATION, Desk
from recmesh.serving.hn.model import Model, Request
from recmesh.serving.programs import DeviceLost, Program, framework
from recmesh.serving.programs.warmup import check_outputs, warm_up_inputs
from recmesh.serving.settings import ServingSettings
from recmesh.serving.tensors import Tensor
from recmesh.serving.transport import ConnectionLost, Message, Transport

MAX_BUDGET_S = 3600.0
LOADS_AT_ONCE = 1


class Server:
    """Loaded models, and calls to them from any number of connections."""

    def __init__(
        self, *, lost: Callable[[DeviceLost], None], log: Callable[[str], None], threads: int = 1,
        desk: Desk | None = None,
    ) -> None:  # fmt: skip
        self._desk = desk
        self._threads = threads
        self._lost = lost
        self._log = log
        self._models: dict[str, Model] = {}
        self._loading = threading.Semaphore(LOADS_AT_ONCE)
        self._connections = itertools.count()
        self._draining = False

    def serve(self, transport: Transport, *, trusted: bool = False) -> None:
        """Answer until the other side goes. Only who is trusted may load and unload."""
        caller = next(self._connections)
        desk = None if trusted else self._desk
        if desk is not None:
            desk.joined(str(caller), transport)
        try:
            while (message := self._received(transport)) is not None:
                self._handle(transport, caller, message, desk, trusted=trusted)
                del message                      # or its memory would be held until the next one comes
        except FrameError as error:
            self._log(f"a connection is given up: {error}")
        finally:
            transport.close()
            self.cancel(lambda request: request.caller == caller)
            if desk is not None:
                desk.lost(str(caller))

    def load(self, key: str, folder: Path, *, which: str, settings: ServingSettings) -> int:
        """Load, check and warm up; nanoseconds of the warm-up. A model of that key is replaced when it is ready."""
        with self._loading:
            part, can_batch, digest = _part(folder, which)
            chosen, _ = framework(part.card.framework, threads=self._threads)
            program = chosen.load(part.folder, part.card, device=chosen.device())
            started = time.monotonic_ns()
            check_outputs(part.card, program.run(warm_up_inputs(part.card)))
            warm_up_ns = time.monotonic_ns() - started
        self.install(key, program, settings, can_batch=can_batch, digest=digest)
        return warm_up_ns

    def install(
        self, key: str, program: Program, settings: ServingSettings, *, can_batch: bool, digest: str = ""
    ) -> None:
        """Run this program for the key from now on; what waits for the one before is still run by that."""
        made = Model(key, program, settings, can_batch=can_batch, lost=self._lost, log=self._log, digest=digest)
        before, self._models[key] = self._models.get(key), made
        if before is not None:
            before.close()

    def unload(self, key: str) -> None:
        """Forget the model; what waits for it is still run."""
        model = self._models.pop(key, None)
        if model is not None:
            model.close()

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
        self, transport: Transport, caller: int, message: Message, desk: Desk | None, *, trusted: bool
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
                desk.received(str(caller), message)
            elif operation == "ping":
                reply(transport, call, self._status())
            elif operation in ("load", "unload") and trusted:
                self._change(transport, call, header)
            else:
                raise InvalidArgument(f"operation {operation!r} is not for this connection", reason="BAD_OPERATION")
        except (MeshError, ValueError, TypeError, KeyError) as error:
            reply(transport, call, describe(error))

    def _infer(
        self, transport: Transport, caller: int, call: int, message: Message, desk: Desk | None
    ) -> None:
        header = message.header
        if desk is not None and not desk.arrived(str(caller), int(header.get("grant", 0))):
            raise ResourceExhausted("the request came without a grant, or too late for it", reason="NOT_GRANTED")
        if self._draining:
            raise Unavailable("this process is being stopped", reason="DRAINING")
        model = self._models.get(str(header["model"]))
        if model is None:
            raise Unavailable(f"model {header['model']!r} is not loaded", reason="NOT_LOADED")
        if header.get("program", model.digest) != model.digest:
            raise Unavailable(f"the halves of model {model.key} are not of one model", reason="OTHER_HALF")
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
            fail=lambda error: reply(transport, call, describe(error)),
        )  # fmt: skip
        model.submit(request, priority=int(header.get("priority", 0)), timeout_us=int(header.get("timeout_us", 0)))

    def _change(self, transport: Transport, call: int, header: Header) -> None:
        key = str(header["model"])
        if header["op"] == "unload":
            self.unload(key)
            reply(transport, call, {})
            return

        def load() -> None:
            try:
                settings = ServingSettings.parse(header.get("settings") or {})
                folder, which = Path(str(header["folder"])), str(header.get("part", "whole"))
                reply(transport, call, {"warm_up_ns": self.load(key, folder, which=which, settings=settings)})
            except Exception as error:           # whatever a framework raises for a model that it cannot read
                reply(transport, call, describe(error))

        threading.Thread(target=load, name=f"load {key}", daemon=True).start()

    def _status(self) -> dict[str, Any]:
        models = dict(self._models)
        return {"models": sorted(models), "queued": {key: model.queued for key, model in models.items()}}


def reply(transport: Transport, call: int, header: Header, tensors: Sequence[Tensor] = ()) -> None:
    """Answer a call; of no effect when nobody is there any more."""
    try:
        transport.send({**header, "call": call}, tensors)
    except ConnectionLost:
        transport.close()                        # its reader ends, and takes its other calls out


def _part(folder: Path, which: str) -> tuple[halves.Part, bool, str]:
    """What is to be loaded, whether its requests may be put together, and the digest of a half."""
    if which == "whole":
        found = halves.part(folder)
        batched = [bool(spec.shape) and spec.shape[0] == -1 for spec in (*found.card.inputs, *found.card.outputs)]
        return found, all(batched), ""
    if which != "dense":
        raise NotFound(f"an HN runs the part 'dense' or 'whole', not {which!r}", reason="UNKNOWN_PART")
    split = halves.manifest_of(folder)
    return halves.stage(folder, split.dense, split.framework), split.batching.possible, split.dense.sha256
