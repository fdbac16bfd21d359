"""Keeping memory that every step needs again, and lending it to frameworks without a copy."""

import ctypes
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_ALIGNMENT = 64
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -2, -3, -8   # malloc.h


def keep_freed_memory() -> None:
    """Tells glibc's malloc to keep what is freed instead of giving it back to the kernel.

    Messages and gradients of several MiB come and go with each step; zeroing fresh pages for them costs a tenth of a
    step and more. The process stays as large as its largest step. Elsewhere than on glibc nothing happens.
    """
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, 32 << 20)   # the most that every glibc takes
        mallopt(_TRIM_THRESHOLD, (1 << 31) - 1)
        mallopt(_TOP_PAD, 64 << 20)
        mallopt(_ARENA_MAX, 1)               # arenas of other threads give whole heaps back, whatever is set above


def aligned(shape: tuple[int, ...], dtype: Any = np.float32) -> NDArray[Any]:
    """Like `np.empty`, at a multiple of 64 bytes: TensorFlow copies an array that begins elsewhere."""
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    raw = np.empty(size + _ALIGNMENT, np.uint8)
    begin = -raw.ctypes.data % _ALIGNMENT
    made: NDArray[Any] = raw[begin:begin + size].view(dtype).reshape(shape)
    return made


def resident_bytes() -> int:
    """This process's resident memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
