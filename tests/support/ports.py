"""Which addresses a process listens at, as the kernel tells (Linux)."""

import ipaddress
import os
from contextlib import suppress
from pathlib import Path

LISTENS = "0A"


def listening(pid: int) -> dict[int, str]:
    """Hosts by port, of TCP over IPv4 and IPv6; empty when the process is gone."""
    links = []
    try:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):          # closed meanwhile
                links.append(os.readlink(entry))
        tables = [Path(f"/proc/{pid}/net/{name}").read_text() for name in ("tcp", "tcp6")]
    except (FileNotFoundError, ProcessLookupError):
        return {}
    sockets = {link.removeprefix("socket:[").removesuffix("]") for link in links if link.startswith("socket:[")}
    found = {}
    for line in "\n".join(table.partition("\n")[2] for table in tables).splitlines():
        fields = line.split()
        if fields and fields[3] == LISTENS and fields[9] in sockets:
            host, _, port = fields[1].partition(":")
            found[int(port, 16)] = _host(host)
    return found


def _host(text: str) -> str:
    """Words of four bytes, each in the machine's order."""
    words = [bytes.fromhex(text[place : place + 8])[::-1] for place in range(0, len(text), 8)]
    address = ipaddress.ip_address(b"".join(words))
    return str(getattr(address, "ipv4_mapped", None) or address)
