"""Admission on an HN's connections: CNs ask, the rules of `recmesh.serving.admission` answer.

The rules know no clock and no connection; this gives them both. What they say is sent in the order in which they
said it: one thread sends.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from recmesh.serving.admission.domain.admission import Admission, Effects, Snapshot
from recmesh.serving.admission.frames import read, written
from recmesh.serving.admission.messages import ToCn, ToHn
from recmesh.serving.admission.settings import Settings
from recmesh.serving.frames import FrameError
from recmesh.serving.transport import ConnectionLost, Message, Transport


class Desk:
    """Used from any thread."""

    def __init__(self, settings: Settings, *, rules: Admission | None = None) -> None:
        """`rules`: others than those of the settings."""
        self._rules = Admission(settings) if rules is None else rules
        self._peers: dict[str, Transport] = {}
        self._changed = threading.Condition()
        self._waiting: deque[tuple[str, ToCn]] = deque()
        threading.Thread(target=self._work, name="admission", daemon=True).start()

    def joined(self, peer: str, transport: Transport) -> None:
        """A CN connected."""
        with self._changed:
            self._peers[peer] = transport

    def received(self, peer: str, message: Message) -> None:
        """A frame of admission came."""
        said = read(message)
        if not isinstance(said, ToHn):
            raise FrameError("a CN said what HNs say")
        self._apply(lambda now: self._rules.receive(peer, said, now))

    def arrived(self, peer: str, request: int) -> bool:
        """A request is here, whole; False when it had not been granted, or not for so long."""
        granted = False

        def rule(now: float) -> Effects:
            nonlocal granted
            granted, effects = self._rules.arrived(peer, request, now)
            return effects

        self._apply(rule)
        return granted

    def computed(self, model: str, seconds: float) -> None:
        """From a request's arrival until its answer was ready."""
        with self._changed:
            self._rules.computed(model, seconds)

    def lost(self, peer: str) -> None:
        """A CN is gone."""
        with self._changed:
            self._peers.pop(peer, None)
        self._apply(lambda now: self._rules.lost(peer, now))

    def drain(self) -> None:
        """Grant nothing that is new."""
        with self._changed:
            self._rules.drain()

    def snapshot(self) -> Snapshot:
        """The state now, for people."""
        with self._changed:
            return self._rules.snapshot()

    def state(self) -> dict[str, Any]:
        """The same as JSON has it; refusals by name."""
        seen = asdict(self.snapshot())
        seen["refused"] = {reason.name: count for reason, count in seen["refused"].items()}
        return seen

    def _apply(self, rule: Callable[[float], Effects]) -> None:
        with self._changed:
            effects = rule(time.monotonic())
            self._waiting.extend(effects)
            self._changed.notify()

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    now = time.monotonic()
                    at = self._rules.next_wake(now)
                    if at is not None and at <= now:
                        self._waiting.extend(self._rules.wake(now))
                        if self._waiting:
                            break
                        at = self._rules.next_wake(now)
                    self._changed.wait(None if at is None else max(0.0005, at - now))
                peer, message = self._waiting.popleft()
                transport = self._peers.get(peer)
            if transport is not None:
                try:
                    transport.send(*written(message))
                except ConnectionLost:
                    transport.close()            # its reader tells us that it is gone
