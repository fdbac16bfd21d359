"""Callers of one address reach whichever it points at, and come again when it turns."""

import socket
import threading
from collections.abc import Iterator

import pytest

from recmesh.chaos.front import Front
from tests.support.servers import free_port


class Echo:
    """Answers what it hears with its name before it."""

    def __init__(self, name: bytes) -> None:
        self._name = name
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            while data := connection.recv(1024):
                connection.sendall(self._name + data)

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def echoes() -> Iterator[tuple[Echo, Echo]]:
    made = Echo(b"first "), Echo(b"second ")
    yield made
    for echo in made:
        echo.close()


@pytest.fixture
def front() -> Iterator[Front]:
    made = Front()
    yield made
    made.stop()


def connected(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), 5.0)


def ask(connection: socket.socket) -> bytes:
    connection.sendall(b"who")
    return connection.recv(1024)


def test_it_turns_from_one_to_the_other(front: Front, echoes: tuple[Echo, Echo]) -> None:
    first, second = echoes
    address = front.start()
    front.point_at(first.address)
    with connected(address) as old:
        assert ask(old) == b"first who"
        front.point_at(second.address)
        old.settimeout(5.0)
        assert old.recv(1024) == b""            # cut: whoever is connected comes again
    with connected(address) as new:
        assert ask(new) == b"second who"


def test_where_nobody_listens_callers_are_sent_away(front: Front) -> None:
    address = front.start()
    front.point_at(f"127.0.0.1:{free_port()}")
    with connected(address) as caller:
        caller.settimeout(5.0)
        assert caller.recv(1024) == b""
