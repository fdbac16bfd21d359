"""Ports: chosen once from a quiet range, kept, and checked before anything is started."""

import hashlib
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import psutil

from recmesh.runtime.errors import FailedPrecondition

_RANGE = (20000, 30000)
"""Below the kernel's ephemeral range (32768 by default): no outgoing connection takes a port between a
process's death and its restart."""


def choose(
    names: Iterable[str], *, fixed: Mapping[str, int], kept: Mapping[str, int], seed: str
) -> dict[str, int]:
    """A port for each name: the fixed one, else the kept one, else a free one.

    The search starts at a place given by `seed` (the data folder), so that the meshes of one machine do not
    compete for the same numbers, and a mesh that lost its state likely finds its old ones.
    """
    chosen: dict[str, int] = {}
    low, high = _RANGE
    offset = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:4]) % (high - low)
    candidates = (low + (offset + step) % (high - low) for step in range(high - low))
    reserved = set(fixed.values()) | set(kept.values())
    for name in names:
        if name in fixed or name in kept:
            chosen[name] = fixed.get(name, kept.get(name, 0))
        else:
            chosen[name] = next((p for p in candidates if p not in reserved and is_free("127.0.0.1", p)), 0)
            if not chosen[name]:
                message = f"no port between {low} and {high} is free for {name}"
                raise FailedPrecondition(message, reason="PORT_TAKEN")
            reserved.add(chosen[name])
    return chosen


def is_free(host: str, port: int) -> bool:
    """True when a server could listen there now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: TIME_WAIT does not count
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError:
            return False
    return True


def holder(port: int) -> str:
    """Who listens on a port, for people; empty when it cannot be found out."""
    try:
        for connection in psutil.net_connections("tcp"):
            local: Any = connection.laddr  # typed as an empty tuple by the stubs, for sockets not yet bound
            if connection.status == psutil.CONN_LISTEN and local and local.port == port and connection.pid:
                return f"{psutil.Process(connection.pid).name()}, pid {connection.pid}"
    except (psutil.Error, OSError):
        return ""
    return ""


def taken(name: str, port: int, config_file: Path) -> FailedPrecondition:
    """The error for a port that somebody else holds."""
    who = holder(port)
    return FailedPrecondition(
        f"port {port} for {name} is taken{f' by {who}' if who else ''}; choose another under [ports] in "
        f"{config_file}, or free it",
        reason="PORT_TAKEN",
    )
