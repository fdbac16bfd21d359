"""Room on the disk of a data folder: below a reserve nothing new is written, before the stores there break.

A JetStream stream whose write failed for want of space stays broken until its server starts again, so that
the last mebibytes are left to what ends, not to what begins.
"""

import shutil
from pathlib import Path

from recmesh.runtime.errors import ResourceExhausted

RESERVE_BYTES = 32 << 20
LAST_BYTES = 4 << 20
"""What goes on or ends may use the reserve down to here."""


class Room:
    """Of one folder; without one, or where it cannot be asked, there is always room."""

    def __init__(self, folder: Path | None, *, reserve_bytes: int = RESERVE_BYTES) -> None:
        self._folder = folder
        self._reserve_bytes = reserve_bytes

    def objection(self, *, last: bool = False) -> str:
        """Why nothing may be written now, or ''; `last`: nothing that needs the reserve."""
        if self._folder is None:
            return ""
        try:
            free = shutil.disk_usage(self._folder).free
        except OSError:
            return ""
        needed = min(self._reserve_bytes, LAST_BYTES) if last else self._reserve_bytes
        if free >= needed:
            return ""
        return (
            f"the data folder {self._folder} is full: {free / 2**20:.0f} MiB free, "
            f"at least {needed / 2**20:.0f} MiB are needed"
        )

    def check(self, *, last: bool = False) -> None:
        """ResourceExhausted when there is an objection."""
        reason = self.objection(last=last)
        if reason:
            raise ResourceExhausted(reason, reason="DATA_FOLDER_FULL")
