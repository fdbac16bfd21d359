"""Gateways of a CN or HN that is nobody's child, but a pod: they load and unload models by connections of their own.

Whoever proves the mesh's token at this address may have any model loaded that the process can read. The process stays
when a gateway goes, for its successor; it ends when none has come for long (`unattended_s`). Told to go (SIGTERM), it
goes on until its gateways have others in its place and leave it, `notice_s` at most.
"""

import os
import signal
import threading
import time
from collections.abc import Callable

from recmesh.runtime.errors import InvalidArgument
from recmesh.runtime.tls import Tls
from recmesh.serving.frames import Header
from recmesh.serving.transport import Transport
from recmesh.serving.transport.endpoints import Endpoint, Listener

LOOK_S = 0.1


class Control:
    """The address for gateways, and who is there."""

    def __init__(
        self, address: str, *, token: str | None, tls: Tls | None, hello: Header, notice_s: float, unattended_s: float,
        log: Callable[[str], None],
    ) -> None:  # fmt: skip
        """Takes the address; `hello` is what each gateway is told first. InvalidArgument: the address, or no token."""
        endpoint = Endpoint.parse(address)
        if not token:
            raise InvalidArgument(
                f"{endpoint} is for gateways, which prove the mesh's token: RECMESH_API_KEY must be set",
                reason="NO_TOKEN",
            )
        self._listener = Listener(endpoint, token=token, log=log, open_now=False, tls=tls)
        self.endpoint = self._listener.endpoint
        self._hello = hello
        self._notice_s, self._unattended_s = notice_s, unattended_s
        self._log = log
        self._lock = threading.Lock()
        self._there = 0
        self._alone_since = time.monotonic()

    def open(self, serve: Callable[[Transport], None]) -> None:
        """Let gateways in; each is given to `serve`, in a thread of its own."""

        def one(transport: Transport) -> None:
            with self._lock:
                self._there += 1
            try:
                transport.send({**self._hello, "call": 0})
                serve(transport)
            finally:
                with self._lock:
                    self._there -= 1
                    self._alone_since = time.monotonic()

        self._alone_since = time.monotonic()
        self._listener.open()
        threading.Thread(target=self._listener.accept, args=(one,), name="gateways", daemon=True).start()
        threading.Thread(target=self._watch, name="unattended", daemon=True).start()

    def until_left(self) -> None:
        """Returns when no gateway is there, or when the notice is over; none comes in any more then."""
        until = time.monotonic() + self._notice_s
        while self._there and time.monotonic() < until:
            time.sleep(LOOK_S)
        self._listener.close()

    def _watch(self) -> None:
        while True:
            time.sleep(min(1.0, self._unattended_s))
            with self._lock:
                alone_s = 0.0 if self._there else time.monotonic() - self._alone_since
            if alone_s > self._unattended_s:
                self._log(f"no gateway has been here for {alone_s:.0f} s: this process ends")
                os.kill(os.getpid(), signal.SIGTERM)
                return
