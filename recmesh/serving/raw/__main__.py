"""Transforms raw columns for the gateway that started it: `python -m recmesh.serving.raw --fd N`.

Over the inherited socket come frames as an HN knows them: `load` (model, folder), `unload`, `infer` (the tensors are
raw columns, `outputs` names their form), `cancel`. It ends with the one who started it.
"""

import argparse
import socket
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa

from recmesh.runtime.errors import Aborted, Unavailable
from recmesh.serving import process
from recmesh.serving.failures import describe
from recmesh.serving.frames import FrameError, Header
from recmesh.serving.raw.model import RawModel
from recmesh.serving.tensors import Tensor
from recmesh.serving.transport import ConnectionLost, Message, Transport
from recmesh.serving.transport.sockets import SocketTransport

THREADS = 2
"""Of each model's transform, most of whose time is in compiled code. A function that hangs holds up no other model."""


_CANCELLED = Aborted("it waited for the model's transform, and was never run", reason="CANCELLED")


class Place:
    """A model's threads, and its transform once it is loaded."""

    def __init__(self) -> None:
        self.pool = ThreadPoolExecutor(THREADS, "transform")
        self.model: RawModel | None = None


class Server:
    """Loaded transforms, and requests to them."""

    def __init__(self, parent: Transport, *, functions: Path | None) -> None:
        self._parent = parent
        self._functions = functions
        self._places: dict[str, Place] = {}
        self._turn = threading.Lock()            # a failed load ends its place from a thread of its own
        self._waiting: dict[int, Future[None]] = {}

    def serve(self) -> None:
        """Until the parent goes."""
        while (message := self._parent.receive()) is not None:
            self._handle(message)

    def _handle(self, message: Message) -> None:
        header = message.header
        operation, call = header.get("op"), int(header.get("call", 0))
        if operation == "cancel":
            waiting = self._waiting.get(int(header.get("target", 0)))
            if waiting is not None and waiting.cancel():
                self._reply(int(header["target"]), describe(_CANCELLED))
            return
        key = str(header.get("model", ""))
        if operation == "unload":
            self._leave(key)                     # what waits there, a load too, is answered, and leaves nothing behind
            self._reply(call, {})
            return
        arrived = time.monotonic_ns()
        with self._turn:
            place = self._places.setdefault(key, Place()) if operation == "load" else self._places.get(key)
            task = place.pool.submit(self._answer, place, message, call, arrived) if place is not None else None
        if task is None:
            self._reply(call, describe(_not_loaded(key)))
            return
        self._waiting[call] = task
        task.add_done_callback(lambda _: self._waiting.pop(call, None))

    def _leave(self, key: str, *, only: Place | None = None) -> None:
        with self._turn:
            place = self._places.get(key)
            if place is not None and only in (None, place):
                del self._places[key]
                place.pool.shutdown(wait=False)

    def _answer(self, place: Place, message: Message, call: int, arrived_ns: int) -> None:
        try:
            fields, tensors = self._done(place, message, arrived_ns)
        except BaseException as error:           # whatever a feature's function raises, SystemExit too
            fields, tensors = describe(error), list[Tensor]()
        self._reply(call, fields, tensors)

    def _reply(self, call: int, header: Header, tensors: Sequence[Tensor] = ()) -> None:
        try:
            self._parent.send({**header, "call": call}, tensors)
        except ConnectionLost:
            self._parent.close()                 # its reader ends, and with it this process

    def _done(self, place: Place, message: Message, arrived_ns: int) -> tuple[Header, list[Tensor]]:
        header, key = message.header, str(message.header["model"])
        if header["op"] == "load":
            try:
                place.model = RawModel(Path(str(header["folder"])), functions=self._functions)
            except BaseException:
                if place.model is None:
                    self._leave(key, only=place)
                raise
            return {}, []
        model = place.model
        if model is None:
            raise _not_loaded(key)
        started = time.monotonic_ns()
        tensors = model.run(str(header["outputs"][0]), message.tensors)
        ended = time.monotonic_ns()
        return {
            "queue_ns": started - arrived_ns, "input_ns": 0, "compute_ns": ended - started, "output_ns": 0,
            "executions": 1,
        }, tensors  # fmt: skip


def _not_loaded(key: str) -> Unavailable:
    return Unavailable(f"the transform of {key} is not loaded", reason="NOT_LOADED")


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until the parent goes; the exit code."""
    parser = argparse.ArgumentParser(
        prog="recmesh-raw", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fd", type=int, required=True, help="an inherited socket, of the parent process")
    parser.add_argument("--functions", type=Path, help="the folder of code that features may name")
    given = parser.parse_args(arguments)
    process.quiet()
    if given.functions is not None:
        sys.path.insert(0, str(given.functions.resolve()))
    parent = SocketTransport(socket.socket(fileno=given.fd), stall_s=process.PARENT_STALL_S)
    parent.send({"call": 0, "framework_version": pa.__version__})
    try:
        Server(parent, functions=given.functions).serve()
    except FrameError as error:
        process.log(f"the parent does not speak this protocol: {error}")
    process.end(0)                               # a function may be running; nothing of it is wanted any more
    return 0


if __name__ == "__main__":
    sys.exit(main())
