"""Files of shared memory that outlive their writer: who may remove them.

A parameter server writes the part of a snapshot into a file, holding a lock (flock) on it until somebody has
taken it over. The kernel ends the lock with the process, however that ends; so a file that can be locked is
nobody's, whatever job, server or container wrote it.
"""

import fcntl
import os
import time
from pathlib import Path

PART_PREFIX = "recmesh-part."
"""How the names of parts begin that are being written; job, PS, incarnation and snapshot follow."""
_LOCKED_WITHIN_S = 2.0


def remove_abandoned(folder: Path, pattern: str = f"{PART_PREFIX}*", *, now: float | None = None) -> int:
    """Remove parts whose writer has ended before somebody took them over; returns how many.

    Parts that a living process writes are locked, whatever job or server they are of.
    """
    removed = 0
    for path in folder.glob(pattern):
        try:
            with path.open("rb") as file:
                age_s = (time.time() if now is None else now) - os.fstat(file.fileno()).st_mtime
                if age_s < _LOCKED_WITHIN_S:
                    continue                     # it may just have been created, and not locked yet
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
                removed += 1
        except (FileNotFoundError, BlockingIOError, IsADirectoryError, PermissionError):
            continue                             # taken over, locked, or another program's
    return removed
