"""Who computes at a parameter server: few training calls at once, and one while jobmaster's orders are carried out.

Workers keep a server busy: whatever processor it has, all its threads have calls of theirs under way. An order that
shares the processor with sixteen of them gets a seventeenth of it, and of a fifth of a core that is seconds for each of
the calls of a move. Training calls gain nothing by being many: rows are changed under one mutex, and Python runs one
thread at a time.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

AT_ONCE = 4
"""Training calls: one in a kernel, one in Python, and those that wait for the two."""


class Precedence:
    """Orders never wait here; training calls do, but one of them always goes on."""

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._condition = threading.Condition()
        self._at_once = at_once
        self._training = self._orders = 0

    @contextmanager
    def training(self) -> Iterator[None]:
        """A call of a worker computes. Inside, nothing may wait for a training call that has not begun."""
        with self._condition:
            while self._training >= (1 if self._orders else self._at_once):
                self._condition.wait()
            self._training += 1
        try:
            yield
        finally:
            with self._condition:
                self._training -= 1
                self._condition.notify()

    @contextmanager
    def order(self) -> Iterator[None]:
        """Something of an order computes, or is about to."""
        with self._condition:
            self._orders += 1
        try:
            yield
        finally:
            with self._condition:
                self._orders -= 1
                if not self._orders:
                    self._condition.notify(self._at_once)
