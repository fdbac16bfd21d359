"""Starts processes through the shim, finds them again, and tells how they ended."""

import json
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from recmesh.runtime.errors import AlreadyExists, FailedPrecondition, InvalidArgument
from recmesh.runtime.process import cgroup
from recmesh.runtime.process.forkserver import ForkServer, readable
from recmesh.runtime.process.identity import ProcessId, boot_id
from recmesh.runtime.process.records import (
    EXIT_SUFFIX,
    LIMIT_SUFFIX,
    START_SUFFIX,
    ExitRecord,
    StartRecord,
)

_SHIM = Path(__file__).with_name("shim.py")
_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_.@-]{0,127}$")
_START_TIMEOUT_S = 30.0  # milliseconds on an idle machine; generous for one that swaps
_POLL_S = 0.02
_WATCHED = "memory is looked at ten times a second instead, and what exceeds its limit is killed"


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process uses now; of itself alone, not of its children."""

    memory_bytes: int
    cpu_s: float
    threads: int


@dataclass(frozen=True, slots=True)
class ProcessHandle:
    """One start of one command; the same from any process of this machine that reads the run folder."""

    run_dir: Path
    start: StartRecord

    @property
    def name(self) -> str:
        """The name it was launched under."""
        return self.start.name

    @property
    def pid(self) -> int:
        """The command's own pid (the shim's is `start.shim_pid`)."""
        return self.start.pid

    @property
    def id(self) -> ProcessId:
        """Identity of the command's process."""
        return ProcessId(self.start.pid, self.start.start_ticks, self.start.boot_id)

    @property
    def limits_enforced(self) -> bool:
        """True when the kernel holds it to the limits that were asked for."""
        return self.start.limits_enforced

    @property
    def limits_reason(self) -> str:
        """Why limits are not enforced; empty when they are."""
        return self.start.limits_reason

    def alive(self) -> bool:
        """True while the command runs."""
        return self.id.alive()

    def exit(self) -> ExitRecord | None:
        """How it ended; None while it runs, and for the instant between its end and the shim's record."""
        record = self._exit_record()
        if record is not None or self.alive():
            return record
        shim = ProcessId(self.start.shim_pid, self.start.shim_start_ticks, self.start.boot_id)
        if shim.alive():
            return None
        record = self._exit_record()  # the shim may have written between the two looks
        return record or self._unknown_exit()

    def wait(self, timeout_s: float) -> ExitRecord | None:
        """Waits until it has ended; None when it still runs at the timeout."""
        deadline = time.monotonic() + timeout_s
        while (record := self.exit()) is None:
            if time.monotonic() >= deadline:
                return None
            time.sleep(_POLL_S)
        return record

    def terminate(self, grace_s: float) -> ExitRecord | None:
        """SIGTERM, after the grace SIGKILL; how it ended. With grace 0 it only asks, and returns at once."""
        self.id.send(signal.SIGTERM)
        if grace_s <= 0:
            return self.exit()
        record = self.wait(grace_s)
        if record is None:
            self.kill()
            record = self.wait(5.0)
        return record

    def raise_memory(self, memory_bytes: int) -> bool:
        """Another memory limit while it runs, held by whoever holds the present one; False when there is none."""
        if not self.start.memory_bytes or not self.alive():
            return False
        if self.limits_enforced:
            return cgroup.raise_memory([Path(folder) for folder in self.start.cgroups], memory_bytes)
        part = self.run_dir / f"{self.name}{LIMIT_SUFFIX}.part"
        part.write_text(str(memory_bytes))
        part.replace(self.run_dir / f"{self.name}{LIMIT_SUFFIX}")
        return True

    def set_cpu(self, cores: float) -> bool:
        """Another CPU quota while it runs; False when it has none that is enforced, or has ended."""
        if not self.start.cpu_cores or not self.limits_enforced or not self.alive():
            return False
        return cgroup.set_cpu([Path(folder) for folder in self.start.cgroups], cores)

    def kill(self) -> None:
        """SIGKILL to the command and its process group; returns at once."""
        self.id.send(signal.SIGKILL, group=True)

    def usage(self) -> Usage | None:
        """What it uses now; None when it has ended."""
        import psutil  # tens of milliseconds, which every start of the supervisor would pay

        try:
            process = psutil.Process(self.pid)
            with process.oneshot():
                usage = Usage(
                    memory_bytes=process.memory_info().rss,
                    cpu_s=sum(process.cpu_times()[:2]),
                    threads=process.num_threads(),
                )
        except psutil.Error:
            return None
        return usage if self.alive() else None

    def forget(self) -> None:
        """Removes its records; refused while it runs, because nobody could find it again."""
        if self.alive():
            raise FailedPrecondition(f"{self.name} (pid {self.pid}) still runs")
        for folder in self.start.cgroups:
            cgroup.remove(Path(folder))
        for suffix in (START_SUFFIX, EXIT_SUFFIX, LIMIT_SUFFIX):
            (self.run_dir / f"{self.name}{suffix}").unlink(missing_ok=True)

    def _exit_record(self) -> ExitRecord | None:
        record = ExitRecord.load(self.run_dir / f"{self.name}{EXIT_SUFFIX}")
        mine = record is not None and (record.pid, record.start_ticks) == (self.pid, self.start.start_ticks)
        return record if mine else None

    def _unknown_exit(self) -> ExitRecord:
        rebooted = self.start.boot_id != boot_id()
        reason = "the machine was restarted" if rebooted else "unknown: its shim was killed before it ended"
        return ExitRecord(
            name=self.name, pid=self.pid, start_ticks=self.start.start_ticks,
            started_at=self.start.started_at, ended_at=time.time(),
            exit_code=None, signal=None, oom=False, reason=reason,
        )


