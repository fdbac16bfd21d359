"""One gateway's connection to a CN or HN that runs in a pod."""

import asyncio
import contextlib
import socket
import zlib
from collections.abc import Callable, Mapping
from typing import Protocol

from recmesh.runtime.errors import MeshError, Unavailable
from recmesh.runtime.kube import Object
from recmesh.serving.frames import FrameError
from recmesh.serving.transport import ConnectionLost, handshake
from recmesh.serving.transport.sockets import SocketTransport
from services.gateway.runtimes.link import Link
from services.gateway.runtimes.pods import objects

DIAL_S = 5.0
OUTCOME_S = 3.0
"""After a connection has ended the kubelet may take so long to say that the process has."""


class Pods(Protocol):
    """What a link asks of the book of pods."""

    @property
    def detached(self) -> bool:
        """Whether pods outlive their links."""
        ...

    @property
    def pods(self) -> Mapping[str, Object]:
        """All that are known, by name."""
        ...

    def let_go(self, name: str, *, end: bool, now: bool = False) -> None:
        """The link is over; `end`: so is the pod, `now`: whatever is in it."""
        ...

    async def until(self, condition: Callable[[], bool], *, timeout_s: float | None = None) -> None:
        """Returns when it holds. TimeoutError."""
        ...


class PodLink(Link):
    """Ends with its connection; the pod with `stop` and `kill`, unless pods are to outlive the gateway."""

    def __init__(self, pods: Pods, pod: Object) -> None:
        self._pods = pods
        self.place = str(pod["metadata"]["name"])
        self.address = f"tcp:{pod['status']['podIP']}:{objects.DATA_PORT}"
        self._number = zlib.crc32(pod["metadata"]["uid"].encode()) or 1
        self._is_left = False
        """By us: nobody asks how it ended."""
        super().__init__(self)

    @classmethod
    async def open(cls, pods: Pods, pod: Object, *, token: str) -> "PodLink":
        """Connect, and prove the mesh's token. Unavailable: it does not answer; Unauthenticated: another token."""
        link = cls(pods, pod)
        sock = await asyncio.to_thread(_dialled, pod["status"]["podIP"], token)
        try:
            sock.setblocking(False)
            await asyncio.get_running_loop().create_connection(lambda: link, sock=sock)
        except BaseException:
            sock.close()
            raise
        return link

    @property
    def pid(self) -> int:
        """Stands for the pod: another pod has another."""
        return self._number

    @property
    def leaving(self) -> bool:  # type: ignore[override]  # a fact of the pod, and no setting
        """The pod was told to go."""
        pod = self._pods.pods.get(self.place)
        return pod is None or "deletionTimestamp" in pod["metadata"]

    async def wait(self) -> int:
        """Of `Running`; how a pod ends is told by `_outcome`."""
        await self.ended.wait()
        return 0

    async def stop(self) -> None:
        """Leave it: it ends by itself then, or goes on for the next gateway."""
        self._is_left = True
        self._transport.close()
        await self.ended.wait()
        self._pods.let_go(self.place, end=True)

    def kill(self) -> None:
        """End it at once. One whose connection has ended lives on, if it does: it is connected to again."""
        if self.ended.is_set():
            self._pods.let_go(self.place, end=False)
            return
        self._is_left = True
        self._transport.abort()
        self._pods.let_go(self.place, end=True, now=True)

    async def _outcome(self) -> str:
        def known() -> bool:
            pod = self._pods.pods.get(self.place)
            return pod is None or objects.has_ended(pod)

        if not self._is_left:
            with contextlib.suppress(TimeoutError):
                await self._pods.until(known, timeout_s=OUTCOME_S)
        pod = self._pods.pods.get(self.place)
        if pod is None:
            return f"pod {self.place} was deleted"
        return f"pod {self.place}: {objects.outcome(pod) if objects.has_ended(pod) else 'the connection ended'}"


def _dialled(address: str, token: str) -> socket.socket:
    """A connection that has been let in; nothing behind the handshake is read yet."""
    sock = socket.create_connection((address, objects.CONTROL_PORT), timeout=DIAL_S)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        handshake.as_client(SocketTransport(sock, kind="tcp"), token=token, carrier="tcp")
    except (OSError, FrameError, ConnectionLost) as error:
        sock.close()
        raise Unavailable(f"{address} does not let this gateway in: {error}", reason="RUNTIME_DOWN") from None
    except MeshError:
        sock.close()
        raise
    return sock
