"""What processes of one machine wrote: bounded while they run, and removed some time after."""

import os
import shutil
from collections.abc import Container
from pathlib import Path

from recmesh.runtime.telemetry import get_logger

OLDER = ".1"
"""Of the part before the present one."""
_log = get_logger(__name__)


def shorten(root: Path, *, max_bytes: int) -> int:
    """Each log below `root`/JOB keeps its present part and one older, each of about `max_bytes`. Writers append,
    so it may be cut while they write. Returns how many were cut."""
    cut = 0
    for path in root.glob("*/*.log"):
        try:
            if path.stat().st_size > max_bytes:
                shutil.copyfile(path, path.with_name(path.name + OLDER))
                os.truncate(path, 0)
                cut += 1
        except OSError as error:     # it went away, or the disk is full: nothing is cut that has no copy
            _log.warning("%s is not shortened: %s", path, error)
    return cut


def remove_old(root: Path, *, before: float, living: Container[str]) -> list[str]:
    """Removes logs of jobs that have no process and wrote nothing since `before`; their ids."""
    removed = []
    for folder in sorted(root.glob("*/")):
        try:
            newest = max((path.stat().st_mtime for path in folder.iterdir()), default=folder.stat().st_mtime)
        except OSError:
            continue                 # it goes away just now
        if newest < before and folder.name not in living:
            shutil.rmtree(folder, ignore_errors=True)
            removed.append(folder.name)
    return removed


def tail(path: Path, lines: int, *, most_bytes: int) -> list[str]:
    """The last lines, from the older part where the present one has too few."""
    found = _tail(path, lines, most_bytes)
    if len(found) < lines:
        found = _tail(path.with_name(path.name + OLDER), lines - len(found), most_bytes) + found
    return found


def _tail(path: Path, lines: int, most_bytes: int) -> list[str]:
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - most_bytes))
            return file.read().decode(errors="replace").splitlines()[-lines:] if lines > 0 else []
    except OSError:
        return []
