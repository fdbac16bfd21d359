"""CN and HN in this process, over real sockets, with programs that tests hold in their hands."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from recmesh.runtime.errors import MeshError
from recmesh.serving.admission.domain.hedging import HedgeRules
from recmesh.serving.card import ModelCard
from recmesh.serving.cn.alarms import Alarms
from recmesh.serving.cn.model import CnModel, Step
from recmesh.serving.cn.peers import HnLink, Hns
from recmesh.serving.cn.server import Server as Cn
from recmesh.serving.failures import rebuilt
from recmesh.serving.hn.batching import MOST_WAITING
from recmesh.serving.hn.desk import Desk
from recmesh.serving.hn.server import Server as Hn
from recmesh.serving.programs import Arrays, Program
from recmesh.serving.settings import ServingSettings
from recmesh.serving.split.manifest import Stage
from recmesh.serving.tensors import Tensor
from recmesh.serving.transport import Message, Transport
from recmesh.serving.transport.endpoints import Endpoint, Listener, dial, dialling

DOUBLE = Stage("dense", "hn", "dense", ("rows",), ("scores",))
CARD = ModelCard.parse(
    {
        "framework": "torch",
        "inputs": [{"name": "x", "dtype": "float32", "shape": [-1]}],
        "outputs": [{"name": "predictions", "dtype": "float32", "shape": [-1]}],
    }
)
"""predictions = 2 · (x + 1) + x: pre adds 1, the HN doubles, post adds x."""


@dataclass(slots=True)
class Doubling:
    """scores = 2 · rows. Each run is noted; while `hold` is clear it waits; a negative row is an error, and while it is
    `broken` each one is."""

    runs: list[list[float]] = field(default_factory=list)
    hold: threading.Event = field(default_factory=threading.Event)
    running: threading.Event = field(default_factory=threading.Event)

    broken: bool = False

    def __post_init__(self) -> None:
        self.hold.set()

    def run(self, inputs: Arrays) -> Arrays:
        self.runs.append(inputs["rows"].reshape(-1).tolist())
        self.running.set()
        assert self.hold.wait(60.0)
        if self.broken or (inputs["rows"] < 0).any():
            raise ValueError("a negative row")
        return {"scores": inputs["rows"] * 2}


class Adding:
    """Pre: rows = x + 1. Post: predictions = scores + x."""

    def run(self, inputs: Arrays) -> Arrays:
        if "scores" in inputs:
            return {"predictions": inputs["scores"] + inputs["x"]}
        return {"rows": inputs["x"] + np.float32(1)}


@dataclass(slots=True)
class Held(Adding):
    """A pre that notes `name` in `order` and, while `hold` is clear, waits."""

    name: str
    order: list[str]
    hold: threading.Event = field(default_factory=threading.Event)

    def run(self, inputs: Arrays) -> Arrays:
        self.order.append(self.name)
        assert self.hold.wait(60.0)
        return Adding.run(self, inputs)


def cn_model(key: str = "m/1", *, before: Program | None = None) -> CnModel:
    pre = Step(Stage("pre", "cn", "pre", ("x",), ("rows",)), before or Adding())
    post = Step(Stage("post", "cn", "post", ("scores", "x"), ("predictions",)), Adding())
    return CnModel(key, CARD, (pre,), DOUBLE, (post,))


@dataclass(slots=True)
class RunningHn:
    """An HN that listens."""

    server: Hn
    listener: Listener
    transports: list[Transport] = field(default_factory=list)

    @property
    def endpoint(self) -> Endpoint:
        return self.listener.endpoint

    def install(self, key: str = "m/1", *, can_batch: bool = True, digest: str = "", **settings: Any) -> Doubling:
        made = Doubling()
        self.server.install(key, made, ServingSettings.parse(settings), can_batch=can_batch, digest=digest)
        return made

    def break_off(self) -> None:
        """All connections end, as when the process is killed; nobody can connect any more."""
        self.listener.close()
        for transport in self.transports:
            transport.close()


@contextmanager
def running_hn(
    folder: Path, *, name: str = "hn", carrier: str = "shm", desk: Desk | None = None, roots: Sequence[Path] = ()
) -> Iterator[RunningHn]:
    place = "127.0.0.1:0" if carrier == "tcp" else str(folder / name)
    server = Hn(lost=lambda error: None, log=print, desk=desk, roots=roots)
    listener = Listener(Endpoint.parse(f"{carrier}:{place}"), token=None, log=print, terms=server.terms)
    made = RunningHn(server, listener)

    def serve(transport: Transport) -> None:
        made.transports.append(transport)
        made.server.serve(transport)

    thread = threading.Thread(target=listener.accept, args=(serve,), daemon=True)
    thread.start()
    try:
        yield made
    finally:
        made.break_off()
        thread.join()


@contextmanager
def hn_link(hn: RunningHn) -> Iterator[HnLink]:
    link = HnLink(hn.endpoint, dial=dialling(token=None), alarms=Alarms(), log=print)
    until(lambda: link.connected)
    try:
        yield link
    finally:
        link.close()


class Calls:
    """What a link answered, by the name that the test gave the call."""

    def __init__(self, link: HnLink) -> None:
        self._link = link
        self.answers: dict[str, Message | MeshError] = {}

    def infer(self, name: str, rows: Sequence[float], *, key: str = "m/1", left_s: float = 60.0, **more: Any) -> int:
        header = {"op": "infer", "model": key, "outputs": ["scores"], **more}
        tensors = [Tensor.of("rows", np.array(rows, np.float32))]
        return self._link.call(
            header, tensors, deadline=time.monotonic() + left_s, done=lambda result: self.note(name, result)
        )

    def of(self, name: str) -> Message | MeshError:
        until(lambda: name in self.answers)
        return self.answers[name]

    def scores(self, name: str) -> list[float]:
        result = self.of(name)
        assert isinstance(result, Message), result
        values: list[float] = result.tensors[0].array.tolist()
        return values

    def note(self, name: str, result: Message | MeshError) -> None:
        self.answers[name] = result


class CnClient:
    """A connection to a CN, used by one thread."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._call = 0

    def send(self, x: Sequence[float], *, left_s: float = 60.0, **more: Any) -> int:
        return self.send_tensors([Tensor.of("x", np.array(x, np.float32))], left_s=left_s, **more)

    def send_tensors(self, tensors: Sequence[Tensor], *, left_s: float = 60.0, **more: Any) -> int:
        self._call += 1
        header = {
            "op": "infer", "call": self._call, "model": "m/1", "outputs": ["predictions"],
            "budget_ns": int(left_s * 1e9), **more,
        }  # fmt: skip
        self._transport.send(header, tensors)
        return self._call

    def cancel(self, call: int) -> None:
        self._transport.send({"op": "cancel", "target": call})

    def answer(self) -> Message:
        """The next one; raises its error."""
        message = self._transport.receive()
        assert message is not None
        if "error" in message.header:
            raise rebuilt(message.header)
        return message

    def predict(self, x: Sequence[float], **more: Any) -> list[float]:
        self.send(x, **more)
        values: list[float] = self.answer().tensors[0].array.tolist()
        return values

    def close(self) -> None:
        self._transport.close()


