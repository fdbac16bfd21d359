"""Unpacked copies of files that cannot be entered in the middle: temporary files, the newest within a budget."""

import os
import tempfile
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

from recmesh.data.faults import Damaged

BUDGET_BYTES = 8 << 30
_CHUNK_BYTES = 4 << 20


class _Copy:
    """One file, unpacked once; readers of a copy that was dropped meanwhile read on."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.descriptor = -1
        self.size_bytes = 0

    def read(self, lo: int, hi: int) -> bytes:
        """Bytes [lo, hi), shorter at the end."""
        parts = []
        while lo < hi and (data := os.pread(self.descriptor, hi - lo, lo)):
            parts.append(data)
            lo += len(data)
        return b"".join(parts)


_copies: OrderedDict[Hashable, _Copy] = OrderedDict()
_lock = threading.Lock()


@contextmanager
def unpacked(key: Hashable, stream: Callable[[], Any]) -> Iterator[Callable[[int, int], bytes]]:
    """Reads of what the stream gives; it is asked for once per key, as long as its copy is kept. Damaged."""
    with _lock:
        copy = _copies.setdefault(key, _Copy())
        _copies.move_to_end(key)
    with copy.lock:
        if copy.descriptor < 0:
            _fill(copy, stream)
    _drop_old(key)
    yield copy.read


def _fill(copy: _Copy, stream: Callable[[], Any]) -> None:
    descriptor, path = tempfile.mkstemp(prefix="recmesh-unpacked-")
    os.unlink(path)                             # it ends with the process
    try:
        with open(descriptor, "wb", closefd=False) as file, stream() as source:
            while data := source.read(_CHUNK_BYTES):
                file.write(data)
            copy.size_bytes = file.tell()
    except BaseException as error:
        os.close(descriptor)
        if isinstance(error, OSError) and error.errno is None:
            raise Damaged(str(error)) from None
        raise
    copy.descriptor = descriptor
    weakref.finalize(copy, os.close, descriptor)    # when it is dropped, and nobody reads it any more


def _drop_old(newest: Hashable) -> None:
    with _lock:
        total = sum(copy.size_bytes for copy in _copies.values())
        for key in list(_copies):
            if total <= BUDGET_BYTES or key == newest:
                break
            total -= _copies.pop(key).size_bytes
