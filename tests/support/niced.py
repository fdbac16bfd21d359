"""A controller as another package would bring it: roles of this machine, at low priority."""

import json

from services.jobmaster.cluster.local import ROLE_COMMAND, LocalController
from services.jobmaster.cluster.plugged import Place


class Niced(LocalController):
    """Options: `level` (10), `command` (JSON; the trainer)."""

    def __init__(self, place: Place) -> None:
        command = json.loads(place.options.get("command", "null")) or ROLE_COMMAND
        super().__init__(place.data_dir, command=("nice", "-n", place.options.get("level", "10"), *command))


class NoController:
    """It can start, and nothing else."""

    def __init__(self, place: Place) -> None:
        self.place = place

    async def start(self) -> None:
        """As nobody would call it."""


def broken(place: Place) -> Niced:
    """Does not know its own options."""
    raise KeyError(f"queue, of {sorted(place.options)}")
