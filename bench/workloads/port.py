"""The last switch port before an HN: a rate, a finite buffer, and loss when it is full.

Three network namespaces, as two racks' hosts and the switch between them: senders, a router, the HN. The router's
interface towards the HN is a token bucket (`tc tbf`) whose queue drops its tail; all else is the kernel's own TCP,
either as it comes, or made to resemble an RDMA NIC.
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_BURST_BYTES = 4096
"""Larger segments are cut, so that packets are lost and not bursts of them."""
_SEGMENT_BYTES, _PACKET_BYTES = 1448, 1514
_SENDERS, _HN = "10.213.1", "10.213.2"
"""Networks that exist in these namespaces only."""


_LIKE_RDMA = ("tcp_sack=0", "tcp_dsack=0", "tcp_recovery=0", "tcp_early_retrans=0", "tcp_frto=0")
"""What is lost is found by a time-out, or by its successors, one per round trip; not from a map of what arrived."""


class NoPort(RuntimeError):
    """This machine lets nobody make network namespaces."""


@dataclass
class Port:
    """Commands that begin a process on either side of it."""

    senders: tuple[str, ...]
    hn: tuple[str, ...]
    address: str
    """Of the HN."""
    router: str
    interface: str

    def reach(self, port: int) -> tuple[str, int]:
        """Where CNs find an HN that listens on this port."""
        return self.address, port

    def lost_packets(self) -> int:
        """Since the beginning."""
        text = _run("ip", "netns", "exec", self.router, "tc", "-s", "qdisc", "show", "dev", self.interface)
        return int(text.split("(dropped ", 1)[1].split(",", 1)[0])


@contextmanager
def switch_port(
    bytes_per_s: float, buffer_bytes: int, *, at_once_bytes: int = 0, classes: bool = True
) -> Iterator[Port]:
    """NoPort without the rights for it, or the tools. `at_once_bytes`: as an RDMA NIC does, so much is sent without
    probing the way, and loss is noticed late; 0: TCP as the kernel has it. `classes`: packets
    marked "low delay" pass others, and the buffer counts packets of full size; otherwise it counts bytes."""
    names = [f"recmesh-{os.getpid()}-{part}" for part in ("cn", "port", "hn")]
    senders, router, hn = names
    made: list[str] = []
    try:
        for name in names:
            _run("ip", "netns", "add", name)
            made.append(name)
        for network, side, other in ((_SENDERS, senders, "to-cn"), (_HN, hn, "to-hn")):
            _run("ip", "-n", router, "link", "add", other, "type", "veth", "peer", "name", "eth0", "netns", side)
            _run("ip", "-n", router, "addr", "add", f"{network}.1/24", "dev", other)
            _run("ip", "-n", side, "addr", "add", f"{network}.2/24", "dev", "eth0")
            _run("ip", "-n", router, "link", "set", other, "up")
            _run("ip", "-n", side, "link", "set", "eth0", "up")
            route = ["ip", "-n", side, "route", "add", "default", "via", f"{network}.1"]
            if at_once_bytes:
                segments = str(at_once_bytes // _SEGMENT_BYTES + 1)
                route += ["initcwnd", segments, "initrwnd", segments]
                for change in _LIKE_RDMA:
                    _run("ip", "netns", "exec", side, "sysctl", "-q", "-w", f"net.ipv4.{change}")
            _run(*route)
        _run("ip", "netns", "exec", router, "sysctl", "-q", "-w", "net.ipv4.ip_forward=1")
        _run("ip", "netns", "exec", router, "tc", "qdisc", "add", "dev", "to-hn", "root", "handle", "1:", "tbf",
             "rate", f"{int(bytes_per_s * 8)}bit", "burst", str(_BURST_BYTES), "limit", str(buffer_bytes))
        if classes:
            packets = str(buffer_bytes // _PACKET_BYTES)
            _run("ip", "-n", router, "link", "set", "to-hn", "txqueuelen", packets)
            _run("ip", "netns", "exec", router, "tc", "qdisc", "add", "dev", "to-hn", "parent", "1:1", "handle", "10:",
                 "pfifo_fast")
        yield Port(("ip", "netns", "exec", senders), ("ip", "netns", "exec", hn), f"{_HN}.2", router, "to-hn")
    finally:
        for name in made:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def _run(*command: str) -> str:
    try:
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.CalledProcessError) as error:
        why = error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) else str(error)
        raise NoPort(f"{' '.join(command)}: {why}") from error
    return done.stdout
