"""Many CNs send to one HN through a switch port with a finite buffer: with admission, and without.

Three network namespaces and the kernel's TCP (bench.workloads.port; where nobody may make them, a port in user space);
CNs and HN are the product's, with all that a request goes through in them, but for a model that computes nothing.
`failed_share_n`: n CNs send one message each at once, and all could be in time one after the other; failed is refused,
missed or lost. `edf_vs_*`: goodput in an open loop, half of the messages with short deadlines. `goodput_overload`:
bytes answered in time, of what the link can carry.
"""

import json
import math
import random
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from statistics import mean
from typing import Any

import numpy as np

from bench.figures import Result
from bench.mesh import ROOT, one_thread, say
from bench.workloads.incast import Load
from bench.workloads.port import NoPort, Port, switch_port
from bench.workloads.user_port import user_port
from services.brain.simulator import svg

KIB = 1 << 10
LINK_BYTES_PER_S = 25e6
"""200 Mbit/s: so slow that neither side's Python is what limits it."""
PAYLOAD_SHARE = 1448 / 1514
"""Of the wire's bytes: TCP's segments in Ethernet's frames, as the port counts them."""
BUFFER_BYTES = 512 * KIB
MESSAGE_BYTES = 256 * KIB
SENDERS = (10, 20, 100)
SLACK = 1.3
TIGHT, LOOSE = 3.0, 100.0
"""Deadlines of an open loop, in transfers."""
LOAD, OVERLOAD = 0.95, 1.5
LINKS = 20
REPEATS, QUICK_REPEATS = 5, 1
SECONDS, QUICK_SECONDS = 30.0, 4.0
TRACE_S, CROSS_FROM_S, CROSS_S, CROSS_LOAD = 15.0, 5.0, 5.0, 0.6
"""Other traffic crosses the port, and knows of no admission."""
SETTINGS = {
    "bandwidth_bytes_per_s": LINK_BYTES_PER_S, "window_start_bytes": 2 * MESSAGE_BYTES,
    "window_min_bytes": MESSAGE_BYTES, "window_max_bytes": 16 * MESSAGE_BYTES, "margin_s": 0.002,
    "waiting_most": 100_000, "peer_waiting_most": 100_000,
}
WARM = [1 * KIB] * 4 + [MESSAGE_BYTES] * 8
IMAGE = ROOT / "docs" / "images" / "incast-window.svg"


def run(*, quick: bool) -> Result:
    """See the module; `*_uncontrolled`: sent at once; `*_tcp`: TCP as the kernel has it, instead of like an RDMA NIC;
    `*_one_class`: asks wait in the port's queue like all else; `*_mix`: sizes from 64 B to 1 MiB."""
    repeats, seconds = (QUICK_REPEATS, QUICK_SECONDS) if quick else (REPEATS, SECONDS)
    figures: dict[str, float] = {}
    kind = _kind()
    with _port(kind) as port:
        for senders in SENDERS:
            figures |= _burst(port, "edf", senders, repeats, "")
            figures |= _burst(port, "none", senders, repeats, "_uncontrolled")
        for rules in ("edf", "first_come_refusing", "first_come"):
            figures |= _loop(port, rules, _open(LOAD, seconds, rules=rules), seconds, rules)
        figures |= _loop(port, "edf", _open(OVERLOAD, seconds, rules="edf"), seconds, "overload")
        figures |= _versus(figures, "")
        if not quick:
            for rules in ("edf", "first_come_refusing", "first_come"):
                load = _open(LOAD, seconds, rules=rules, is_mixed=True)
                figures |= _loop(port, rules, load, seconds, f"{rules}_mix")
            figures |= _versus(figures, "_mix") | _traced(port)
    if kind == "namespaces" and not quick:
        with _port(kind, classes=False) as port:
            figures |= _loop(port, "edf", _open(LOAD, seconds, rules="edf"), seconds, "edf_one_class")
        with _port(kind, like_rdma=False) as port:
            for senders in SENDERS:
                figures |= _burst(port, "edf", senders, repeats, "_tcp")
                figures |= _burst(port, "none", senders, repeats, "_uncontrolled_tcp")
    return Result("incast", figures, {
        "port": kind, "link_bytes_per_s": LINK_BYTES_PER_S, "payload_share": PAYLOAD_SHARE,
        "buffer_bytes": BUFFER_BYTES, "message_bytes": MESSAGE_BYTES, "slack": SLACK, "deadlines": [TIGHT, LOOSE],
        "load": LOAD, "overload": OVERLOAD, "links": LINKS, "repeats": repeats, "seconds": seconds,
        "settings": SETTINGS, "priority": "both sides run before all else (SCHED_RR), where that is allowed",
        "quick": f"{QUICK_REPEATS} burst, {QUICK_SECONDS:g} s instead of {REPEATS}, {SECONDS:g}; without mixed sizes, "
                 "the window's course, one class, plain TCP" if quick else "",
    })


