"""The two sides of an incast as processes: one HN, and all CNs. A line of JSON comes in, a line of JSON goes out.

`python -m bench.workloads.incast hn|cn`. What is measured is the product's own HN and CN: their servers, connections,
frames, admission; each CN has its own. The model does nothing. Without admission the same CNs send at once.
"""

import json
import os
import random
import socket
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import numpy as np

from bench.peers.first_come import FirstCome
from recmesh.runtime.errors import MeshError
from recmesh.serving.admission.domain.admission import Admission
from recmesh.serving.admission.messages import Refused
from recmesh.serving.admission.settings import Settings
from recmesh.serving.card import ModelCard
from recmesh.serving.cn.alarms import Alarms
from recmesh.serving.cn.model import CnModel
from recmesh.serving.cn.peers import Hns
from recmesh.serving.cn.server import Server as Cn
from recmesh.serving.frames import Header
from recmesh.serving.hn.desk import Desk
from recmesh.serving.hn.server import Server as Hn
from recmesh.serving.programs import Arrays
from recmesh.serving.settings import ServingSettings
from recmesh.serving.split.manifest import Stage
from recmesh.serving.tensors import Tensor
from recmesh.serving.transport import Transport
from recmesh.serving.transport.endpoints import Endpoint, Listener, dialling
from recmesh.serving.transport.sockets import SocketTransport

MODEL, INPUT, OUTPUT = "bench/1", "payload", "done"
TOKEN = "incast"
LOST_S = 30.0
"""What is not answered by then never is."""
CONNECT_S = 30.0
_TRACE_S = 0.02
_SO_MAX_PACING_RATE = 47
"""Linux; the socket module has no name for it."""


@dataclass
class Fate:
    """Of one message; `took_s` until its answer, negative when there was none."""

    at_s: float
    size_bytes: int
    slo_s: float
    took_s: float = -1.0
    refused: str = ""

    @property
    def good(self) -> bool:
        """Answered in time."""
        return 0 <= self.took_s <= self.slo_s


@dataclass
class Load:
    """What the CNs send. `gaps_s`: open loop, one message after each; none: all at once, one from each link."""

    links: int
    pace_bytes_per_s: int
    """Of each link: a NIC's."""
    sizes: list[int]
    slos_s: list[float]
    gaps_s: list[float] = field(default_factory=list)
    tells_deadline: bool = True
    """Else the HN is told of LOST_S."""
    warm: list[int] = field(default_factory=list)
    """Sizes that are sent one by one before, so that the HN knows its link."""


# ---- the HN


class Nothing:
    """The dense half."""

    def run(self, inputs: Arrays) -> Arrays:
        """A byte."""
        return {OUTPUT: inputs[INPUT][:1]}


def _hn(options: dict[str, Any]) -> None:
    desk: Desk | None = None
    if options["rules"] != "none":
        settings = Settings(**options["settings"])
        rules = Admission(settings, queue=FirstCome()) if options["rules"] == "first_come" else None
        desk = Desk(settings, rules=rules)
    server = Hn(lost=lambda error: None, log=_log, desk=desk)
    server.install(MODEL, Nothing(), ServingSettings(), can_batch=False)
    listener = Listener(Endpoint("tcp", "0.0.0.0:0"), token=TOKEN, log=_log, terms=server.terms)
    threading.Thread(target=listener.accept, args=(server.serve,), daemon=True).start()
    trace: list[list[float]] = []
    ended = threading.Event()
    if desk is not None:
        threading.Thread(target=_trace, args=(desk, trace, ended), daemon=True).start()
    _say({"port": int(listener.endpoint.place.rpartition(":")[2])})
    sys.stdin.readline()
    ended.set()
    _say({"trace": trace, "state": {} if desk is None else desk.state()})


def _trace(desk: Desk, trace: list[list[float]], ended: threading.Event) -> None:
    while not ended.wait(_TRACE_S):
        now = desk.snapshot()
        trace.append([
            time.time(), now.window_bytes, now.congestion_level, now.bandwidth_bytes_per_s, now.in_flight_bytes,
            now.waiting_bytes,
        ])  # fmt: skip


# ---- the CNs


