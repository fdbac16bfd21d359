"""A method of a channel that may be replaced by another one while stubs are in use."""

from collections.abc import Callable
from typing import Any

Make = Callable[[Any], Any]
"""The method's callable, of gRPC's channel."""


class Newest:
    """The callable of the newest channel; made once for each of them."""

    def __init__(self, channel: Callable[[], Any], make: Make) -> None:
        self._channel, self._make = channel, make
        of = channel()
        self._made = of, make(of)

    def now(self) -> Any:
        """For a call that begins now. From any thread: what two of them make at the same time is the same."""
        newest, (of, made) = self._channel(), self._made
        if newest is not of:
            made = self._make(newest)
            self._made = newest, made
        return made
