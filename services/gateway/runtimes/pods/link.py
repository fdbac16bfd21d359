"""One gateway's connection to a CN or HN that runs in a pod."""

import asyncio
import contextlib
import ssl
import zlib
from collections.abc import Callable, Generator, Mapping
from typing import Any, Protocol

from recmesh.runtime.errors import MeshError, Unavailable
from recmesh.runtime.kube import Object
from recmesh.runtime.tls import Tls
from recmesh.serving.frames import FrameError, Header, encode
from recmesh.serving.tensors import Tensor
from recmesh.serving.transport import ConnectionLost, Message, handshake, secure
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
        self._steps: Generator[Header, Message | None, Header] | None = None
        self._welcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        super().__init__(self)

    @classmethod
    async def open(cls, pods: Pods, pod: Object, *, token: str, tls: Tls | None = None) -> "PodLink":
        """Connect, and prove the mesh's token. Unavailable: it does not answer; Unauthenticated: another token, or no
        certificate of the mesh."""
        link, ip = cls(pods, pod), str(pod["status"]["podIP"])
        secured: dict[str, Any] = {}
        if tls is not None:
            context = await asyncio.to_thread(tls.client_context, least=ssl.TLSVersion.TLSv1_3)
            secured = {"ssl": context, "server_hostname": tls.server_name or ip}
        try:
            async with asyncio.timeout(DIAL_S):
                await asyncio.get_running_loop().create_connection(lambda: link, ip, objects.CONTROL_PORT, **secured)
            async with asyncio.timeout(handshake.HANDSHAKE_S):
                await link.greet(token)
        except BaseException as error:
            link.give_up()
            if isinstance(error, ssl.SSLCertVerificationError):
                raise secure.refused(error.verify_message) from None
            if isinstance(error, (OSError, TimeoutError, FrameError, ConnectionLost)):
                why = str(error) or "no answer in time"
                raise Unavailable(f"{ip} does not let this gateway in: {why}", reason="RUNTIME_DOWN") from None
            raise
        return link

    async def greet(self, token: str) -> None:
        """The handshake; what comes behind it is the process' own."""
        self._steps = handshake.clients(token=token, carrier="tcp")
        self._say(next(self._steps))
        await self._welcome

    def give_up(self) -> None:
        """Of a connection that was not let in; the pod is not touched."""
        self._is_left = True
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Of the protocol."""
        if not self._welcome.done():
            self._welcome.set_exception(exc or ConnectionLost("the other side ended the connection in the handshake"))
            self._welcome.exception()            # nobody may be waiting any more
        super().connection_lost(exc)

    def _settle(self, header: Header, tensors: list[Tensor]) -> None:
        if self._welcome.done():
            super()._settle(header, tensors)
            return
        assert self._steps is not None
        try:
            self._say(self._steps.send(Message(header, tensors)))
        except StopIteration:
            self._welcome.set_result(None)
        except handshake.Refused as refused:
            self._say(refused.header)
            self._welcome.set_exception(refused.error)
        except (MeshError, FrameError, ConnectionLost) as error:
            self._welcome.set_exception(error)

    def _say(self, header: Header) -> None:
        if not self._transport.is_closing():
            self._transport.writelines(encode(header))

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