def launch(
    name: str,
    command: Sequence[str],
    *,
    run_dir: Path,
    log_path: Path,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    cpu_cores: float | None = None,
    memory_bytes: int | None = None,
    oom_score_adj: int = 0,
    tag: str = "",
    server: ForkServer | None = None,
) -> ProcessHandle:
    """Starts the command and returns when it runs (or could not be executed: FailedPrecondition).

    `env` is the whole environment (None: the own one); it is handed over in memory and never written down.
    `name` is unique among the living in `run_dir`: AlreadyExists otherwise; records of an ended process of
    that name are replaced. `tag` comes back in `handle.start.tag`. Limits that cannot be enforced do not fail
    the start: see `handle.limits_enforced`. A higher `oom_score_adj` lets the kernel choose it earlier. `server`:
    forks itself instead of the command, which it stands for, once it is ready and where this environment allows it.
    """
    if not _NAME.match(name):
        raise InvalidArgument(f"{name!r} cannot name a process")
    if not command:
        raise InvalidArgument(f"{name} has no command")
    run_dir, log_path = run_dir.absolute(), log_path.absolute()
    old = _load(run_dir / f"{name}{START_SUFFIX}")
    if old is not None and old.alive():
        raise AlreadyExists(f"{name} runs already, as pid {old.pid}")
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        log_path.parent.mkdir(parents=True, exist_ok=True)
        if old is not None:
            old.forget()
    except OSError as error:
        raise FailedPrecondition(f"{name} cannot be started: {error}", reason="LAUNCH_FAILED") from error
    limits = cgroup.apply(
        f"recmesh-{name}-{secrets.token_hex(4)}", cpu_cores=cpu_cores, memory_bytes=memory_bytes
    )
    order: dict[str, object] = {
        "name": name, "command": [str(part) for part in command], "cwd": str(cwd or Path.cwd()),
        "log_path": str(log_path),
        "start_path": str(run_dir / f"{name}{START_SUFFIX}"),
        "exit_path": str(run_dir / f"{name}{EXIT_SUFFIX}"),
        "cgroups": [str(folder) for folder in limits.folders],
        "memory_bytes": memory_bytes, "oom_score_adj": oom_score_adj,
        "limit_path": "" if limits.enforced or not memory_bytes else str(run_dir / f"{name}{LIMIT_SUFFIX}"),
        "start": {
            "tag": tag, "limits_enforced": limits.enforced,
            "limits_reason": limits.reason if limits.enforced or not memory_bytes else f"{limits.reason}; {_WATCHED}",
            "cpu_cores": cpu_cores, "memory_bytes": memory_bytes,
        },
    }
    try:
        start = _start(order, dict(os.environ if env is None else env), server)
    except FailedPrecondition:
        for folder in limits.folders:
            cgroup.remove(folder)
        raise
    return ProcessHandle(run_dir, start)


