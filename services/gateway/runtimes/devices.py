"""What accelerators this machine has, by the driver's own tool."""

import shutil
import subprocess
from collections.abc import Mapping

from services.gateway.domain.devices import VARIABLE, Grant, Ledger, Wish, listed, visible

TOOL = "nvidia-smi"
LIST_S = 20.0
"""A driver that sleeps takes seconds to wake."""


class Devices:
    """The ledger of this gateway's processes, made when the first one asks for a device."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._ledger: Ledger | None = None

    def look(self) -> None:
        """Ask the driver, once; a machine without its tool has no devices. Blocks."""
        if self._ledger is None:
            self._ledger = Ledger(visible(listed(_told(self._environment)), self._environment.get(VARIABLE)))

    def take(self, wish: Wish) -> Grant:
        """See `Ledger.take`; `look` must have been called for wishes of anything."""
        return (self._ledger or Ledger(())).take(wish)

    def give_back(self, grant: Grant) -> None:
        """The process has ended."""
        if self._ledger is not None:
            self._ledger.give_back(grant)


def _told(environment: Mapping[str, str]) -> str:
    tool = shutil.which(TOOL, path=environment.get("PATH"))
    if tool is None:
        return ""
    try:
        done = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=LIST_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
