"""Named points at which a chaos run may hold a process, to kill it with work in its hands.

Without `install` a gate is one comparison and nothing happens. Installed, it looks for a file that arms it for this
process; the file says `held` as long as the gate holds, and removing it lets the process go on. Gates stand between
two effects that PROTOCOL.md says may be torn apart; what they hold is a thread of a role, or a service as a whole.
"""

import os
import time
from collections.abc import Mapping
from pathlib import Path

FOLDER = "RECMESH_CHAOS"
"""The variable that says that this is a chaos run, and names the run's folder."""

GATES: Mapping[str, str] = {
    "worker.push": "a part is applied by one parameter server and not sent to another",
    "worker.acked": "a batch is applied everywhere and not reported",
    "ps.claim": "a part is here whole and not claimed",
    "ps.apply": "a batch is claimed and not applied",
    "ps.rows": "rows of a batch are changed and its dense chunks are not",
    "ps.ack": "a batch is in the ledger and not acknowledged",
    "ps.mark": "a snapshot is cut and its mark not answered",
    "ps.part": "a part is written and not handed over",
    "ps.restore": "rows are loaded and their generation has not begun",
    "ps.freeze": "slots have left their parameter server and are installed nowhere",
    "ps.arrive": "slots have come to their new parameter server, which does not own them yet",
    "ps.install": "slots are owned by their new parameter server and the old one does not know",
    "shardsvc.open": "a generation's run is written and its queue is not open",
    "shardsvc.lease": "shards are leased and their holder does not know",
    "shardsvc.renew": "progress is noted and not answered",
    "jobmaster.mark": "a snapshot has its number and nobody is told to mark",
    "jobmaster.commit": "all parts are stored and the record does not name the snapshot",
    "jobmaster.committed": "the record names the snapshot and ckptcache does not know",
    "jobmaster.rollback": "the record has a new generation and nobody is told to restore",
    "jobmaster.opened": "the queue of a generation is open and the record does not say so",
    "jobmaster.freeze": "the record has a move (M2) and no slot is frozen",
    "jobmaster.publish": "moved slots are installed and the map (M4) does not say so",
    "ckptcache.part": "a part was taken over and its giver does not know",
    "ckptcache.stored": "a part is on storage and does not count as stored",
    "ckptcache.commit": "a manifest is to be written for a snapshot that the record names",
}
"""By name: what is in flight there. `ps.{freeze,arrive,install}` and `jobmaster.{freeze,publish}` are of moves."""

HOLD_LIMIT_S = 60.0
"""A gate that nobody lets go opens by itself."""
_LOOK_S = 0.005


class Gates:
    """The gates of one process, called `who` (`jobmaster`, `ps-0`); `folder` is where they are armed."""

    def __init__(self, folder: Path, *, who: str) -> None:
        self._folder, self._who = folder, who

    def reach(self, name: str, work: object) -> None:
        """Hold here if this gate is armed, until it is let go."""
        armed = armed_file(self._folder, name, self._who)
        held = armed.with_suffix(".held")
        try:
            armed.rename(held)          # one thread takes it, even if many arrive
        except FileNotFoundError:
            return
        held.with_suffix(".who").write_text(f"{os.getpid()} {work}")
        deadline = time.monotonic() + HOLD_LIMIT_S
        while held.exists() and time.monotonic() < deadline:
            time.sleep(_LOOK_S)


def armed_file(folder: Path, name: str, who: str) -> Path:
    """Making this file arms the gate for one process; `.held` and `.who` beside it tell that it holds, and what."""
    if name not in GATES:
        raise ValueError(f"there is no gate {name!r}")
    return folder / f"{name}@{who}.armed"


_installed: Gates | None = None


def install(env: Mapping[str, str], *, who: str) -> None:
    """Called once, by the process's entry point: gates work only where the environment names a chaos run."""
    global _installed
    _installed = Gates(Path(env[FOLDER]), who=who) if env.get(FOLDER) else None


def gate(name: str, work: object = "") -> None:
    """A named point; `work` is what is in flight, and is looked at only if the gate holds."""
    if _installed is not None:
        _installed.reach(name, work)
