"""What CN and HN processes have in common: options, the parent's socket, the end."""

import argparse
import os
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

from recmesh.runtime.errors import InvalidArgument, Violation
from recmesh.serving.failures import describe
from recmesh.serving.programs import framework
from recmesh.serving.transport.sockets import SocketTransport

TOKEN_VARIABLE = "RECMESH_API_KEY"
PARENT_STALL_S = 60.0
"""A parent's event loop may be busy for long; that is no reason to give it up."""
NO_FRAMEWORK = 78
DRAIN_S = 10.0


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
    parser.add_argument("--threads", type=int, default=1, help="compute threads of the framework")
    parser.add_argument("--drain", type=float, default=DRAIN_S, help="seconds to finish what runs, at SIGTERM")
    return parser


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
