"""Many messages in flight: JetStream's answers are awaited together, and what got none is sent again, in order."""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

import nats.errors
import orjson
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.js import api

from recmesh.runtime.bus.link import RETRYABLE, RETRYABLE_OR_AWAY, Link, Session
from recmesh.runtime.bus.stored import check_size, refusal
from recmesh.runtime.clock import Clock, system_clock
from recmesh.runtime.errors import InvalidArgument, MeshError, Unavailable

IN_FLIGHT = 4096
"""Messages without an answer. A server keeps up to 10,000 that wait to be written to a stream, and drops the rest."""
_IN_FLIGHT_BYTES = 32 << 20
_AGAIN_S = 5.0
"""Without any answer for so long, all that is in flight is sent again; ids keep the server from storing it twice."""
_LOOK_S = 0.25


@dataclass(frozen=True, slots=True)
class _Sent:
    subject: str
    payload: bytes
    headers: dict[str, str]


class Publisher:
    """Stores messages in JetStream, each once within the stream's window of duplicates.

    Messages of one subject are stored in the order of `send`, unless the server refuses one of them, which ends the
    publisher: every later call raises the reason. A server that stays away longer than `patience_s` is one.
    """

    def __init__(
        self, link: Link, *, in_flight: int = IN_FLIGHT, patience_s: float = 60.0, clock: Clock = system_clock
    ) -> None:
        self.stored = 0
        """Answers so far, doubles among them."""
        self.doubles = 0
        """Messages that were in their stream before."""
        self.last: dict[str, int] = {}
        """By stream: the highest sequence that an answer named."""
        self._link, self._most, self._patience_s, self._clock = link, in_flight, patience_s, clock
        self._pending: OrderedDict[int, _Sent] = OrderedDict()
        self._bytes = self._token = 0
        self._room, self._empty = asyncio.Event(), asyncio.Event()
        self._room.set()
        self._empty.set()
        self._failure: MeshError | None = None
        self._session: Session | None = None
        self._subscription: Subscription | None = None
        self._inbox = ""
        self._keeper: asyncio.Task[None] | None = None
        self._heard_at = self._sent_at = 0.0

    @property
    def has_failed(self) -> bool:
        """True when nothing goes through it any more."""
        return self._failure is not None

    async def start(self) -> None:
        """Listen for answers; Unavailable when the server is away."""
        self._heard_at = self._clock.monotonic()
        await self._attach(await self._link.session(self._patience_s))
        self._keeper = asyncio.create_task(self._keep(), name="publisher")

    async def stop(self) -> None:
        """Nothing is waited for: see `flush`."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        if self._subscription is not None:
            with contextlib.suppress(Exception):   # gone with its connection
                await self._subscription.unsubscribe()

    async def send(
        self, subject: str, payload: bytes, *, message_id: str, headers: Mapping[str, str] | None = None
    ) -> None:
        """Returns when it is on its way, which waits while too much is; `flush` tells when it is stored.

        InvalidArgument: the server takes no message that large.
        """
        while not self._room.is_set() and self._failure is None:
            await self._room.wait()
        if self._failure is not None:
            raise self._failure
        sent = _Sent(subject, payload, {**(headers or {}), api.Header.MSG_ID.value: message_id})
        session = self._session
        if session is not None:
            check_size(session, subject, payload, sent.headers)
        if not self._pending:
            self._heard_at = self._clock.monotonic()
        self._token += 1
        self._pending[self._token] = sent
        self._bytes += len(payload)
        self._empty.clear()
        if self._is_full():
            self._room.clear()
        if session is not None and not session.lost.is_set():
            await self._post(session, self._token, sent)

    async def flush(self) -> None:
        """Returns when all that was sent is stored."""
        while self._pending and self._failure is None:
            await self._empty.wait()
        if self._failure is not None:
            raise self._failure

    async def _post(self, session: Session, token: int, sent: _Sent) -> None:
        with contextlib.suppress(*RETRYABLE):     # the keeper sends it again
            await session.client.publish(
                sent.subject, sent.payload, reply=f"{self._inbox}.{token}", headers=sent.headers
            )

    async def _attach(self, session: Session) -> None:
        self._session = None                      # what is sent meanwhile only lines up
        self._inbox = session.client.new_inbox()
        self._subscription = await session.client.subscribe(f"{self._inbox}.*", cb=self._answered)
        posted = 0
        while waiting := [(token, sent) for token, sent in self._pending.items() if token > posted]:
            for token, sent in waiting:
                check_size(session, sent.subject, sent.payload, sent.headers)
                await self._post(session, token, sent)
                posted = token
        self._session, self._sent_at = session, self._clock.monotonic()

    async def _answered(self, message: Msg) -> None:
        token = int(message.subject.rpartition(".")[2])
        if token not in self._pending:
            return
        if not message.data:                      # 503: nobody listens on the subject, or JetStream still starts
            return
        answer = orjson.loads(message.data)
        if "error" in answer:
            self._fail(refusal(answer["error"], self._pending[token].subject))
            return
        self._heard_at = self._clock.monotonic()
        self._bytes -= len(self._pending.pop(token).payload)
        self.stored += 1
        self.doubles += bool(answer.get("duplicate"))
        stream, sequence = str(answer["stream"]), int(answer["seq"])
        self.last[stream] = max(sequence, self.last.get(stream, 0))
        if not self._room.is_set() and not self._is_full():
            self._room.set()
        if not self._pending:
            self._empty.set()

    def _is_full(self) -> bool:
        """By what is behind the oldest without an answer, so that it is found among the last of its stream."""
        return bool(self._pending) and (
            self._token - next(iter(self._pending)) + 1 >= self._most or self._bytes >= _IN_FLIGHT_BYTES
        )

    def _fail(self, error: MeshError) -> None:
        self._failure = self._failure or error
        self._room.set()
        self._empty.set()

    async def _keep(self) -> None:
        while self._failure is None:
            await self._clock.sleep(_LOOK_S)
            if not self._pending:
                continue
            now = self._clock.monotonic()
            if now - self._heard_at > self._patience_s:
                self._fail(Unavailable(
                    f"NATS at {self._link.address} stored none of {len(self._pending)} messages for "
                    f"{self._patience_s:g} s; is there a stream for {next(iter(self._pending.values())).subject}?",
                    reason="NATS_UNREACHABLE",
                ))
                return
            lost = self._session is None or self._session.lost.is_set()
            if not lost and now - max(self._heard_at, self._sent_at) < _AGAIN_S:
                continue
            try:
                if self._subscription is not None and not lost:
                    await self._subscription.unsubscribe()
                await self._attach(await self._link.session(_AGAIN_S))
            except RETRYABLE_OR_AWAY:
                continue
            except nats.errors.Error:
                continue
            except InvalidArgument as error:
                self._fail(error)
