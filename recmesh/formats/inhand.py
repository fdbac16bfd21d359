"""Which batch a worker has in its hands: written down where it outlives the process, for whoever asks why it died.

A store in the page cache costs a microsecond and survives `os._exit`, SIGKILL and a fault in native code; what a
worker has reported to shardsvc by then is some batches old, and would blame a batch that is trained already.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Self

VARIABLE = "RECMESH_IN_HAND"
"""Where to write; unset: nowhere, as in a notebook."""
_WIDTH = 96
_IDLE = "idle"


class InHand:
    """The note of one process."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor

    @classmethod
    def at(cls, path: str) -> Self:
        """A note in this file; none, when the path is empty or the file cannot be made."""
        descriptor = None
        if path:
            with suppress(OSError):
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        note = cls(descriptor)
        note.put_down()
        return note

    def take(self, line: int, lo: int, hi: int) -> None:
        """The model computes this batch from now on."""
        self._write(f"{line} {lo} {hi}")

    def put_down(self) -> None:
        """The model computes no batch."""
        self._write(_IDLE)

    def _write(self, text: str) -> None:
        if self._descriptor is not None:
            with suppress(OSError):   # a full disk must not end a worker
                os.pwrite(self._descriptor, f"{text:<{_WIDTH - 1}}\n".encode(), 0)


def read(path: Path) -> tuple[bool, tuple[int, int, int] | None]:
    """(whether there is a note, the batch it names: line, lo, hi)."""
    try:
        return parse(path.read_text())
    except (OSError, ValueError):
        return False, None


def parse(text: str) -> tuple[bool, tuple[int, int, int] | None]:
    """As `read`, of what the file holds."""
    words = text.split()
    if len(words) == 3 and all(word.isdigit() for word in words):
        line, lo, hi = map(int, words)
        return True, (line, lo, hi)
    return words == [_IDLE], None
