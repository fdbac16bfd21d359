"""The CN's side of one link: ask, wait, send when granted, give back what is not needed."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from recmesh.runtime.errors import DeadlineExceeded, ResourceExhausted, Unavailable
from recmesh.serving.admission.messages import Ask, Cancel, Done, Grant, Reason, Refuse, ToCn
from recmesh.serving.admission.ports import SendToHn

_ASKS_MOST = 1024
_UNDATED_S = 60.0
"""A message without a deadline has one all the same: an HN that is silent for so long does not answer any more."""

_TEXTS = {
    Reason.QUEUE_FULL: "its queue is full",
    Reason.PEER_QUEUE_FULL: "this node has as many asks waiting as one may",
    Reason.DEADLINE_BEHIND_QUEUE: "behind what was accepted before it, it would be late",
    Reason.SHED_FOR_PRIORITY: "it made room for a message of higher priority",
    Reason.SHED_FOR_FAIRNESS: "it made room for a model that has had less than its share",
    Reason.LINK_SLOWED: "the link was slower than expected, and it would be late now",
    Reason.WAITED_TOO_LONG: "it waited as long as a message without a deadline may",
    Reason.GRANT_EXPIRED: "it was granted, and did not arrive in time",
    Reason.DRAINING: "it takes nothing new",
    Reason.DEADLINE_TOO_SHORT: "the time left is too short even when nothing else is sent",
    Reason.TOO_LARGE: "the message is larger than one may be",
}


class Refused(ResourceExhausted):
    """The HN does not want the message (any more). `ResourceExhausted`, which nobody repeats blindly."""

    def __init__(self, refusal: Refuse) -> None:
        short = f", by {refusal.short_s * 1000:.1f} ms" if refusal.short_s else ""
        super().__init__(
            f"the accelerator node refused the message: {_TEXTS[refusal.reason]}{short}", reason=refusal.reason.name
        )
        self.refusal = refusal


@dataclass(slots=True, eq=False)
class _Pending:
    granted: asyncio.Future[None]
    limit: asyncio.Timeout
    ended_by: Refuse | None = None
    lost: bool = False

    def end(self) -> None:
        """Whatever its task waits for."""
        self.limit.reschedule(asyncio.get_running_loop().time())


class Client:
    """`ports.CnSide`. Used in one event loop."""

    def __init__(self, *, send: SendToHn) -> None:
        self._send = send
        self._numbers = itertools.count(1)
        self._pending: dict[int, _Pending] = {}
        self._lost = False

    def receive(self, message: ToCn) -> None:
        """See `CnSide`."""
        pending = self._pending.get(message.request)
        if pending is None:
            if isinstance(message, Grant):      # it was cancelled while the grant was on its way
                self._send(Cancel(message.request))
            return
        match message:
            case Grant():
                if not pending.granted.done():
                    pending.granted.set_result(None)
            case Refuse():
                pending.ended_by = message
                pending.end()
            case Done():
                pass                            # the answer tells as much

    def lost(self) -> None:
        """See `CnSide`."""
        self._lost = True
        for pending in self._pending.values():
            pending.lost = True
            pending.end()

    @asynccontextmanager
    async def admit(
        self, model: str, size_bytes: int, *, left_s: float | None, return_bytes: int = 0, priority: int = 0
    ) -> AsyncIterator[int]:
        """See `CnSide`. DeadlineExceeded: `left_s` is over. Unavailable: the link is gone."""
        if self._lost:
            raise _gone()
        if len(self._pending) >= _ASKS_MOST:
            raise ResourceExhausted(
                f"{_ASKS_MOST} messages wait for this accelerator node already", reason="ASKS_FULL"
            )
        request, loop = next(self._numbers), asyncio.get_running_loop()
        ask = Ask(request, model, size_bytes, left_s, return_bytes, priority, at_s=loop.time())
        limit = asyncio.timeout(_UNDATED_S if left_s is None else left_s)
        pending = _Pending(loop.create_future(), limit)
        try:
            async with limit:
                self._pending[request] = pending
                self._send(ask)
                await pending.granted
                yield request
        except BaseException as error:
            if pending.lost:
                raise _gone() from error
            if pending.ended_by is not None:
                raise Refused(pending.ended_by) from None
            self._send(Cancel(request))
            if isinstance(error, TimeoutError) and limit.expired():
                raise DeadlineExceeded(
                    f"the accelerator node did not take the message within {left_s or _UNDATED_S:.3f} s",
                    reason="DEADLINE_IN_ADMISSION",
                ) from None
            raise
        finally:
            self._pending.pop(request, None)


def _gone() -> Unavailable:
    return Unavailable("the link to the accelerator node is gone", reason="LINK_LOST")
