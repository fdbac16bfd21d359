"""The two sides of an incast as processes: one HN, and all CNs. A line of JSON comes in, a line of JSON goes out.

`python -m bench.workloads.incast hn|cn`. What is measured is the product's own broker, client and transport; without
admission the same transport sends at once.
"""

import asyncio
import json
import os
import random
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import asdict, dataclass, field
from typing import Any

from bench.peers.first_come import FirstCome
from recmesh.runtime.errors import MeshError
from recmesh.serving.admission.broker import Broker
from recmesh.serving.admission.client import Refused
from recmesh.serving.admission.domain.admission import Admission
from recmesh.serving.admission.settings import Settings
from recmesh.serving.admission.tcp import TcpCn, TcpHn

MODEL = "bench"
LOST_S = 30.0
"""What is not answered by then never is."""
_TRACE_S = 0.02


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
    asks: bool = True
    tells_deadline: bool = True
    warm: list[int] = field(default_factory=list)
    """Sizes that are sent one by one before, so that the HN knows its link."""


# ---- the HN


async def _hn(options: dict[str, Any]) -> None:
    hn = TcpHn(_computed, message_most_bytes=1 << 30)
    settings = Settings(**options["settings"]) if options["rules"] != "none" else None
    trace: list[list[float]] = []
    if settings is not None:
        rules = Admission(settings, queue=FirstCome()) if options["rules"] == "first_come" else None
        hn.broker = Broker(settings, send=hn.send, admission=rules)
    port = await hn.start("0.0.0.0", 0)
    _say({"port": port})
    tracing = asyncio.create_task(_trace(hn.broker, trace)) if hn.broker is not None else None
    await asyncio.to_thread(sys.stdin.readline)
    if tracing is not None:
        tracing.cancel()
    state = None if hn.broker is None else hn.broker.snapshot()
    _say({"trace": trace, "state": {} if state is None else {
        **asdict(state), "refused": {reason.name: count for reason, count in state.refused.items()},
    }})
    await hn.stop()


async def _computed(_: memoryview) -> bytes:
    return b"."


async def _trace(broker: Broker, trace: list[list[float]]) -> None:
    while True:
        now = broker.snapshot()
        trace.append([
            time.time(), now.window_bytes, now.congestion_level, now.bandwidth_bytes_per_s, now.in_flight_bytes,
            now.waiting_bytes,
        ])
        await asyncio.sleep(_TRACE_S)


# ---- the CNs


async def _cns(options: dict[str, Any]) -> None:
    load = Load(**options["load"])
    links = [TcpCn() for _ in range(load.links)]
    for link in links:
        await link.open(options["address"], options["port"], pace_bytes_per_s=load.pace_bytes_per_s)
    payload = memoryview(bytes(max([*load.sizes, *load.warm])))

    async def one(link: TcpCn, fate: Fate) -> None:
        began, message = time.monotonic(), payload[:fate.size_bytes]
        left_s = fate.slo_s if load.tells_deadline else None
        try:
            async with asyncio.timeout(LOST_S):
                if load.asks:
                    await link.call(MODEL, message, left_s=left_s)
                else:
                    await link.call_unasked(message)
            fate.took_s = time.monotonic() - began
        except Refused as error:
            fate.refused = error.reason
        except (MeshError, TimeoutError):
            pass

    for turn, size_bytes in enumerate(load.warm):
        await one(links[turn % len(links)], Fate(0.0, size_bytes, LOST_S))
    began_at, began = time.time(), time.monotonic()
    fates = await (_paced if load.gaps_s else _at_once)(load, links, one)
    seconds = time.monotonic() - began
    for link in links:
        await link.close()
    _say({"began_at": began_at, "seconds": seconds, "fates": [asdict(each) | {"good": each.good} for each in fates]})


One = Callable[[TcpCn, Fate], Coroutine[None, None, None]]


async def _at_once(load: Load, links: list[TcpCn], one: One) -> list[Fate]:
    fates = [Fate(0.0, size, slo) for size, slo in zip(load.sizes, load.slos_s, strict=True)]
    await asyncio.gather(*(one(link, fate) for link, fate in zip(links, fates, strict=True)))
    return fates


async def _paced(load: Load, links: list[TcpCn], one: One) -> list[Fate]:
    rng, fates, tasks = random.Random(1), [], []
    began = time.monotonic()
    due = 0.0
    for gap_s, size, slo in zip(load.gaps_s, load.sizes, load.slos_s, strict=True):
        due += gap_s
        await asyncio.sleep(max(0.0, began + due - time.monotonic()))
        fates.append(Fate(due, size, slo))
        tasks.append(asyncio.create_task(one(rng.choice(links), fates[-1])))
    await asyncio.gather(*tasks)
    return fates


def _say(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)


def at_once() -> bool:
    """This process goes before others: both sides need little time, but at once, whatever the machine does beside."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except OSError:
        return False
    return True


if __name__ == "__main__":
    at_once()
    asyncio.run((_hn if sys.argv[1] == "hn" else _cns)(json.loads(sys.stdin.readline())))
