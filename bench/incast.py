"""Many CNs send to one HN through a switch port with a finite buffer: with admission, and without.

Three network namespaces and the kernel's TCP (bench.workloads.port); broker, client and transport are the product's.
`failed_share_n`: n CNs send one message each at once, all could be in time one after the other: refused, missed or
lost. `edf_vs_*`: goodput in an open loop, half of the messages with short deadlines. `goodput_overload`: bytes
answered in time, of what the link can carry. `*_mix`: messages of very different sizes.
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

from bench.figures import Result
from bench.mesh import ROOT, one_thread, say
from bench.workloads.incast import Load
from bench.workloads.port import Port, switch_port
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
SECONDS, QUICK_SECONDS = 60.0, 5.0
IMAGE = ROOT / "docs" / "images" / "incast-window.svg"
SETTINGS = {
    "bandwidth_bytes_per_s": LINK_BYTES_PER_S, "window_start_bytes": 512 * KIB, "window_min_bytes": 256 * KIB,
    "window_max_bytes": 4096 * KIB, "margin_s": 0.002, "waiting_most": 100_000, "peer_waiting_most": 100_000,
}
_NO_PATIENCE_S = 1e6


def run(*, quick: bool) -> Result:
    """See the module."""
    repeats, seconds = (QUICK_REPEATS, QUICK_SECONDS) if quick else (REPEATS, SECONDS)
    figures: dict[str, float] = {}
    with switch_port(LINK_BYTES_PER_S, BUFFER_BYTES, at_once_bytes=MESSAGE_BYTES) as port:
        for senders in SENDERS:
            for rules, name in (("edf", ""), ("none", "_uncontrolled")):
                figures |= _burst(port, rules, senders, repeats, name)
        figures |= _loops(port, seconds)
    return Result("incast", figures, {
        "link_bytes_per_s": LINK_BYTES_PER_S, "buffer_bytes": BUFFER_BYTES, "message_bytes": MESSAGE_BYTES,
        "repeats": repeats, "seconds": seconds, "settings": SETTINGS,
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
            senders, int(LINK_BYTES_PER_S), [MESSAGE_BYTES] * senders, [slo_s] * senders, asks=rules != "none",
            warm=[1 * KIB] * 4 + [MESSAGE_BYTES] * 8,
        )
        fates += _played(port, rules, load)["fates"]
    failed = 1 - mean(each["good"] for each in fates)
    took = [each["took_s"] / slo_s for each in fates if each["took_s"] >= 0]
    say(f"  {senders} at once{name.replace('_', ', ')}: {failed:.1%} failed, {max(took, default=math.nan):.2f} of "
        f"the time at most, {[each['refused'] for each in fates if each['refused']]} refused, {sum(each['took_s']<0 and not each['refused'] for each in fates)} silent")
    return {
        f"failed_share_{senders}{name}": failed,
        f"lost_packets_{senders}{name}": (port.lost_packets() - before) / repeats,
    }


# ---- open loops


def _loops(port: Port, seconds: float) -> dict[str, float]:
    figures = {}
    for rules in ("edf", "first_come_refusing", "first_come"):
        load = _open(LOAD, seconds, seed=1, rules=rules)
        found = _played(port, rules, load)
        figures[f"goodput_{rules}"] = _goodput(found, seconds)
        say(f"  {rules}: {_told(found)}")
    figures["edf_vs_fcfs"] = figures["goodput_edf"] / figures["goodput_first_come"]
    figures["edf_vs_fcfs_refusing"] = figures["goodput_edf"] / figures["goodput_first_come_refusing"]
    found = _played(port, "edf", _open(OVERLOAD, seconds, seed=2, rules="edf"))
    figures["goodput_overload"] = _goodput(found, seconds)
    say(f"  overload: {_told(found)}")
    return figures


def _told(found: Mapping[str, Any]) -> str:
    fates = found["fates"]
    by = {}
    for name, slo in (("tight", TIGHT), ("loose", LOOSE)):
        part = [each for each in fates if abs(each["slo_s"] / transfer_s(MESSAGE_BYTES) - slo) < 0.1]
        by[name] = f"{mean(each['good'] for each in part):.3f} good, {mean(bool(each['refused']) for each in part):.3f} refused"
    return f"{found['goodput']:.3f} {by} {found['state']}"


def _open(load: float, seconds: float, *, seed: int, rules: str) -> Load:
    rng = random.Random(seed)
    rate = load / transfer_s(MESSAGE_BYTES)
    count = int(seconds * rate)
    gaps = [rng.expovariate(rate) for _ in range(count)]
    slos = [rng.choice((TIGHT, LOOSE)) * transfer_s(MESSAGE_BYTES) for _ in range(count)]
    return Load(
        LINKS, int(LINK_BYTES_PER_S), [MESSAGE_BYTES] * count, slos, gaps, tells_deadline=rules != "first_come",
        warm=[1 * KIB] * 4 + [MESSAGE_BYTES] * 8,
    )


def _goodput(found: dict[str, Any], seconds: float) -> float:
    """Of the link; of messages that came in the time."""
    good = sum(each["size_bytes"] for each in found["fates"] if each["good"])
    found["goodput"] = good / (seconds * LINK_BYTES_PER_S * PAYLOAD_SHARE)
    return float(found["goodput"])


# ---- processes


def _played(port: Port, rules: str, load: Load) -> dict[str, Any]:
    """What the CNs and the HN tell."""
    settings: dict[str, Any] = dict(SETTINGS)
    if rules == "first_come":           # no deadline is told, so nobody is refused, and one model goes in order
        settings["undated_patience_s"] = _NO_PATIENCE_S
    names = {"first_come_refusing": "first_come", "first_come": "edf"}
    with _side(port.hn, "hn", {"rules": names.get(rules, rules), "settings": settings}) as hn:
        opened = _heard(hn)
        with _side(port.senders, "cn", {
            "address": port.address, "port": opened["port"], "load": asdict(load),
        }) as cns:
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
