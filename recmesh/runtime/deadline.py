"""The time that is left of the call being answered; outbound calls never outlive it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from recmesh.runtime.errors import DeadlineExceeded

_deadline: ContextVar[float | None] = ContextVar("recmesh_deadline", default=None)


def remaining_s() -> float | None:
    """Seconds left of the inbound call (may be negative); None where nothing bounds this code."""
    deadline = _deadline.get()
    return None if deadline is None else deadline - time.monotonic()


@contextmanager
def deadline(timeout_s: float | None) -> Iterator[None]:
    """Bounds the outbound calls made in the block; never widens an outer bound. None: no new bound.

    The gRPC servers open one for each call; an HTTP handler or an event handler may open its own.
    """
    outer = _deadline.get()
    mine = None if timeout_s is None else time.monotonic() + timeout_s
    token = _deadline.set(mine if outer is None else outer if mine is None else min(mine, outer))
    try:
        yield
    finally:
        _deadline.reset(token)


def bounded(timeout_s: float | None, *, default_s: float | None, method: str) -> float | None:
    """The timeout of an outbound call; DeadlineExceeded when nothing is left to spend."""
    wanted = default_s if timeout_s is None else timeout_s
    left = remaining_s()
    if left is None:
        return wanted
    if left <= 0:
        raise DeadlineExceeded(f"no time is left to call {method}", reason="NO_TIME_LEFT")
    return left if wanted is None else min(wanted, left)