@contextmanager
def running_cn(
    folder: Path, *hns: RunningHn, hedging: HedgeRules | None = None, most_waiting: int = MOST_WAITING
) -> Iterator[tuple[Cn, CnClient]]:
    """A CN with the model `m/1`, and a connection to it, once all HNs are connected."""
    alarms = Alarms()
    known = Hns([hn.endpoint for hn in hns], dial=dialling(token=None), alarms=alarms, log=print)
    server = Cn(known, alarms=alarms, log=print, hedging=hedging, most_waiting=most_waiting)
    server.install(cn_model())
    listener = Listener(Endpoint.parse(f"unix:{folder}/cn"), token=None, log=print)
    thread = threading.Thread(target=listener.accept, args=(server.serve,), daemon=True)
    thread.start()
    until(lambda: all(hn.transports for hn in hns))
    until(lambda: all(known.link(str(hn.endpoint)).connected for hn in hns))  # type: ignore[union-attr]  # it is known
    client = CnClient(dial(listener.endpoint, token=None, timeout_s=5.0))
    try:
        yield server, client
    finally:
        client.close()
        listener.close()
        thread.join()
        known.close()


def until(condition: Callable[[], bool], *, patience_s: float = 60.0) -> None:
    """Returns once it holds."""
    end = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.002)
