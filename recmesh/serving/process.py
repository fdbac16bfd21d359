"""What CN and HN processes have in common: options, the parent's socket, the end."""

import argparse
import gc
import os
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from recmesh.runtime.errors import InvalidArgument, MeshError, Violation
from recmesh.runtime.tls import Tls
from recmesh.serving import metrics
from recmesh.serving.control import Control
from recmesh.serving.failures import describe
from recmesh.serving.programs import framework
from recmesh.serving.transport.sockets import SocketTransport

TOKEN_VARIABLE, METRICS_VARIABLE = "RECMESH_API_KEY", "RECMESH_METRICS_KEY"
HTTP_TLS = "RECMESH_HTTP_TLS_"
PARENT_STALL_S = 60.0
"""A parent's event loop may be busy for long; that is no reason to give it up."""
NO_FRAMEWORK = BAD_SETTINGS = 78
DRAIN_S = 10.0
NOTICE_S, UNATTENDED_S = 40.0, 600.0
SWITCH_S = 0.0005
"""After which a thread that computes in Python lets another one in. Python's own 5 ms are for each time that a thread
of a request waits for the interpreter, which it does several times, while another thread loads a model."""


def options(prog: str, doc: str) -> argparse.ArgumentParser:
    """The options that both take."""
    parser = argparse.ArgumentParser(
        prog=prog, description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--framework", default="", help="imported at the start: torch or tensorflow")
    parser.add_argument("--fd", type=int, default=-1, help="an inherited socket, of the parent process")
    parser.add_argument(
        "--listen", action="append", default=[], metavar="ADDRESS",
        help="shm:/path, unix:/path or tcp:host:port; may be given several times",
    )  # fmt: skip
    parser.add_argument(
        "--model", action="append", default=[], metavar="NAME/VERSION=FOLDER", help="loaded at the start"
    )
    parser.add_argument("--metrics", default="", metavar="HOST:PORT", help="where Prometheus finds its metrics")
    parser.add_argument("--threads", type=int, default=1, help="compute threads of the framework")
    parser.add_argument(
        "--control", default="", metavar="ADDRESS",
        help="tcp:host:port, for gateways that load and unload models here, as a parent does; needs the mesh's token",
    )  # fmt: skip
    parser.add_argument(
        "--notice", type=float, default=NOTICE_S, metavar="SECONDS",
        help="with --control: so long after SIGTERM gateways may take to have another in the place of this one",
    )  # fmt: skip
    parser.add_argument(
        "--unattended", type=float, default=UNATTENDED_S, metavar="SECONDS",
        help="with --control: end when no gateway has been here for so long",
    )  # fmt: skip
    parser.add_argument("--drain", type=float, default=DRAIN_S, help="seconds to finish what runs, at SIGTERM")
    return parser


def tls(env: Mapping[str, str]) -> Tls | None:
    """The process' certificates, for TCP; those of its services' gRPC. InvalidArgument."""
    return Tls.from_env(env)


def http_tls(env: Mapping[str, str]) -> Tls | None:
    """The certificate of metrics and probes, by the names that services have for their HTTP ports. InvalidArgument."""
    cert, key = (Path(env[f"{HTTP_TLS}{each}"]) if env.get(f"{HTTP_TLS}{each}") else None for each in ("CERT", "KEY"))
    return Tls(cert=cert, key=key, prefix="http_tls") if cert or key else None


def token(env: Mapping[str, str]) -> str | None:
    """The mesh's, which CN and HN show each other."""
    return env.get(TOKEN_VARIABLE) or None


def models(given: list[str]) -> dict[str, Path]:
    """The folders by `name/version`; InvalidArgument."""
    found: dict[str, Path] = {}
    for text in given:
        key, _, folder = text.partition("=")
        if not key or not folder:
            why = f"{text!r} is not NAME/VERSION=FOLDER"
            raise InvalidArgument(why, reason="BAD_OPTION", violations=[Violation("--model", why)])
        found[key] = Path(folder)
    return found


def greet(fd: int, chosen: str, *, threads: int) -> SocketTransport | None:
    """Import the framework and tell the parent its version; None where it cannot be imported."""
    parent = SocketTransport(socket.socket(fileno=fd), stall_s=PARENT_STALL_S)
    try:
        _, version = framework(chosen, threads=threads)
    except ImportError as error:
        parent.send(
            {"call": 0, "error": f"{chosen} is not installed: {error}", "reason": "NO_FRAMEWORK"}
        )
        return None
    except InvalidArgument as error:
        parent.send({"call": 0, **describe(error)})
        return None
    parent.send({"call": 0, "framework_version": version})
    return parent


def control(given: argparse.Namespace, environment: Mapping[str, str]) -> Control | None:
    """The address for gateways, with the framework imported; None without `--control`. InvalidArgument, ImportError."""
    if not given.control:
        return None
    version = framework(given.framework, threads=given.threads)[1] if given.framework else ""
    return Control(
        given.control, token=token(environment), tls=tls(environment), hello={"framework_version": version},
        notice_s=given.notice, unattended_s=given.unattended, log=log,
    )  # fmt: skip


def measured(address: str, state: Callable[[], Mapping[str, Any]], environment: Mapping[str, str]) -> bool:
    """Answer scrapes there, if it is given; False where that cannot be, which is logged. Beyond loopback for the key
    of metrics or the mesh's token; by https where there is a certificate for it.

    Probes ask the same address: who is told by them that this process is ready must be let in, so this comes last.
    """
    if not address:
        return True
    keys = [environment.get(name, "") for name in (METRICS_VARIABLE, TOKEN_VARIABLE)]
    try:
        log(f"metrics at {metrics.serve(address, state, keys=keys, tls=http_tls(environment))}/metrics")
    except MeshError as error:
        log(f"it cannot start: {error}")
        return False
    return True


def settle() -> None:
    """When frameworks are there, and nothing is served yet: keep loads from holding up requests.

    What frameworks consist of stays for as long as the process, so the garbage collector, which a load sets going, need
    not look through it again and again; that took it a tenth of a second, in which nothing else runs.
    """
    gc.collect()
    gc.freeze()
    sys.setswitchinterval(SWITCH_S)


def run(drain: Callable[[], bool], parents: Callable[[], None] | None) -> int:
    """Until SIGTERM, which drains, or until `parents`, which serves the parent, returns; the exit code.

    Without a parent SIGINT drains too; with one Ctrl-C is the parent's to handle.
    """
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN if parents else lambda *_: stop.set())
    if parents is not None:

        def serve() -> None:
            parents()
            end(0)                               # a model may be running; nothing of it is wanted any more

        threading.Thread(target=serve, name="parent", daemon=True).start()
    stop.wait()
    return 0 if drain() else 71


def end(code: int) -> None:
    """At once, whatever runs."""
    sys.stderr.flush()
    os._exit(code)


def log(text: str) -> None:
    """To standard error, which the parent process or the container keeps."""
    print(text, file=sys.stderr, flush=True)


def quiet() -> None:
    """Frameworks warn of their own future."""
    warnings.simplefilter("ignore")


def told(text: str) -> None:
    """One line on standard output that says where we listen, for those who start us by hand or in tests."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        log("nobody reads where this process listens")
