"""Runs sparse halves and asks HNs for the dense ones.

    python -m recmesh.serving.cn --hn tcp:hn-0:7000 --hn tcp:hn-1:7000 --listen unix:/run/cn --model ctr/1=/models/ctr

With --fd it belongs to the process that started it: that one loads and unloads models, and this one ends with it.
The mesh's token (RECMESH_API_KEY) must be set to listen on addresses that other machines can reach, and is shown
to HNs.
"""

import os
import sys
import threading
from collections.abc import Sequence

from recmesh.runtime.errors import MeshError
from recmesh.serving import process
from recmesh.serving.cn.asking import ByHn
from recmesh.serving.cn.choice import LeastExpected
from recmesh.serving.cn.peers import Hns
from recmesh.serving.cn.server import Server
from recmesh.serving.transport.endpoints import Endpoint, Listener

LOAD_S = 300.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until the parent goes, or SIGTERM comes; the exit code."""
    parser = process.options("recmesh-cn", __doc__)
    parser.add_argument(
        "--hn", action="append", default=[], metavar="ADDRESS", help="an HN; may be given several times"
    )
    given = parser.parse_args(arguments)
    process.quiet()
    token = process.token(os.environ)
    listeners: list[Listener] = []
    try:
        hns = Hns([Endpoint.parse(text) for text in given.hn], LeastExpected(), token=token, log=process.log)
        hns.asking = ByHn(hns)
        server = Server(hns, hns.asking, log=process.log, threads=given.threads)
        for address in given.listen:
            listeners.append(Listener(Endpoint.parse(address), token=token, log=process.log, open_now=False))
        parent = None
        if given.fd >= 0:
            parent = process.greet(given.fd, given.framework, threads=given.threads)
            if parent is None:
                return process.NO_FRAMEWORK
        for key, folder in process.models(given.model).items():
            server.load(key, folder, timeout_s=LOAD_S)
    except (MeshError, ImportError) as error:
        process.log(f"cn cannot start: {error}")
        return 78
    for listener in listeners:
        listener.open()
        threading.Thread(target=listener.accept, args=(server.serve,), name="accept", daemon=True).start()
    if parent is None:
        process.told(" ".join(["ready", *(str(listener.endpoint) for listener in listeners)]))

    def drain() -> bool:
        for listener in listeners:
            listener.close()
        drained = server.drain(given.drain)
        hns.close()
        return drained

    parents = None if parent is None else lambda: server.serve(parent, trusted=True)
    code = process.run(drain, parents)
    process.end(code)
    return code


if __name__ == "__main__":
    sys.exit(main())
