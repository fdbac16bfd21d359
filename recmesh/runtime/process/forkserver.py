"""Starts of the same program by fork of one that has imported all it needs already (as multiprocessing's).

The server is a child of whoever starts it, and ends with its connection; what it forked lives on, each behind a shim
of its own (`shim.main`, forked, too). An order goes over a socket as one JSON line with the descriptor that its
outcome is written to; the environment comes with it, so that none of it is written down or seen by others.

What acts before a program's first line cannot be given later: variables that begin as in `EARLY` must be the server's
own, else the program is started anew.
"""

import array
import gc
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from recmesh.runtime.process import shim

EARLY = (
    "PYTHON", "LANG", "LC_", "LD_", "GLIBC_", "MALLOC_", "OMP_", "MKL_", "OPENBLAS_", "KMP_", "NPY_", "NUMBA_",
    "ARROW_", "GRPC_",
)
PLAIN = frozenset({"PATH", "HOME", "TMPDIR", "TZ"})
"""All else that a server is started with: what one job's processes are told, forks of others could read in `/proc`."""
FORK_SAFE = frozenset({"jemalloc_bg_thd"})
"""Threads that their library begins anew in a fork: of Arrow's allocator."""
READY = b"ready\n"
AGAIN_S = 60.0
"""Between two attempts to start a server that has ended."""
_SEND_S = 5.0
_END_S = 1.0
"""What is killed is gone by then, but where the kernel waits for a disk: all starts would wait with it."""
_MOST_BYTES = 1 << 20
"""Of an order; environments are bounded by the kernel, at less."""


class ForkServer:
    """Of one command, which calls `serve`. Threads may share it."""

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        """folder: its working folder, where it also writes `forkserver.log`."""
        self._command, self._folder = tuple(command), folder
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._ending: list[subprocess.Popen[bytes]] = []
        """Killed, and not gone yet."""
        self._socket: socket.socket | None = None
        self._env: dict[str, str] = {}
        self._is_ready, self._tried_at = False, float("-inf")

    @property
    def pid(self) -> int | None:
        """None while there is none."""
        return self._process.pid if self._process is not None else None

    def warm_up(self, env: Mapping[str, str]) -> None:
        """Starts it, with this environment's early and plain variables alone; returns at once."""
        with self._lock:
            if self._process is not None and self._process.poll() is None:
                return
            if time.monotonic() - self._tried_at < AGAIN_S:
                return
            self._tried_at = time.monotonic()
            self._end()
            self._env = {name: value for name, value in env.items() if name.startswith(EARLY) or name in PLAIN}
            with suppress(OSError):
                self._begin()

    def _begin(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        ours.settimeout(_SEND_S)
        try:
            with theirs, (self._folder / "forkserver.log").open("ab") as log:
                self._process = subprocess.Popen(
                    [*self._command, str(theirs.fileno())], env=self._env, cwd=self._folder, stdin=subprocess.DEVNULL,
                    stdout=log, stderr=log, pass_fds=(theirs.fileno(),), start_new_session=True,
                )
        except OSError:
            ours.close()
            raise
        self._socket = ours

    def fits(self, env: Mapping[str, str]) -> bool:
        """It is ready, and what it forks will be as if it had been started with this environment."""
        with self._lock:
            return self._hears() and _early(env) == _early(self._env)

    def _hears(self) -> bool:
        if self._process is not None and self._process.poll() is not None:
            self._end()
        if self._socket is None:
            return False
        if not self._is_ready:
            if not readable(self._socket.fileno(), 0.0):
                return False
            with suppress(OSError):
                self._is_ready = self._socket.recv(len(READY)) == READY
            if not self._is_ready:
                self._end()
        return self._is_ready

    def start(self, order: Mapping[str, object], env: Mapping[str, str]) -> None:
        """Has it fork; its shim tells the outcome by the descriptor `status_fd`. One that is gone forks nothing."""
        body = json.dumps({"order": dict(order), "env": dict(env)}).encode() + b"\n"
        with self._lock:
            if self._socket is None:
                return
            try:
                sent = socket.send_fds(self._socket, [body], [int(str(order["status_fd"]))])
                self._socket.sendall(body[sent:])
            except OSError:         # half an order would spoil the next
                self._end()

    def close(self) -> None:
        """Ends it; what it forked goes on."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        if self._socket is not None:
            self._socket.close()
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()
            try:
                self._process.wait(timeout=_END_S)
            except subprocess.TimeoutExpired:
                self._ending.append(self._process)
        self._ending = [each for each in self._ending if each.poll() is None]
        self._socket, self._process, self._is_ready = None, None, False


def readable(descriptor: int, timeout_s: float) -> bool:
    """Something can be read, or its end; False after the time. select() refuses descriptors from 1024 up."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(1000 * timeout_s))


def _early(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith(EARLY)}


# -- inside it -------------------------------------------------------------------------------------------


def serve(descriptor: int) -> None:
    """Forks for each order that comes. Returns in the child that is to be the command, with environment, folder and
    output as ordered; the server itself never returns: it exits with its connection. RuntimeError where threads run,
    which a fork would not have."""
    tasks = [path for path in Path("/proc/self/task").iterdir() if path.name != str(os.getpid())]
    others = {(path / "comm").read_text().strip() for path in tasks} - FORK_SAFE
    if others:
        raise RuntimeError(f"threads run before the first fork: {', '.join(sorted(others))}")
    gc.collect()
    gc.freeze()             # no collection writes to pages that all share
    connection = socket.socket(fileno=descriptor)
    connection.sendall(READY)
    orders = _Orders(connection)
    while True:
        body, status = orders.next()
        child = os.fork()
        if child == 0:
            connection.close()
            orders.close()
            order, env = body["order"], body["env"]
            if not shim.main(order | {"status_fd": status}, forked=True):
                os._exit(0)
            _become(env)
            return
        os.close(status)
        os.waitpid(child, 0)


class _Orders:
    """Read from the connection one by one; exits where it ends."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._data = connection, b""
        self._descriptors = array.array("i")
        """In the order of the orders. One read may bring the end of a long order and the beginning of the next."""

    def next(self) -> tuple[dict[str, Any], int]:
        """It, and the descriptor that came with it."""
        while b"\n" not in self._data:
            part, found, _, _ = socket.recv_fds(self._connection, 1 << 16, 4)
            self._descriptors.extend(found)
            if not part or len(self._data) > _MOST_BYTES:
                sys.exit(0)
            self._data += part
        line, _, self._data = self._data.partition(b"\n")
        return json.loads(line), self._descriptors.pop(0)

    def close(self) -> None:
        """In a fork: those of later orders are the server's."""
        for descriptor in self._descriptors:
            os.close(descriptor)


def _become(env: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(env)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):     # as an interpreter begins; else a peer's leaving kills
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if sys.path:
        sys.path[0] = os.getcwd()       # as `python -m` has it
    random.seed()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()             # all forks would draw the same numbers


__all__ = ["EARLY", "ForkServer", "readable", "serve"]
