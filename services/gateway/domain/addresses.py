"""Where the gateway may send requests that others ask for: not to its own network (SSRF), unless that is allowed."""

from collections.abc import Iterable, Sequence
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)

from recmesh.runtime.errors import InvalidArgument, PermissionDenied, Violation

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_NAT64 = IPv6Network("64:ff9b::/96")
_SITE_LOCAL = IPv6Network("fec0::/10")


def networks(text: str) -> tuple[Network, ...]:
    """`10.1.0.0/16, 127.0.0.1` as networks; ValueError names what is none."""
    return tuple(ip_network(each.strip()) for each in text.split(",") if each.strip())


def is_public(address: Address) -> bool:
    """Whether it is somewhere in the internet; of an IPv6 address that stands for an IPv4 one, whether that is."""
    inner = _inside(address)
    if inner is not None:
        return is_public(inner)
    if address.is_multicast or address.is_reserved or address.is_unspecified or address.is_loopback:
        return False
    return address.is_global and not (isinstance(address, IPv6Address) and address in _SITE_LOCAL)


def _inside(address: Address) -> IPv4Address | None:
    if isinstance(address, IPv4Address):
        return None
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.sixtofour


def is_allowed(address: Address, allowed: Iterable[Network]) -> bool:
    """Whether a private address is in a network that may be reached."""
    inner = _inside(address) or address
    return any(inner.version == network.version and inner in network for network in allowed)


def check(host: str, found: Sequence[str], *, allowed: Sequence[Network], secure: bool) -> str:
    """The address to connect to, of those that a host has; PermissionDenied when one of them must not be reached.

    One is enough to refuse: whoever answers for the name may change their order. Without TLS only networks that are
    allowed by name are reached: elsewhere anybody on the way would read and change what is sent.
    """
    for text in found:
        address = ip_address(text.partition("%")[0])
        if is_allowed(address, allowed):
            continue
        if not is_public(address):
            named = text if host == text else f"{host} is {text}, which"
            raise _refused(f"{named} is an address that is not public")
        if not secure:
            raise _refused(f"{host} is in the internet, and is reached by https:// only")
    return found[0]


def _refused(why: str) -> PermissionDenied:
    return PermissionDenied(
        f"{why}; RECMESH_GATEWAY_WEBHOOK_NETWORKS names networks that may be reached all the same",
        reason="ADDRESS_REFUSED", violations=[Violation("url", why)],
    )


def wrong_url(reason: str) -> InvalidArgument:
    """The error of a URL that is none."""
    return InvalidArgument(f"the URL {reason}", reason="BAD_WEBHOOK", violations=[Violation("url", reason)])
