"""Which process is meant: pid, kernel start time and boot, so that a reused pid is somebody else."""

import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self


def boot_id() -> str:
    """Changes with every start of the machine; start times and pids mean nothing across it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def start_ticks(pid: int) -> int | None:
    """Kernel start time in clock ticks since boot; None when there is no such process, or only its zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = stat[stat.rindex(b")") + 2 :].split()  # the name before may hold blanks and brackets
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


@dataclass(frozen=True, slots=True)
class ProcessId:
    """One process, for all time."""

    pid: int
    start_ticks: int
    boot_id: str

    @classmethod
    def of(cls, pid: int) -> Self | None:
        """The process that has this pid now, if any."""
        ticks = start_ticks(pid)
        return None if ticks is None else cls(pid, ticks, boot_id())

    def alive(self) -> bool:
        """True while it runs; a zombie is not alive."""
        return self.boot_id == boot_id() and start_ticks(self.pid) == self.start_ticks

    def send(self, number: signal.Signals, *, group: bool = False) -> bool:
        """Signals it, or with `group` its whole process group; False when it is gone. Never hits another."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except OSError:
            return False
        try:
            if not self.alive():  # checked after the open: the descriptor cannot change its process
                return False
            if group:
                with suppress(ProcessLookupError):
                    os.killpg(self.pid, number)
            signal.pidfd_send_signal(descriptor, number)
            return True
        except ProcessLookupError:
            return False
        finally:
            os.close(descriptor)
