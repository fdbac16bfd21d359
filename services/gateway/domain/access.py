"""Who is on this machine."""

LOOPBACK_HOSTS = frozenset({"127.0.0.1", "::1", "localhost"})


def is_loopback(address: str) -> bool:
    """True when `host:port` can be reached from this machine only."""
    host = address.rpartition(":")[0].strip("[]")
    return host in LOOPBACK_HOSTS or host.startswith("127.")


def is_local_peer(peer: str) -> bool:
    """True for a gRPC peer (`ipv4:127.0.0.1:5`, `ipv6:%5B::1%5D:5`, `unix:`) on this machine."""
    kind, _, address = peer.partition(":")
    return kind == "unix" or is_loopback(address.replace("%5B", "[").replace("%5D", "]"))