def find(run_dir: Path, *, recursive: bool = False) -> list[ProcessHandle]:
    """All processes ever launched into the folder and not forgotten, living or ended, by name."""
    pattern = f"**/*{START_SUFFIX}" if recursive else f"*{START_SUFFIX}"
    found = (_load(path) for path in sorted(run_dir.absolute().glob(pattern)))
    return [handle for handle in found if handle is not None]


def terminate_all(
    handles: Sequence[ProcessHandle],
    *,
    grace_s: float,
    on_exit: Callable[[ProcessHandle], None] = lambda _: None,
) -> None:
    """Terminates all at once: SIGTERM to each, a common grace, SIGKILL to the rest; returns when none runs.

    FailedPrecondition names those that even SIGKILL does not end (a process stuck in the kernel).
    """
    waiting = [handle for handle in handles if handle.alive()]
    for handle in waiting:
        handle.terminate(0)
    deadline = time.monotonic() + grace_s
    killed = False
    while waiting:
        for handle in [item for item in waiting if item.exit() is not None]:
            waiting.remove(handle)
            on_exit(handle)
        if not killed and time.monotonic() >= deadline:
            killed = True
            for handle in waiting:
                handle.kill()
        if killed and time.monotonic() >= deadline + 10.0:
            names = ", ".join(f"{handle.name} (pid {handle.pid})" for handle in waiting)
            raise FailedPrecondition(f"{names} cannot be killed")
        time.sleep(_POLL_S)


def _load(path: Path) -> ProcessHandle | None:
    start = StartRecord.load(path)
    return None if start is None else ProcessHandle(path.parent, start)


def _start(order: dict[str, object], env: dict[str, str], server: ForkServer | None) -> StartRecord:
    """Starts the shim and waits for its one line about the start."""
    line: bytes | None = b""
    if server is not None and server.fits(env):
        line = _line(lambda status: server.start(order | {"status_fd": status}, env), on_silence=server.close)
        if line is None:        # its shim is there, and may start it yet: a second one would be one too many
            said = "the shim said nothing in time"
            raise FailedPrecondition(f"{order['name']} cannot be started: {said}", reason="LAUNCH_FAILED")
    # Of a fork server that died before it could fork nobody holds the pipe any more: nothing was started.
    values = json.loads(line or _line(lambda status: _run_shim(order | {"status_fd": status}, env)) or b"{}")
    if "pid" not in values:
        said = values.get("error", "the shim said nothing")
        raise FailedPrecondition(f"{order['name']} cannot be started: {said}", reason="LAUNCH_FAILED")
    return StartRecord(**values)


def _line(start: Callable[[int], object], *, on_silence: Callable[[], None] | None = None) -> bytes | None:
    """What comes through a pipe whose other end `start` gets; empty when all who have it are gone, None when nothing
    came in time. on_silence: then done first, and waited for once more."""
    reader, writer = os.pipe()
    try:
        try:
            start(writer)
        finally:
            os.close(writer)
        line = _read_line(reader, time.monotonic() + _START_TIMEOUT_S)
        if line is None and on_silence is not None:
            on_silence()
            line = _read_line(reader, time.monotonic() + _START_TIMEOUT_S)
        return line
    finally:
        os.close(reader)


def _run_shim(order: dict[str, object], env: dict[str, str]) -> None:
    command = [sys.executable, "-S", "-E", str(_SHIM), json.dumps(order)]
    try:
        starter = subprocess.Popen(
            command, env=env, pass_fds=(int(str(order["status_fd"])),), stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/",
        )
    except OSError as error:
        raise FailedPrecondition(f"{order['name']} cannot be started: {error}", reason="LAUNCH_FAILED") from error
    with suppress(subprocess.TimeoutExpired):
        starter.wait(5.0)  # it forks and leaves at once; the shim proper is not our child


def _read_line(descriptor: int, deadline: float) -> bytes | None:
    """None: not in time; empty: it has ended without one."""
    data = b""
    while not data.endswith(b"\n"):
        if not readable(descriptor, max(0.0, deadline - time.monotonic())):
            return None
        part = os.read(descriptor, 65536)
        if not part:
            return b""
        data += part
    return data
