"""A command in a pseudo-terminal, as a person has it in front of them."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[()][A-Z0-9]")


class Terminal:
    """100 lines of 200 columns, and what has been written to them."""

    def __init__(self, command: Sequence[str], *, cwd: Path, env: Mapping[str, str]) -> None:
        self._ours, self._theirs = pty.openpty()
        fcntl.ioctl(self._theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 100, 200, 0, 0))
        self.settings_before = self.settings
        self._written = bytearray()
        self.process = subprocess.Popen(
            command, stdin=self._theirs, stdout=self._theirs, stderr=self._theirs, cwd=cwd,
            env=_without_size(env) | {"TERM": "xterm-256color"}, start_new_session=True, preexec_fn=_take_terminal,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._end = threading.Event()
        self._reader.start()

    def _read(self) -> None:
        # Our own copy of their side stays open: the settings are read from it after the command's end.
        while not self._end.is_set():
            if select.select([self._ours], [], [], 0.1)[0]:
                self._written += os.read(self._ours, 65536)

    @property
    def raw(self) -> str:
        """All that was written, control sequences included."""
        return self._written.decode(errors="replace")

    @property
    def text(self) -> str:
        """All that was written, without them."""
        return _ESCAPES.sub("", self.raw)

    @property
    def settings(self) -> list[Any]:
        """Echo, line mode and the like."""
        return termios.tcgetattr(self._theirs)

    def type(self, keys: str) -> None:
        """As if by hand; Ctrl-C is \\x03."""
        os.write(self._ours, keys.encode())

    def close(self) -> None:
        """Ends the command, if it still runs."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._end.set()
        self._reader.join()
        os.close(self._ours)
        os.close(self._theirs)


def _without_size(env: Mapping[str, str]) -> dict[str, str]:
    """These would be believed more than the terminal itself."""
    return {name: value for name, value in env.items() if name not in ("COLUMNS", "LINES")}


def _take_terminal() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)    # a shell's background jobs, and so the tests, may ignore it
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
