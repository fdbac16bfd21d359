"""A signal to go: from jobmaster, or from a machine that goes away. Only jobmaster knows which, so it is asked."""

import logging
import signal
import threading
from collections.abc import Callable
from types import FrameType

from recmesh.runtime.errors import MeshError

log = logging.getLogger(__name__)

PATIENCE_S = 25.0
"""Machines that go away give half a minute, mostly."""
_LOOK_S = 0.1


class Notice:
    """Tells jobmaster that this process was asked to go; it goes when jobmaster says so, which moves its slots first.

    `patience_s`: how long after the signal it stays at most. Without an answer from jobmaster it goes at once.
    """

    def __init__(self, *, patience_s: float = PATIENCE_S) -> None:
        self.event = threading.Event()
        """Set by the first signal."""
        self._patience_s = patience_s

    @property
    def given(self) -> bool:
        """Somebody has asked this process to go; heartbeats say so."""
        return self.event.is_set()

    def listen(self) -> None:
        """SIGTERM and SIGINT give notice from now on. Main thread only."""
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        log.info("%s: jobmaster is told", signal.Signals(number).name)
        self.event.set()

    def wait(self, stopped: threading.Event, *, tell: Callable[[], None]) -> None:
        """Returns when this process should end. `tell` says to jobmaster that notice was given, and may raise."""
        while not self.given:
            if stopped.wait(_LOOK_S):
                return
        try:
            tell()
        except MeshError as error:
            log.info("jobmaster does not answer, and is not waited for: %s", error)
            return
        if not stopped.wait(self._patience_s):
            log.warning("slots are still here after %g s; this process goes all the same", self._patience_s)
