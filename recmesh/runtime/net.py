"""Addresses to listen on: host:port, checked before anybody binds, with errors that name them."""

import errno
import socket

from recmesh.runtime.errors import InvalidArgument, Violation
from recmesh.runtime.lifecycle import PortTaken


def split(address: str, *, what: str, setting: str = "address") -> tuple[str, int]:
    """(host, port) of `host:port` or `[v6]:port`; InvalidArgument names the setting."""
    host, colon, port = address.rpartition(":")
    host = host.strip("[]")
    if not colon or not host or not port.isdecimal() or int(port) > 65_535:
        raise _bad(what, setting, f"{address!r} is not host:port")
    return host, int(port)


def listen(address: str, *, what: str, setting: str = "address") -> socket.socket:
    """A bound socket; PortTaken when another process has the address, InvalidArgument otherwise."""
    host, port = split(address, what=what, setting=setting)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
    except OSError as error:
        made.close()
        if error.errno == errno.EADDRINUSE:
            raise PortTaken(what, address) from None
        reason = f"cannot listen on {address}: {error.strerror or error}"
        if error.errno == errno.EADDRNOTAVAIL:
            reason = f"cannot listen on {address}: {host} is not an address of this machine"
        raise _bad(what, setting, reason) from None
    made.setblocking(False)
    return made


def check_free(address: str, *, what: str, setting: str = "address") -> None:
    """PortTaken or InvalidArgument, if that is what a server would run into now."""
    listen(address, what=what, setting=setting).close()


def is_listened_on(address: str, *, timeout_s: float = 1.0) -> bool:
    """True when somebody accepts connections at the `host:port`."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout_s).close()
    except OSError:
        return False
    return True


def _bad(what: str, setting: str, reason: str) -> InvalidArgument:
    return InvalidArgument(f"{what}: {reason}", violations=[Violation(setting, reason)])
