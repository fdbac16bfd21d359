"""Processes beside this one that list folders: a dictionary per file is Python under one interpreter's lock.

They are started where so many files are listed that it pays, as many as there are cores, by whoever lists in this
process; they end when nobody has asked them for a while, and with this process in any case. Whatever they cannot do,
the asker does: they are a matter of speed alone.
"""

import atexit
import contextlib
import fcntl
import os
import select
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import orjson
import pyarrow as pa

from recmesh.data.filecolumns import Files, Way
from recmesh.data.files import FileInfo
from recmesh.runtime.telemetry import get_logger

ASKED, ANSWERED = struct.Struct("<I"), struct.Struct("<q")
"""What comes before a question, and before an answer."""
FAILED, NOT_HERE = -1, -2
"""In place of an answer: this listing failed; this file system is another one to the process, or none."""
MOST = 8
"""Processes at once, where there are as many cores."""
IDLE_S = 20.0
LIMIT_S = 900.0
"""For one listing, and for a process to come free; a hundred times what a folder of a million files takes."""
_PIPE_BYTES = 1 << 20
"""What the kernel allows to anybody; fewer turns between the two than with its 64 KiB."""
_log = get_logger(__name__)


def written(fs: Any) -> str | None:
    """A file system, so that another process can open it; None: it cannot be told.

    It may hold secrets: it goes through a pipe, to a child, and nowhere else. Objects are one per thread.
    """
    try:
        return str(fs.to_json())
    except (TypeError, ValueError, NotImplementedError, AttributeError):
        return None


class ListingProcesses:
    """A bounded number of them. Safe to share between threads."""

    def __init__(
        self, *, most: int | None = None, idle_s: float = IDLE_S, load: Callable[[], float] = lambda: os.getloadavg()[0]
    ) -> None:
        """`most`: None: one per core that this process may use. `load`: of the machine, in threads that run."""
        self._cores = len(os.sched_getaffinity(0))
        self._most = min(MOST, self._cores) if most is None else most
        self._load = load
        self._idle_s = idle_s
        self._free: list[tuple[float, _Process]] = []
        """Since when."""
        self._count = 0
        self._changed = threading.Condition()
        self._closed = False
        self._cannot: set[str] = set()
        """File systems that no process but this one can open."""

    def ask(self, fs: str, way: Way, path: str, *, witness: FileInfo) -> Files | None:
        """The files of a folder, or of a pattern; None: look for yourself.

        `fs`: as `written` tells it. `witness`: a file that is there.
        """
        # All together they take half as much again of a core per file: where no core is idle they slow the asker down.
        if fs in self._cannot or self._load() - self._count - 1 >= self._cores:
            return None
        question = orjson.dumps({"fs": orjson.loads(fs), "way": way, "path": path, "witness": asdict(witness)})
        process = self._taken()
        if process is None:
            return None
        try:
            data = process.ask(question)
        except (OSError, EOFError) as error:
            _log.warning("a process that lists files ended, or was ended: %s", error)
            self._ended(process)
            return None
        except BaseException:                   # its answer may be under way: nobody must take it for another's
            self._ended(process)
            raise
        self._give_back(process)
        if isinstance(data, int):
            if data == NOT_HERE:
                self._cannot.add(fs)
            return None
        return Files.from_ipc(data)

    def pids(self) -> list[int]:
        """Of those that nobody is asking now."""
        with self._changed:
            return [process.pid for _, process in self._free]

    def close(self) -> None:
        """Ends those that are free, and has no more; those that are asked end with this process."""
        with self._changed:
            self._closed, free, self._free = True, self._free, []
            self._count -= len(free)
            self._changed.notify_all()
        for _, process in free:
            process.end()

    def forget(self) -> None:
        """For a forked process: those that there are belong to its parent, as does the thread that ends them."""
        self._free, self._count, self._changed = [], 0, threading.Condition()

    def _taken(self) -> "_Process | None":
        limit = time.monotonic() + LIMIT_S
        with self._changed:
            while not self._free and self._count >= self._most and not self._closed:
                if not self._changed.wait(limit - time.monotonic()):
                    return None
            if self._closed:
                return None
            if self._free:
                return self._free.pop()[1]
            self._count += 1
            if self._count == 1:
                threading.Thread(target=self._end_idle, name="listing-processes", daemon=True).start()
        try:
            return _Process()
        except OSError as error:
            _log.warning("no process that lists files can be started: %s", error)
            self._ended(None)
            return None

    def _give_back(self, process: "_Process") -> None:
        with self._changed:
            if not self._closed:
                self._free.append((time.monotonic(), process))
                self._changed.notify_all()      # one alone may be the thread that ends idle ones
                return
        self._ended(process)

    def _ended(self, process: "_Process | None") -> None:
        if process is not None:
            process.end()
        with self._changed:
            self._count -= 1
            self._changed.notify_all()

    def _end_idle(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: not self._count, timeout=self._idle_s / 4)
                before = time.monotonic() - self._idle_s
                idle = [process for since, process in self._free if since <= before]
                self._free = [each for each in self._free if each[0] > before]
                self._count -= len(idle)
                left = self._count
                if idle:
                    self._changed.notify_all()
            for process in idle:
                process.end()
            if not left:
                return


class _Process:
    """One of them; it is asked by one thread at a time."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "recmesh.data.listing_process"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        assert self._process.stdin is not None and self._process.stdout is not None
        self._questions, self._answers = self._process.stdin, self._process.stdout
        self.pid = self._process.pid
        with contextlib.suppress(OSError):
            fcntl.fcntl(self._answers, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._poll = select.poll()
        self._poll.register(self._answers, select.POLLIN)

    def ask(self, question: bytes) -> pa.Buffer | int:
        """The answer, or why there is none. EOFError: the process ended; TimeoutError: it takes too long."""
        deadline = time.monotonic() + LIMIT_S
        self._questions.write(ASKED.pack(len(question)) + question)
        (size,) = ANSWERED.unpack(self._read(pa.allocate_buffer(ANSWERED.size), deadline))
        return int(size) if size < 0 else self._read(pa.allocate_buffer(size), deadline)

    def end(self) -> None:
        """It ends by itself once nobody can ask it, or is ended; returns when it has."""
        self._questions.close()
        self._answers.close()
        try:
            self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _read(self, buffer: pa.Buffer, deadline: float) -> pa.Buffer:
        rest = memoryview(buffer).cast("B")
        while rest:
            if not self._poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise TimeoutError(f"no answer within {LIMIT_S:g} s")
            got = self._answers.readinto(rest)  # type: ignore[attr-defined]  # unbuffered: a FileIO
            if not got:
                raise EOFError("no answer")
            rest = rest[got:]
        return buffer


beside = ListingProcesses()
"""Of this process: how many there are is bounded however many datasets are listed."""
atexit.register(beside.close)
os.register_at_fork(after_in_child=beside.forget)
