"""Address space reserved once and backed by memory as it is touched, so that growth never copies."""

import ctypes
import mmap
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recmesh.runtime.errors import ResourceExhausted

_MAP_NORESERVE = 0x4000                     # Linux; in the mmap module from Python 3.13 on
_MADV_POPULATE_WRITE = 23                   # Linux 5.14
_ADDRESS_SPACE_BYTES = 1 << 45              # a quarter of what x86-64 gives a process
_SMALLEST_BYTES = 64 << 20
_SMALL_PAGES_BYTES = 4 << 20                # the start of a region keeps small pages: most tables are small
_SLICE_BYTES = 2 << 20                      # a huge page
PAGE = mmap.PAGESIZE
_libc = ctypes.CDLL(None)                   # mmap.madvise keeps the interpreter's lock: nobody else would run
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def machine_memory_bytes() -> int:
    """Physical memory: no region needs to be larger."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


class Region:
    """Private anonymous memory of which only touched pages exist; fresh pages read as zero."""

    def __init__(self, size_bytes: int, *, huge_pages: bool = True) -> None:
        """Reserve `size_bytes`; half, a quarter ... where limits on address space forbid it."""
        size = max(_SMALLEST_BYTES, min(size_bytes, _ADDRESS_SPACE_BYTES)) // PAGE * PAGE
        while True:
            try:
                flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
                self._memory = mmap.mmap(-1, size, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)
                break
            except (OSError, ValueError) as error:
                if size <= _SMALLEST_BYTES:
                    raise ResourceExhausted(
                        f"cannot reserve {size} bytes of address space ({error}); "
                        "see ulimit -v and vm.overcommit_memory", reason="ADDRESS_SPACE") from error
                size = max(_SMALLEST_BYTES, size // 2 // PAGE * PAGE)
        self.size_bytes = size
        self._address = np.frombuffer(self._memory, np.uint8).ctypes.data
        self._advise("MADV_DONTDUMP", 0, size)
        if huge_pages:
            self._advise("MADV_HUGEPAGE", _SMALL_PAGES_BYTES, size - _SMALL_PAGES_BYTES)

    def view(self, dtype: Any) -> NDArray[Any]:
        """The whole region as an array."""
        return np.frombuffer(self._memory, dtype=dtype)

    def release(self, lo_bytes: int, hi_bytes: int) -> None:
        """Give the pages that lie wholly inside back; they read as zero afterwards."""
        lo, hi = -(-lo_bytes // PAGE) * PAGE, hi_bytes // PAGE * PAGE
        self._in_slices(lo, hi, mmap.MADV_DONTNEED)

    def populate(self, lo_bytes: int, hi_bytes: int) -> None:
        """Make the pages now, so that who writes there first need not wait; what they hold stays as it is."""
        lo, hi = lo_bytes // PAGE * PAGE, min(-(-hi_bytes // PAGE) * PAGE, self.size_bytes)
        self._in_slices(lo, hi, _MADV_POPULATE_WRITE)       # an old kernel refuses: advice only

    def _in_slices(self, lo: int, hi: int, advice: int) -> None:
        """The kernel locks the process's address space meanwhile, and every large allocation waits for that."""
        for start in range(lo, hi, _SLICE_BYTES):
            _libc.madvise(self._address + start, min(_SLICE_BYTES, hi - start), advice)

    def _advise(self, advice: str, lo: int, size: int) -> None:
        try:
            self._memory.madvise(getattr(mmap, advice), lo, size)
        except (OSError, AttributeError):
            pass                            # advice only: a kernel without it works as well
