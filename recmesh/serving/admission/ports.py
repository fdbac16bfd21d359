"""The seam between admission and a transport: what each side calls, and what it is called with.

A transport carries two things: small control messages (`codec.encode` and `decode`, in order, per link) and the
messages themselves. Both objects live in one event loop, take no locks, and do no I/O but by the functions that
they were given.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from recmesh.serving.admission.messages import ToCn, ToHn

SendToCn = Callable[[str, ToCn], None]
"""(peer, message): hand it to the link of this CN; must not block, and drops it when the link is gone."""
SendToHn = Callable[[ToHn], None]
"""Hand it to the link of this HN; must not block, and drops it when the link is gone."""


class HnSide(Protocol):
    """What an HN's transport calls; `Broker` is it."""

    def receive(self, peer: str, message: ToHn) -> None:
        """A control message of this CN came. Answers go out by the `SendToCn` given at the start."""
        ...

    def arrived(self, peer: str, request: int) -> bool:
        """The message of this grant is here, whole. False: there is no such grant (it expired, was cancelled, or was
        never given), and computing on it is most likely a waste."""
        ...

    def computed(self, model: str, seconds: float) -> None:
        """So long it took from a message's arrival until its answer was ready, waiting for a batch included."""
        ...

    def lost(self, peer: str) -> None:
        """The link is gone: what this CN asked is forgotten, what it was granted comes back."""
        ...

    def drain(self) -> None:
        """Refuse what is new from now on; what waits is still served."""
        ...


class CnSide(Protocol):
    """What a CN calls, one per link to an HN; `Client` is it."""

    def receive(self, message: ToCn) -> None:
        """A control message of this HN came."""
        ...

    def lost(self) -> None:
        """The link is gone: whoever waits on it gets `Unavailable`."""
        ...

    def admit(
        self, model: str, size_bytes: int, *, left_s: float | None, return_bytes: int = 0, priority: int = 0
    ) -> AbstractAsyncContextManager[int]:
        """Ask and wait; inside, the message may be sent under the number given. `Refused` when it may not be (any
        more), also while the body runs: it is then cancelled. Leaving by an error cancels the request at the HN."""
        ...
