"""The latch of a parameter server: many pushes, or one change of structure."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Latch:
    """Shared or exclusive; whoever waits for exclusive goes before later sharers, so a mark waits for the
    applies under way and no longer.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._sharers = 0
        self._exclusive = False
        self._waiting = 0

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Hold with other sharers. Not reentrant: a waiting exclusive would come between."""
        with self._condition:
            while self._exclusive or self._waiting:
                self._condition.wait()
            self._sharers += 1
        try:
            yield
        finally:
            with self._condition:
                self._sharers -= 1
                if not self._sharers:
                    self._condition.notify_all()

    @contextmanager
    def exclusive(self) -> Iterator["Held"]:
        """Hold alone."""
        held = Held(time.perf_counter())
        with self._condition:
            self._waiting += 1
            while self._exclusive or self._sharers:
                self._condition.wait()
            self._waiting -= 1
            self._exclusive = True
        try:
            yield held
        finally:
            with self._condition:
                self._exclusive = False
                self._condition.notify_all()


class Held:
    """How long the latch has kept others out: from the wait on, as they feel it."""

    def __init__(self, asked: float) -> None:
        self._asked = asked

    @property
    def milliseconds(self) -> float:
        """Until now."""
        return (time.perf_counter() - self._asked) * 1e3