def transfer_s(size_bytes: float) -> float:
    """On the whole link."""
    return size_bytes / (LINK_BYTES_PER_S * PAYLOAD_SHARE)


# ---- all at once


def _burst(port: Port, rules: str, senders: int, repeats: int, name: str) -> dict[str, float]:
    slo_s = SLACK * senders * transfer_s(MESSAGE_BYTES)
    fates: list[dict[str, Any]] = []
    before = port.lost_packets()
    for _ in range(repeats):
        load = Load(
            senders, int(LINK_BYTES_PER_S), [MESSAGE_BYTES] * senders, [slo_s] * senders,
            tells_deadline=rules != "none", warm=WARM,
        )
        fates += _played(port, rules, load)["fates"]
    failed = 1 - mean(each["good"] for each in fates)
    last = max((each["took_s"] / slo_s for each in fates if each["took_s"] >= 0), default=math.nan)
    lost = (port.lost_packets() - before) / repeats
    say(f"  {senders} at once{name.replace('_', ', ')}: {failed:.1%} failed, the last after {last:.2f} of the time, "
        f"{lost:.0f} packets lost")
    return {f"failed_share_{senders}{name}": failed, f"lost_packets_{senders}{name}": lost}


# ---- open loops


def _loop(port: Port, rules: str, load: Load, seconds: float, name: str) -> dict[str, float]:
    fates = _played(port, rules, load)["fates"]
    good = [each for each in fates if each["good"] and each["at_s"] + each["took_s"] <= seconds]
    goodput = sum(each["size_bytes"] for each in good) / (seconds * LINK_BYTES_PER_S * PAYLOAD_SHARE)
    shares = {}
    for which, slo in (("tight", TIGHT), ("loose", LOOSE)):
        part = [each for each in fates if (each["slo_s"] < 10 * transfer_s(each["size_bytes"])) == (slo == TIGHT)]
        shares[f"{which}_in_time_{name}"] = mean(each["good"] for each in part)
        shares[f"{which}_refused_{name}"] = mean(bool(each["refused"]) for each in part)
    say(f"  {name}: {goodput:.3f} of the link in time; {', '.join(f'{k} {v:.3f}' for k, v in shares.items())}")
    return {f"goodput_{name}": goodput, **shares}


def _versus(figures: Mapping[str, float], name: str) -> dict[str, float]:
    edf = figures[f"goodput_edf{name}"]
    return {
        f"edf_vs_fcfs{name}": edf / figures[f"goodput_first_come{name}"],
        f"edf_vs_fcfs_refusing{name}": edf / figures[f"goodput_first_come_refusing{name}"],
    }


def _open(load: float, seconds: float, *, rules: str, is_mixed: bool = False) -> Load:
    """Poisson arrivals. Deadlines are multiples of a message's transfer, those of small ones of a usual one's."""
    rng = random.Random(1)
    sizes = [_mixed(rng) if is_mixed else MESSAGE_BYTES for _ in range(100_000)]
    rate = load / transfer_s(mean(sizes))
    gaps = [rng.expovariate(rate) for _ in range(int(seconds * rate))]
    sizes = sizes[:len(gaps)]
    slos = [rng.choice((TIGHT, LOOSE)) * transfer_s(max(size, MESSAGE_BYTES)) for size in sizes]
    return Load(
        LINKS, int(LINK_BYTES_PER_S), sizes, slos, gaps, tells_deadline=rules != "first_come", warm=WARM,
    )


def _mixed(rng: random.Random) -> int:
    """44 % below 1 KiB, 11 % above 256 KiB (MATH §4)."""
    low, high = rng.choices([(64, KIB), (KIB, 256 * KIB), (256 * KIB, 1024 * KIB)], [0.44, 0.45, 0.11])[0]
    return int(math.exp(rng.uniform(math.log(low), math.log(high))))


# ---- the window


