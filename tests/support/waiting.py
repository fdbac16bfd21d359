"""Waiting for a condition, with a generous limit: the only wait that tests use for other processes."""

import time
from collections.abc import Callable


def until(condition: Callable[[], object], *, timeout_s: float = 30.0, poll_s: float = 0.02) -> None:
    """Returns once the condition is true; AssertionError after the timeout."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not true within {timeout_s:g} s: {condition}")
        time.sleep(poll_s)
