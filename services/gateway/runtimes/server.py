"""The model server's program: `python -m services.gateway.runtimes.server --framework torch --fd 3`.

Reads frames from the socket it inherited and answers each. One thread runs models, another loads them, so
that requests go on while the next version is read. Ends when the gateway's side of the socket is closed.
"""

import argparse
import json
import os
import queue
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from recmesh.runtime.errors import DeadlineExceeded, InvalidArgument, MeshError, Unavailable
from services.gateway.domain.card import ModelCard, TensorSpec
from services.gateway.domain.tensors import Tensor
from services.gateway.runtimes import frames
from services.gateway.runtimes.programs import Arrays, Framework, Program, framework

Job = tuple[frames.Header, list[Tensor], int]


class Connection:
    """The socket, written by several threads."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._reader = sock.makefile("rb", buffering=1 << 16)
        self._lock = threading.Lock()

    def read(self) -> tuple[frames.Header, list[Tensor]] | None:
        """The next frame; None at the end."""
        prefix = self._reader.read(frames.PREFIX.size)
        if len(prefix) < frames.PREFIX.size:
            return None
        header_bytes, body_bytes = frames.sizes(prefix)
        head = self._reader.read(header_bytes)
        body = self._reader.read(body_bytes)
        if len(head) < header_bytes or len(body) < body_bytes:
            return None
        return frames.decode(head, body)

    def write(self, header: frames.Header, tensors: Sequence[Tensor] = ()) -> None:
        """Send one frame."""
        self.send(frames.encode(header, tensors))

    def send(self, parts: Sequence[bytes]) -> None:
        """Send an encoded frame."""
        with self._lock:
            for part in parts:
                self._sock.sendall(part)


class Server:
    """Loaded programs, and the threads that load and run them."""

    def __init__(self, chosen: Framework, connection: Connection) -> None:
        self._framework = chosen
        self._connection = connection
        self._programs: dict[str, tuple[Program, ModelCard]] = {}
        self._runs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._loads: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._queued: set[int] = set()
        self._taken_back: set[int] = set()

    def serve(self) -> None:
        """Answer until the gateway goes."""
        threading.Thread(target=self._work, args=(self._runs,), name="run", daemon=True).start()
        threading.Thread(target=self._work, args=(self._loads,), name="load", daemon=True).start()
        while (frame := self._connection.read()) is not None:
            header, tensors = frame
            call = int(header.get("call", 0))
            with self._lock:
                if header.get("op") == "cancel":
                    if call in self._queued:        # one that runs or is answered cannot be taken back
                        self._taken_back.add(call)
                    continue
                self._queued.add(call)
            line = self._loads if header.get("op") == "load" else self._runs
            line.put((header, tensors, time.monotonic_ns()))

    def _work(self, jobs: "queue.SimpleQueue[Job]") -> None:
        while True:
            header, tensors, arrived = jobs.get()
            self._answer(header, tensors, arrived)

    def _answer(self, header: frames.Header, tensors: list[Tensor], arrived: int) -> None:
        call = int(header.get("call", 0))
        with self._lock:
            self._queued.discard(call)
            unwanted = call in self._taken_back
            self._taken_back.discard(call)
        try:
            if unwanted:
                raise Unavailable("nobody waits for this call any more", reason="CANCELLED")
            operation = self._operations()[str(header.get("op"))]
            fields, outputs = operation(header, tensors, arrived)
            reply = frames.encode({"call": call, **fields}, outputs)
        except MeshError as error:
            self._connection.write(
                {
                    "call": call, "error": error.message, "reason": error.reason,
                    "kind": type(error).__name__,
                    "violations": [[item.path, item.reason] for item in error.violations],
                }
            )  # fmt: skip
            return
        except Exception as error:
            self._connection.write(
                {"call": call, "error": f"{type(error).__name__}: {error}"[:2000], "reason": "MODEL_ERROR"}
            )
            return
        self._connection.send(reply)

    def _operations(self) -> dict[str, "Operation"]:
        return {"load": self._load, "infer": self._infer, "unload": self._unload, "ping": self._ping}

    def _load(self, header: frames.Header, _tensors: list[Tensor], _arrived: int) -> "Answer":
        key, folder = str(header["model"]), Path(str(header["folder"]))
        card = ModelCard.parse(json.loads((folder / "model.json").read_bytes()))
        program = self._framework.load(folder, card)
        started = time.monotonic_ns()
        outputs = program.run(warm_up_inputs(card))
        warm_up_ns = time.monotonic_ns() - started
        check_outputs(card, outputs)
        self._programs[key] = (program, card)
        return {"warm_up_ns": warm_up_ns}, []

    def _infer(self, header: frames.Header, tensors: list[Tensor], arrived: int) -> "Answer":
        started = time.monotonic_ns()
        if started > int(header["due_ns"]):     # one clock: the monotonic one of the machine
            raise DeadlineExceeded(
                "the deadline was over before the model could run", reason="DEADLINE_IN_QUEUE"
            )
        found = self._programs.get(str(header["model"]))
        if found is None:
            raise Unavailable(f"model {header['model']!r} is not loaded", reason="NOT_LOADED")
        program, _card = found
        inputs = {tensor.name: tensor.array for tensor in tensors}
        prepared = time.monotonic_ns()
        outputs = program.run(inputs)
        computed = time.monotonic_ns()
        results = [Tensor.of(name, outputs[name]) for name in header["outputs"]]
        times = {
            "queue_ns": started - arrived, "input_ns": prepared - started, "compute_ns": computed - prepared,
            "output_ns": time.monotonic_ns() - computed,
        }  # fmt: skip
        return times, results

    def _unload(self, header: frames.Header, _tensors: list[Tensor], _arrived: int) -> "Answer":
        self._programs.pop(str(header["model"]), None)
        return {}, []

    def _ping(self, _header: frames.Header, _tensors: list[Tensor], _arrived: int) -> "Answer":
        return {"models": sorted(self._programs)}, []


Answer = tuple[frames.Header, Sequence[Tensor]]
Operation = Callable[[frames.Header, list[Tensor], int], Answer]


def warm_up_inputs(card: ModelCard) -> Arrays:
    """Two samples of zeros, two ids in each: the first call of a program may compile or trace."""
    return {spec.name: _zeros(spec) for spec in card.inputs}


def _zeros(spec: TensorSpec) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    shape = tuple(2 if size == -1 else size for size in spec.shape)
    if spec.datatype.kind == "bytes":
        return np.full(shape, b"", dtype=object)
    return np.zeros(shape, dtype=spec.datatype.numpy)


def check_outputs(card: ModelCard, outputs: Arrays) -> None:
    """InvalidArgument when the program's answer is not what model.json promises."""
    for spec in card.outputs:
        if spec.name not in outputs:
            raise InvalidArgument(f"the program has no output {spec.name!r}", reason="BAD_MODEL_FOLDER")
        found = Tensor.of(spec.name, outputs[spec.name]).datatype
        if found != spec.datatype:
            raise InvalidArgument(
                f"output {spec.name!r} is {found.name}, but model.json says {spec.datatype.name}",
                reason="BAD_MODEL_FOLDER",
            )


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve over the inherited socket."""
    parser = argparse.ArgumentParser(prog="model-server", description=__doc__)
    parser.add_argument("--framework", required=True)
    parser.add_argument("--fd", type=int, required=True, help="the inherited socket")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the gateway's to handle; it closes the socket
    warnings.simplefilter("ignore")  # frameworks warn of their own future
    connection = Connection(socket.socket(fileno=options.fd))
    try:
        chosen = framework(options.framework)
        version = chosen.prepare()
    except ImportError as error:
        connection.write(
            {"call": 0, "error": f"{options.framework} is not installed: {error}", "reason": "NO_FRAMEWORK"}
        )
        return 78
    connection.write({"call": 0, "framework_version": version})
    Server(chosen, connection).serve()
    os._exit(0)  # a model may be running; nothing of it is wanted any more


if __name__ == "__main__":
    sys.exit(main())
