"""Who can reach an address."""

import ipaddress


def is_loopback(address: str) -> bool:
    """True when only this machine can reach the `host:port`."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
