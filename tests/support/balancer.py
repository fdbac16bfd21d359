"""What a Service of Kubernetes is to callers: new connections go to whoever is ready, old ones stay where they are."""

import contextlib
import itertools
import socket
import threading
import time
from typing import Self

import httpx

LOOK_S = 0.1
LAG_S = 0.3
"""Between an end that is asked for and the last connection that still goes there."""


class Balancer:
    """Listens on a port of its own; TCP, byte by byte."""

    def __init__(self, urls: list[str]) -> None:
        self._urls = list(urls)
        self._ready: list[str] = []
        self._turn = itertools.count()
        self._closing = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.unanswered = 0
        """Connections for which nobody was ready."""

    def __enter__(self) -> Self:
        for work in (self._accept, self._look):
            threading.Thread(target=work, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._listener.close()

    def add(self, url: str) -> None:
        """A replica that gets connections as soon as it is ready."""
        self._urls.append(url)

    def remove(self, url: str) -> None:
        """A replica that is told to end now; returns when no new connection goes there any more."""
        time.sleep(LAG_S)
        self._urls.remove(url)
        self._ready = [each for each in self._ready if each != url]

    def routes_to(self, url: str) -> bool:
        """Whether it gets connections now."""
        return url in self._ready

    def ready(self) -> list[str]:
        """Who gets connections now."""
        return list(self._ready)

    def _look(self) -> None:
        while not self._closing.wait(LOOK_S):
            self._ready = [each for each in self._urls if _is_ready(each)]

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._carry, args=(client,), daemon=True).start()

    def _carry(self, client: socket.socket) -> None:
        found = self.ready()
        if not found:
            self.unanswered += 1
            client.close()
            return
        host, _, port = found[next(self._turn) % len(found)].removeprefix("http://").rpartition(":")
        with client:
            try:
                server = socket.create_connection((host, int(port)), timeout=5)
            except OSError:
                self.unanswered += 1
                return
            server.settimeout(None)
            with server:
                back = threading.Thread(target=_pump, args=(server, client), daemon=True)
                back.start()
                _pump(client, server)
                back.join()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65_536):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", timeout=2.0, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False