def _traced(port: Port) -> dict[str, float]:
    """How the window follows other traffic that takes most of the link for a while."""
    load = _open(1.2, TRACE_S, rules="edf")
    other = _open(CROSS_LOAD, CROSS_S, rules="none")
    other.tells_deadline, other.gaps_s[0] = False, CROSS_FROM_S
    with _side(port.hn, "hn", {"rules": "none", "settings": SETTINGS}) as hn:
        to = port.reach(_heard(hn)["port"])
        options = {"address": to[0], "port": to[1], "load": asdict(other)}
        with _side(port.senders, "cn", options) as crossing:
            found = _played(port, "edf", load)
            _heard(crossing)
    at = np.array(found["trace"])
    seconds = at[:, 0] - found["began_at"]
    window, level = at[:, 1] / MESSAGE_BYTES, at[:, 2]
    speed = at[:, 3] / (LINK_BYTES_PER_S * PAYLOAD_SHARE)
    crossed = (seconds > CROSS_FROM_S + 1) & (seconds < CROSS_FROM_S + CROSS_S)
    before, after = (seconds > 1) & (seconds < CROSS_FROM_S - 1), seconds > CROSS_FROM_S + CROSS_S + 2
    IMAGE.write_text(_drawn(seconds, window, level, speed))
    return {
        f"{what}_{when}": float(values[part].mean())
        for when, part in (("before", before), ("crossed", crossed), ("after", after))
        for what, values in (("window_messages", window), ("level", level), ("bandwidth_share", speed))
    }


def _drawn(seconds: Any, window: Any, level: Any, speed: Any) -> str:
    part = (seconds >= 0) & (seconds <= TRACE_S)
    lines = [
        svg.Line(name, seconds[part], np.minimum(values[part], 6.0), colour)
        for (name, values), colour in zip(
            (("window, messages", window), ("congestion level", level), ("bandwidth, of the link", speed)),
            svg.COLOURS, strict=False,
        )
    ]
    return svg.chart(
        f"Incast window while other traffic takes {CROSS_LOAD:.0%} of the link "
        f"({CROSS_FROM_S:g} to {CROSS_FROM_S + CROSS_S:g} s)", lines,
        x=svg.Axis(0.0, TRACE_S, "seconds", [(at, f"{at:g}") for at in range(0, int(TRACE_S) + 1, 5)]),
        y=svg.Axis(0.0, 6.0, "", [(at, f"{at:g}") for at in range(7)]),
    )


# ---- processes


def _kind() -> str:
    try:
        with _port("namespaces"):
            return "namespaces"
    except NoPort as error:
        say(f"  no network namespaces ({error}): the port is in user space")
        return "user space"


@contextmanager
def _port(kind: str, *, classes: bool = True, like_rdma: bool = True) -> Iterator[Port]:
    if kind == "namespaces":
        at_once = MESSAGE_BYTES if like_rdma else 0
        with switch_port(LINK_BYTES_PER_S, BUFFER_BYTES, at_once_bytes=at_once, classes=classes) as port:
            yield port
    else:
        with user_port(LINK_BYTES_PER_S, BUFFER_BYTES) as port:
            yield port


def _played(port: Port, rules: str, load: Load) -> dict[str, Any]:
    """What the CNs and the HN tell."""
    # where all tell the same, far deadline, they go in the order in which they came, and nobody is refused
    names = {"first_come_refusing": "first_come", "first_come": "edf"}
    with _side(port.hn, "hn", {"rules": names.get(rules, rules), "settings": SETTINGS}) as hn:
        address, number = port.reach(_heard(hn)["port"])
        options = {"address": address, "port": number, "load": asdict(load)}
        with _side(port.senders, "cn", options) as cns:
            found = _heard(cns)
        assert hn.stdin is not None
        hn.stdin.write("\n")
        hn.stdin.flush()
        return found | _heard(hn)


@contextmanager
def _side(prefix: Sequence[str], side: str, options: dict[str, Any]) -> Iterator[subprocess.Popen[str]]:
    command = [*prefix, sys.executable, "-m", "bench.workloads.incast", side]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=one_thread()
    )
    try:
        assert process.stdin is not None
        process.stdin.write(json.dumps(options) + "\n")
        process.stdin.flush()
        yield process
    finally:
        process.kill()
        process.wait(10)


def _heard(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"a side of the incast ended with {process.wait(10)}")
    heard: dict[str, Any] = json.loads(line)
    return heard
