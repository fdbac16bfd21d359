"""Keeping memory that every step needs again."""

import ctypes
from contextlib import suppress

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3   # malloc.h


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
