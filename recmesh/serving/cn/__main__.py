"""Runs sparse halves and asks HNs for the dense ones.

    python -m recmesh.serving.cn --hn tcp:hn-0:7000 --hn tcp:hn-1:7000 --listen unix:/run/cn --model ctr/1=/models/ctr

With --fd it belongs to the process that started it: that one loads and unloads models, and this one ends with it.
With --control gateways connect to it, do the same, and may go and come again.
The mesh's token (RECMESH_API_KEY) must be set to listen on addresses that other machines can reach, and is shown
to HNs. With certificates (RECMESH_TLS_CERT, _KEY, _CA) TCP is TLS.
"""

import os
import sys
import threading
from collections.abc import Sequence

from recmesh.runtime.errors import MeshError
from recmesh.serving import halves, process
from recmesh.serving.admission.domain.hedging import HedgeRules
from recmesh.serving.cn.alarms import Alarms
from recmesh.serving.cn.peers import Hns
from recmesh.serving.cn.server import Server
from recmesh.serving.hn.batching import MOST_WAITING
from recmesh.serving.transport.endpoints import Endpoint, Listener, dialling

LOAD_S = 300.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until the parent goes, or SIGTERM comes; the exit code."""
    parser = process.options("recmesh-cn", __doc__)
    parser.add_argument(
        "--hn", action="append", default=[], metavar="ADDRESS", help="an HN; may be given several times"
    )
    parser.add_argument(
        "--hedge-share", type=float, default=HedgeRules().share, metavar="SHARE",
        help="of requests for which a second HN may be asked when the first takes longer than 95 %% did; 0: none",
    )  # fmt: skip
    parser.add_argument(
        "--queue", type=int, default=MOST_WAITING, metavar="N", help="requests of one model that may wait to be begun"
    )
    given = parser.parse_args(arguments)
    process.quiet()
    token = process.token(os.environ)
    listeners: list[Listener] = []
    try:
        tls = process.tls(os.environ)
        endpoints, alarms = [Endpoint.parse(text) for text in given.hn], Alarms()
        hns = Hns(endpoints, dial=dialling(token=token, tls=tls), alarms=alarms, log=process.log)
        server = Server(
            hns, alarms=alarms, log=process.log, threads=given.threads, hedging=HedgeRules(share=given.hedge_share),
            most_waiting=given.queue,
        )
        for address in given.listen:
            listeners.append(
                Listener(Endpoint.parse(address), token=token, log=process.log, open_now=False, tls=tls)
            )
        parent = None
        if given.fd >= 0:
            parent = process.greet(given.fd, given.framework, threads=given.threads)
            if parent is None:
                return process.NO_FRAMEWORK
        for key, folder in process.models(given.model).items():
            serving = halves.part(folder).settings.with_secrets(os.environ)
            server.load(key, folder, timeout_s=LOAD_S, settings=serving)
        control = process.control(given, os.environ)
    except (MeshError, ImportError) as error:
        process.log(f"cn cannot start: {error}")
        return process.BAD_SETTINGS
    process.settle()
    for listener in listeners:
        listener.open()
        threading.Thread(target=listener.accept, args=(server.serve,), name="accept", daemon=True).start()
    if control is not None:
        control.open(lambda transport: server.serve(transport, trusted=True))
    if not process.measured(given.metrics, server.state, os.environ):
        return process.BAD_SETTINGS
    if parent is None:
        addresses = [listener.endpoint for listener in listeners] + ([control.endpoint] if control else [])
        process.told(" ".join(["ready", *map(str, addresses)]))

    def drain() -> bool:
        if control is not None:
            control.until_left()
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
