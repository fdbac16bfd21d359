"""A model server that dies of the newest version, as soon as it has loaded it: `python -m tests.support.picky_server`.

It does once the file exists that POISON names, and while no version is held.
"""

import os
import socket
import sys
from pathlib import Path

from recmesh.serving.transport.sockets import SocketTransport


def main() -> None:
    """Until the parent goes."""
    parent = SocketTransport(socket.socket(fileno=int(sys.argv[sys.argv.index("--fd") + 1])))
    parent.send({"call": 0, "framework_version": "1"})
    held = 0
    while (message := parent.receive()) is not None:
        header = message.header
        if header["op"] == "load":
            held = header["settings"]["freshness"]["held"]
            parent.send({"call": header["call"]})
            if not held and Path(os.environ["POISON"]).exists():
                os._exit(3)
        elif header["op"] == "fresh":
            held = header["version"]
            parent.send({"call": header["call"], "status": {"version": held}, "versions": [held]})


if __name__ == "__main__":
    main()
