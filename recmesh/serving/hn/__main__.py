"""Runs dense halves and whole models: `python -m recmesh.serving.hn --listen shm:/run/hn --model ctr/1=/models/ctr`.

With --fd it belongs to the process that started it: that one loads and unloads models, and this one ends with it.
With --control gateways connect to it, do the same, and may go and come again.
Without, models are given by --model; settings are those of each model's `model.json` (`serving`). The mesh's
token (RECMESH_API_KEY) must be set to listen on addresses that other machines can reach; CNs have to know it. With
certificates (RECMESH_TLS_CERT, _KEY, _CA) TCP is TLS. With --root CNs may have models below that folder loaded.
"""

import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from recmesh.runtime.errors import MeshError
from recmesh.serving import halves, process
from recmesh.serving.admission.settings import Settings
from recmesh.serving.hn.batching import MOST_WAITING
from recmesh.serving.hn.desk import Desk
from recmesh.serving.hn.server import Server
from recmesh.serving.programs import DeviceLost
from recmesh.serving.transport.endpoints import Endpoint, Listener

BROKEN = 70
HANG_S = 120.0
LOOK_S = 1.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until the parent goes, or SIGTERM comes; the exit code."""
    parser = process.options("recmesh-hn", __doc__)
    parser.add_argument(
        "--hang", type=float, default=HANG_S,
        help="a model that runs so many seconds past the deadlines of its callers hangs; this process then ends",
    )  # fmt: skip
    parser.add_argument(
        "--admission", action="store_true", help="CNs ask before they send; grants follow the congestion of the link"
    )
    parser.add_argument(
        "--bandwidth", type=float, default=Settings().bandwidth_bytes_per_s, metavar="BYTES_PER_S",
        help="of the link to this HN, until it is measured",
    )  # fmt: skip
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE",
        help="a setting of admission (docs/reference/admission.md); shares.MODEL=WEIGHT for a model's share",
    )  # fmt: skip
    parser.add_argument(
        "--root", action="append", default=[], type=Path, metavar="FOLDER",
        help="CNs may have models below it loaded and unloaded; may be given several times",
    )  # fmt: skip
    parser.add_argument(
        "--queue", type=int, default=MOST_WAITING, metavar="N", help="requests of one model that may wait"
    )
    parser.add_argument(
        "--accelerator", action="store_true", help="refuse models where the framework sees none, and do not use the CPU"
    )
    given = parser.parse_args(arguments)
    process.quiet()
    listeners: list[Listener] = []
    token = process.token(os.environ)
    try:
        settings = Settings.parse([f"bandwidth_bytes_per_s={given.bandwidth}", *given.set])
        desk = Desk(settings) if given.admission else None
        server = Server(
            lost=_lost, log=process.log, threads=given.threads, desk=desk, roots=given.root,
            needs_device=given.accelerator, most_waiting=given.queue,
        )  # fmt: skip
        tls = process.tls(os.environ)
        for address in given.listen:
            listeners.append(Listener(
                Endpoint.parse(address), token=token, log=process.log, open_now=False, terms=server.terms, tls=tls
            ))  # fmt: skip
        parent = None
        if given.fd >= 0:
            parent = process.greet(given.fd, given.framework, threads=given.threads)
            if parent is None:
                return process.NO_FRAMEWORK
        for key, folder in process.models(given.model).items():
            serving = halves.part(folder).settings.with_secrets(os.environ)
            which = "dense" if halves.is_split(folder, serving) else "whole"
            server.hold(key)
            server.load(key, folder, which=which, settings=serving)
        control = process.control(given, os.environ)
    except (MeshError, ImportError) as error:
        process.log(f"hn cannot start: {error}")
        return process.BAD_SETTINGS
    process.settle()
    for listener in listeners:
        listener.open()
        threading.Thread(target=listener.accept, args=(server.serve,), name="accept", daemon=True).start()
    if control is not None:
        control.open(lambda transport: server.serve(transport, trusted=True))
    if not process.measured(given.metrics, server.status, os.environ):
        return process.BAD_SETTINGS
    if parent is None:
        addresses = [listener.endpoint for listener in listeners] + ([control.endpoint] if control else [])
        process.told(" ".join(["ready", *map(str, addresses)]))

    threading.Thread(target=_watch, args=(server, given.hang), name="watch", daemon=True).start()

    def drain() -> bool:
        if control is not None:
            control.until_left()
        for listener in listeners:
            listener.close()
        return server.drain(given.drain)

    parents = None if parent is None else lambda: server.serve(parent, trusted=True)
    code = process.run(drain, parents)
    process.end(code)
    return code


def _watch(server: Server, hang_s: float) -> None:
    """A thread that hangs in a model cannot be ended but with its process, which is started again."""
    while True:
        time.sleep(LOOK_S)
        server.forget_unwanted()
        key, overdue_s = server.overdue()
        if overdue_s > hang_s:
            process.log(f"model {key} runs {overdue_s:.0f} s past the deadlines of all who wait for it: it hangs")
            process.end(BROKEN)


def _lost(error: DeviceLost) -> None:
    """The one who started us starts a new process, with a device that works."""
    process.log(f"the accelerator is lost: {error}")
    process.end(BROKEN)


if __name__ == "__main__":
    sys.exit(main())
