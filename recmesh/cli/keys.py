"""Single keys while a screen is shown, with the terminal left as it was found."""

import contextlib
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator


class Keys:
    """The keyboard, key by key; none when the input is no terminal."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor

    def pressed(self, wanted: str, *, within_s: float) -> bool:
        """True as soon as one of these keys is pressed, False after the time."""
        deadline = time.monotonic() + within_s
        while (left_s := deadline - time.monotonic()) > 0:
            if self._descriptor is None:
                time.sleep(left_s)
            elif select.select([self._descriptor], [], [], left_s)[0]:
                typed = os.read(self._descriptor, 64).decode(errors="replace")
                if any(key in wanted for key in typed):
                    return True
                if not typed:   # the terminal is gone
                    self._descriptor = None
        return False


@contextlib.contextmanager
def keys() -> Iterator[Keys]:
    """Keys arrive at once and are not echoed; Ctrl-C interrupts as ever."""
    if not sys.stdin.isatty():
        yield Keys(None)
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield Keys(descriptor)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
