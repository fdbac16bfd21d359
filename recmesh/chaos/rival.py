"""A second jobmaster on the same stores: it takes over while the first stands still, and meets it when it wakes."""

import signal
import time
from collections.abc import Callable

from recmesh.chaos.front import Front
from recmesh.runtime.errors import DeadlineExceeded
from recmesh.runtime.net import is_listened_on
from recmesh.runtime.process import ProcessHandle

START_S = 60.0
_POLL_S = 0.05


class Rival:
    """Both stand behind one address, the front's. `launch` starts it and tells where it will listen."""

    def __init__(self, launch: Callable[[], tuple[ProcessHandle, str]], front: Front, *, first: str) -> None:
        self._launch, self._front, self._first = launch, front, first
        self._process: ProcessHandle | None = None

    def rise(self) -> None:
        """It runs, and whoever asks for jobmaster asks it; it answers once it leads."""
        self._process, address = self._launch()
        deadline = time.monotonic() + START_S
        while not is_listened_on(address):
            if time.monotonic() > deadline or not self._process.alive():
                raise DeadlineExceeded(f"a second jobmaster does not listen at {address} after {START_S:g} s")
            time.sleep(_POLL_S)
        self._front.point_at(address)

    def fall(self) -> bool:
        """SIGKILL; whoever asks for jobmaster asks the first again. False when it was gone already."""
        process, self._process = self._process, None
        killed = process is not None and process.id.send(signal.SIGKILL)
        self._front.point_at(self._first)
        return killed