class Sender:
    """A CN with its own connections to the HN."""

    def __init__(self, endpoint: Endpoint, alarms: Alarms, *, pace_bytes_per_s: int) -> None:
        self._plain = dialling(token=TOKEN)
        self._pace = pace_bytes_per_s
        hns = Hns([endpoint], dial=self._dial, alarms=alarms, log=_log)
        self.link = hns.links()[0]
        self._cn = Cn(hns, alarms=alarms, log=_log)
        card = ModelCard.parse({
            "framework": "torch", "inputs": [{"name": INPUT, "dtype": "uint8", "shape": [-1]}],
            "outputs": [{"name": OUTPUT, "dtype": "uint8", "shape": [-1]}],
        })  # fmt: skip
        self._cn.install(CnModel(MODEL, card, (), Stage("dense", "hn", "dense", (INPUT,), (OUTPUT,)), ()))

    def send(self, payload: Any, fate: Fate, *, left_s: float, done: threading.Semaphore) -> None:
        """One message; what became of it is noted, then `done` is released."""
        began = time.monotonic()

        def answered(_: Header, __: Sequence[Tensor]) -> None:
            fate.took_s = time.monotonic() - began
            done.release()

        def failed(error: Exception) -> None:
            fate.refused = error.reason if isinstance(error, Refused) else ""
            done.release()

        try:
            self._cn.submit(
                MODEL, {INPUT: payload[: fate.size_bytes]}, [OUTPUT], deadline=began + left_s, answer=answered,
                fail=failed,
            )  # fmt: skip
        except MeshError as error:
            failed(error)

    def _dial(self, endpoint: Endpoint, *, timeout_s: float, urgent: bool = False) -> tuple[Transport, Header]:
        """The kernel sends no faster than the CN's network card would."""
        transport, terms = self._plain(endpoint, timeout_s=timeout_s, urgent=urgent)
        if self._pace and isinstance(transport, SocketTransport):
            transport.sock.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, self._pace)
        return transport, terms


def _cns(options: dict[str, Any]) -> None:
    load = Load(**options["load"])
    endpoint, alarms = Endpoint("tcp", f"{options['address']}:{options['port']}"), Alarms()
    senders = [Sender(endpoint, alarms, pace_bytes_per_s=load.pace_bytes_per_s) for _ in range(load.links)]
    until = time.monotonic() + CONNECT_S
    while not all(sender.link.connected for sender in senders):
        if time.monotonic() > until:
            raise RuntimeError(f"CNs cannot reach the HN: {senders[0].link.refusal}")
        time.sleep(0.01)
    payload = np.zeros(max([*load.sizes, *load.warm]), np.uint8)
    done = threading.Semaphore(0)
    for turn, size_bytes in enumerate(load.warm):
        senders[turn % len(senders)].send(payload, Fate(0.0, size_bytes, LOST_S), left_s=LOST_S, done=done)
        done.acquire()
    began_at, began = time.time(), time.monotonic()
    rng, due = random.Random(1), 0.0
    fates: list[Fate] = []
    gaps = load.gaps_s or [0.0] * len(load.sizes)
    for number, (gap_s, size, slo) in enumerate(zip(gaps, load.sizes, load.slos_s, strict=True)):
        due += gap_s
        time.sleep(max(0.0, began + due - time.monotonic()))
        fates.append(Fate(due, size, slo))
        sender = rng.choice(senders) if load.gaps_s else senders[number]
        sender.send(payload, fates[-1], left_s=slo if load.tells_deadline else LOST_S, done=done)
    for _ in fates:
        done.acquire()
    seconds = time.monotonic() - began
    _say({"began_at": began_at, "seconds": seconds, "fates": [asdict(each) | {"good": each.good} for each in fates]})


def _say(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)


_log = partial(print, file=sys.stderr, flush=True)


def at_once() -> bool:
    """This process goes before others: both sides need little time, but at once, whatever the machine does beside.
    RECMESH_BENCH_GIVE_WAY: not, for who only wants to see it run."""
    if os.environ.get("RECMESH_BENCH_GIVE_WAY"):
        return False
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except OSError:
        return False
    return True


if __name__ == "__main__":
    at_once()
    (_hn if sys.argv[1] == "hn" else _cns)(json.loads(sys.stdin.readline()))
    sys.stdout.flush()
    os._exit(0)                                  # connections and their threads end with the process
