"""The HN's side: the rules of `domain.admission` with a clock, timers and somewhere to send."""

import asyncio
from types import TracebackType
from typing import Self

from recmesh.serving.admission.domain.admission import Admission, Effects, Snapshot
from recmesh.serving.admission.messages import ToHn
from recmesh.serving.admission.ports import SendToCn
from recmesh.serving.admission.settings import Settings


class Broker:
    """`ports.HnSide`. Used in one event loop; the loop's time is its clock."""

    def __init__(self, settings: Settings, *, send: SendToCn, admission: Admission | None = None) -> None:
        """`admission`: other rules than those of `settings`."""
        self._admission = Admission(settings) if admission is None else admission
        self._send = send
        self._timer: asyncio.TimerHandle | None = None
        self._ended = False

    async def __aenter__(self) -> Self:
        self._ended = False
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended = True
        if self._timer is not None:
            self._timer.cancel()

    def receive(self, peer: str, message: ToHn) -> None:
        """See `HnSide`."""
        self._act(self._admission.receive(peer, message, _now()))

    def arrived(self, peer: str, request: int) -> bool:
        """See `HnSide`."""
        granted, effects = self._admission.arrived(peer, request, _now())
        self._act(effects)
        return granted

    def computed(self, model: str, seconds: float) -> None:
        """See `HnSide`."""
        self._admission.computed(model, seconds)

    def lost(self, peer: str) -> None:
        """See `HnSide`."""
        self._act(self._admission.lost(peer, _now()))

    def drain(self) -> None:
        """See `HnSide`."""
        self._admission.drain()

    def snapshot(self) -> Snapshot:
        """The state now, for dashboards and metrics."""
        return self._admission.snapshot()

    def _act(self, effects: Effects) -> None:
        for peer, message in effects:
            self._send(peer, message)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        at = self._admission.next_wake(_now())
        if at is not None and not self._ended:
            self._timer = asyncio.get_running_loop().call_at(at, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self._act(self._admission.wake(_now()))


def _now() -> float:
    return asyncio.get_running_loop().time()
