"""The processes of a mesh and of one job: found by name, held at gates, killed, stopped."""

import signal
import time
from dataclasses import dataclass
from pathlib import Path

from recmesh.chaos.schedule import PLACES, REQUESTS, STORES
from recmesh.runtime.clock import shift_file
from recmesh.runtime.gates import armed_file
from recmesh.runtime.process import ProcessHandle, find

_POLL_S = 0.005
_STOPPED_S = 2.0
"""A store is stopped for no longer while it waits for requests."""


@dataclass(frozen=True, slots=True)
class Held:
    """A process that waits at a gate, with work in its hands."""

    process: ProcessHandle
    work: str


class Victims:
    """`run_dir` is the mesh's folder of process records: its components in `mesh`, roles in `jobs/ID`."""

    def __init__(self, run_dir: Path, job_id: str, *, gates: Path, ports: dict[str, int]) -> None:
        self._run_dir, self._job_id, self._gates, self._ports = run_dir, job_id, gates, ports

    def process(self, who: str) -> ProcessHandle | None:
        """The living process of this name: `jobmaster`, or the newest of the place `worker-0`."""
        if who.partition("-")[0] in PLACES:
            roles = find(self._run_dir / "jobs" / self._job_id)
            found = [process for process in roles if process.name.startswith(f"{who}-") and process.alive()]
            return max(found, key=lambda p: p.start.started_at, default=None)
        return next((p for p in find(self._run_dir / "mesh") if p.name == who and p.alive()), None)

    def arm(self, who: str, gate: str) -> None:
        """The process, or whichever comes in its place, shall wait at the gate. Stores have no gates inside."""
        if gate != REQUESTS:
            armed_file(self._gates, gate, who).touch()

    def held(self, who: str, gate: str, *, within_s: float) -> Held | None:
        """Waits until the armed gate holds; None when it does not in this time, and then it is disarmed."""
        if gate == REQUESTS:
            return self._stopped_with_requests(who, within_s)
        armed = armed_file(self._gates, gate, who)
        note = armed.with_suffix(".who")
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            if note.exists() and (found := self._holder(who, note.read_text())) is not None:
                return found
            time.sleep(_POLL_S)
        self.let_go(who, gate)
        return None

    def let_go(self, who: str, gate: str) -> None:
        """The gate is open: whoever waits there goes on; of one that was killed the marks are removed."""
        if gate != REQUESTS:
            for suffix in (".armed", ".held", ".who"):
                armed_file(self._gates, gate, who).with_suffix(suffix).unlink(missing_ok=True)

    def shift(self, who: str, seconds: float) -> None:
        """From now on its clock, and that of whoever comes in its place, is so many seconds from the machine's."""
        file = shift_file(self._gates, who)
        new = file.with_name(f"{file.name}.new")
        new.write_text(str(seconds))
        new.replace(file)

    def _holder(self, who: str, note: str) -> Held | None:
        pid, _, work = note.partition(" ")
        process = self.process(who)
        return Held(process, work) if process is not None and str(process.pid) == pid else None

    def _stopped_with_requests(self, who: str, within_s: float) -> Held | None:
        """Stops the store for moments, until bytes lie unread in its connections; then it stays stopped."""
        if who not in STORES:
            raise ValueError(f"{who} has gates of its own")
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            process = self.process(who)
            if process is not None and process.id.send(signal.SIGSTOP):
                stopped_until = time.monotonic() + _STOPPED_S
                while time.monotonic() < stopped_until:
                    if unread := unread_bytes(self._ports[who]):
                        return Held(process, f"{unread} bytes of requests")
                    time.sleep(_POLL_S)
                process.id.send(signal.SIGCONT)
            time.sleep(_STOPPED_S / 4)
        return None


def unread_bytes(port: int) -> int:
    """Bytes that wait in the receive queues of the established connections of whoever listens at this port."""
    total = 0
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == "01" and int(fields[1].rpartition(":")[2], 16) == port:
                total += int(fields[4].partition(":")[2], 16)
    return total
