"""Waiting for a condition, with a generous limit: the only wait that tests use for other processes."""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import httpx


def until(condition: Callable[[], object], *, timeout_s: float = 30.0, poll_s: float = 0.02) -> None:
    """Returns once the condition is true; AssertionError after the timeout."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not true within {timeout_s:g} s: {condition}")
        time.sleep(poll_s)


def until_answers(process: "subprocess.Popen[bytes]", url: str, *, log: Path, timeout_s: float = 60.0) -> None:
    """Returns once a started server answers 200 there; AssertionError with its log when it ends before."""

    def ready() -> bool:
        assert process.poll() is None, log.read_text()
        try:
            return httpx.get(url, timeout=2, trust_env=False).status_code == 200
        except httpx.TransportError:
            return False

    until(ready, timeout_s=timeout_s)
