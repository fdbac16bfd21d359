"""Role processes on this machine, through the shim of recmesh.runtime.process.

    <data>/run/jobs/<job>/<role>-<index>-<attempt>.*    start and exit records
    <data>/logs/jobs/<job>/<role>-<index>.log           what the place's processes wrote, one after another
    <data>/work/jobs/<job>/<role>-<index>/              the working folder
    <data>/work/jobs/<job>/<role>-<index>-<attempt>.batch   the batch that a worker has in its hands

The kernel tells of an end (a pidfd becomes readable), so nobody polls while processes live.
"""

import asyncio
import os
import shutil
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import get_args

import psutil

from recmesh.formats import inhand
from recmesh.runtime.errors import AlreadyExists, FailedPrecondition, Violation
from recmesh.runtime.process import ForkServer, ProcessHandle, find, launch
from recmesh.runtime.telemetry import get_logger
from recmesh.spec.job import RoleName, TrainingJob
from services.jobmaster.cluster import Capacity, RoleProcess, StartOrder, logs
from services.jobmaster.domain.exits import Exit

logger = get_logger(__name__)

TAIL_BYTES = 256 * 1024
NODE = socket.gethostname()
ROLE_COMMAND = (sys.executable, "-m", "recmesh.trainer")
FORK_COMMAND = (sys.executable, "-m", "recmesh.trainer.forkserver")
IDLE_S = 60.0
"""So long after the last process has ended its fork server does."""
_RECORD_WAIT_S = 0.02
"""Between the end of a process and its shim's record lie milliseconds."""
_NO_PIDFD_POLL_S = 0.1


class LocalController:
    """`find_again` finds what other jobmasters left; `stop_watching` leaves it running."""

    def __init__(
        self, data_dir: Path, *, command: Sequence[str] = ROLE_COMMAND, cores: float = 0.0,
        gpus: Mapping[str, float] | None = None, fork_command: Sequence[str] = (),
    ) -> None:
        """cores: what all jobs may have together, by their limits; 0: the machine's, less its load. gpus: by kind;
        None: nobody tells. fork_command: a fork server that stands for the command; none: it is executed each time."""
        self._cores, self._gpus = cores, dict(gpus or {})
        self._run_root = data_dir / "run" / "jobs"
        self._log_root = data_dir / "logs" / "jobs"
        self._work_root = data_dir / "work" / "jobs"
        self._command = tuple(command)
        self._server = ForkServer(fork_command, data_dir / "run" / "forkserver") if fork_command else None
        self._idling: asyncio.TimerHandle | None = None
        self._handles: dict[tuple[str, str], ProcessHandle] = {}
        self._quotas: dict[tuple[str, str], float] = {}
        self._memory: dict[tuple[str, str], int] = {}
        """Of processes whose quota, or limit of memory, was changed while they run."""
        self._watchers: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._killers: set[asyncio.Task[None]] = set()
        self._launching: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._on_change: Callable[[str], None] = lambda job_id: None

    def watch(self, on_change: Callable[[str], None]) -> None:
        """See `Controller`."""
        self._on_change = on_change

    def refusals(self, spec: TrainingJob) -> list[Violation]:
        """See `Controller`. Silently less than what was asked for would look like a slow or broken job."""
        found = []
        for name in get_args(RoleName):
            role = getattr(spec.roles, name)
            if role.gpu > 0:
                reason = f"{role.gpu:g} GPUs are asked for, and processes of one machine get none: leave it at 0"
                found.append(Violation(f"roles.{name}.gpu", reason))
        if spec.model.image and not spec.model.code:
            reason = "processes of one machine run no images: give the code by model.code"
            found.append(Violation("model.image", reason))
        return found

    async def find_again(self) -> None:
        """See `Controller`."""
        before = set(self._handles)
        found = await asyncio.to_thread(find, self._run_root, recursive=True)
        there = {(handle.run_dir.name, handle.name): handle for handle in found}
        for key in before & self._handles.keys():
            known, now = self._handles[key], there.get(key)
            is_other = now is None or now.id != known.id     # forgotten, and perhaps begun again, by another jobmaster
            if is_other and key not in self._launching and not known.alive():
                del self._handles[key]
        for key, handle in there.items():
            if key not in self._handles:
                self._adopt(key[0], handle)

    async def stop_watching(self) -> None:
        """Stops looking; the processes go on."""
        tasks = [*self._watchers.values(), *self._killers]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._idling is not None:
            self._idling.cancel()
        if self._server is not None:
            await asyncio.to_thread(self._server.close)

    def work_dir(self, job_id: str, role: str, index: int) -> Path:
        """The place's working folder."""
        return self._work_root / job_id / f"{role}-{index}"

    def _in_hand(self, job_id: str, name: str) -> Path:
        return self._work_root / job_id / f"{name}.batch"

    async def start(self, order: StartOrder) -> RoleProcess:
        """See `Controller`. FailedPrecondition when the machine cannot start it."""
        key = order.job_id, order.name
        known = self._handles.get(key)
        if known is None or not known.alive():
            if key not in self._launching:      # two who ask at once get one process
                task = self._launching[key] = asyncio.create_task(self._start(order))
                task.add_done_callback(lambda _: self._launching.pop(key))
            await asyncio.shield(self._launching[key])
        return self._view(order.job_id, self._handles[key])

    async def _start(self, order: StartOrder) -> None:
        self._handles.pop((order.job_id, order.name), None)
        try:
            handle = await asyncio.to_thread(self._launch, order)
        except AlreadyExists:
            handles = await asyncio.to_thread(find, self._run_root / order.job_id)
            handle = next(handle for handle in handles if handle.name == order.name)
        self._adopt(order.job_id, handle)

    def _launch(self, order: StartOrder) -> ProcessHandle:
        work_dir = self.work_dir(order.job_id, order.role, order.index)
        try:
            work_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FailedPrecondition(f"{work_dir} cannot be made: {error}") from error
        env = dict(order.env) | {
            "RECMESH_WORK_DIR": str(work_dir), inhand.VARIABLE: str(self._in_hand(order.job_id, order.name)),
        }
        if self._server is not None:
            self._server.warm_up(env)       # for those that come later: this one does not wait for it
        return launch(
            order.name, self._command,
            run_dir=self._run_root / order.job_id,
            log_path=self._log_root / order.job_id / f"{order.role}-{order.index}.log",
            env=env,
            cwd=work_dir,
            cpu_cores=order.cpu or None,
            memory_bytes=order.memory_bytes or None,
            oom_score_adj=500,  # before any service of the mesh
            server=self._server,
        )

    def _adopt(self, job_id: str, handle: ProcessHandle) -> None:
        key = job_id, handle.name
        self._handles[key] = handle
        if handle.exit() is None and key not in self._watchers:
            self._watchers[key] = asyncio.create_task(self._await_end(job_id, handle))

    async def _await_end(self, job_id: str, handle: ProcessHandle) -> None:
        try:
            await _gone(handle)
            while handle.exit() is None:  # noqa: ASYNC110  # a file appears within milliseconds
                await asyncio.sleep(_RECORD_WAIT_S)
        finally:
            self._watchers.pop((job_id, handle.name), None)
        self._on_change(job_id)
        if self._server is not None and not self._watchers:
            if self._idling is not None:
                self._idling.cancel()
            self._idling = asyncio.get_running_loop().call_later(IDLE_S, self._rest, self._server)

    def _rest(self, server: ForkServer) -> None:
        if not self._watchers and not self._launching:
            server.close()

    async def stop(self, job_id: str, name: str, *, grace_s: float) -> None:
        """See `Controller`."""
        handle = self._handles.get((job_id, name))
        if handle is None:
            return
        if grace_s <= 0:
            handle.kill()
            return
        handle.terminate(0)
        task = asyncio.create_task(self._kill_later(handle, grace_s))
        self._killers.add(task)
        task.add_done_callback(self._killers.discard)

    async def _kill_later(self, handle: ProcessHandle, grace_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await _gone(handle)
        handle.kill()

    async def drain(self, job_id: str, name: str) -> None:
        """See `Controller`."""
        handle = self._handles.get((job_id, name))
        if handle is not None:
            handle.terminate(0)

    async def processes(self, job_id: str) -> list[RoleProcess]:
        """See `Controller`."""
        return [self._view(job_id, handle) for (job, _), handle in self._handles.items() if job == job_id]

    def _view(self, job_id: str, handle: ProcessHandle) -> RoleProcess:
        record = handle.exit()
        end = None
        if record is not None:
            known, batch = inhand.read(self._in_hand(job_id, handle.name))
            end = Exit(
                record.exit_code, record.signal, record.oom, record.reason, self._last_line(handle), known, batch
            )
        note = "" if handle.limits_enforced or not _has_limits(handle) else handle.limits_reason
        return RoleProcess(job_id, handle.name, str(handle.pid), end, limits_note=note, node=NODE)

    def usage(self, job_id: str, name: str) -> tuple[int, float]:
        """(resident bytes, CPU seconds) of a living process; zeros otherwise."""
        handle = self._handles.get((job_id, name))
        usage = handle.usage() if handle is not None else None
        return (usage.memory_bytes, usage.cpu_s) if usage is not None else (0, 0.0)

    async def resize(self, job_id: str, name: str, *, cpu: float | None, memory_bytes: int) -> bool:
        """See `Controller`. A limit that a process started without cannot be given to it later."""
        handle = self._handles.get((job_id, name))
        if handle is None:
            return False
        held = self._memory.get((job_id, name), handle.start.memory_bytes or 0)
        if memory_bytes != held:
            if memory_bytes < self.usage(job_id, name)[0]:
                return False                             # the kernel would kill it
            if not await asyncio.to_thread(handle.raise_memory, memory_bytes):
                return False
            self._memory[job_id, name] = memory_bytes
        if cpu is not None and handle.limits_enforced:
            if bool(handle.start.cpu_cores) != bool(cpu):
                return False
            if cpu and not await asyncio.to_thread(handle.set_cpu, cpu):
                return False
            self._quotas[job_id, name] = cpu
        return True

    async def tail(self, job_id: str, name: str, *, lines: int) -> list[str]:
        """See `Controller`."""
        path = self._log_root / job_id / f"{name.rpartition('-')[0]}.log"
        return await asyncio.to_thread(logs.tail, path, lines, most_bytes=TAIL_BYTES)

    def _last_line(self, handle: ProcessHandle) -> str:
        last = logs.tail(Path(handle.start.log_path), 20, most_bytes=TAIL_BYTES)
        lines = [line.strip() for line in last if line.strip()]
        return lines[-1][:2000] if lines else ""

    async def forget(self, job_id: str) -> None:
        """See `Controller`. FailedPrecondition while one of them runs."""
        for key in [key for key in self._handles if key[0] == job_id]:
            self._handles[key].forget()
            del self._handles[key]
            self._quotas.pop(key, None)
            self._memory.pop(key, None)
        for root in (self._run_root, self._log_root, self._work_root):
            await asyncio.to_thread(shutil.rmtree, root / job_id, ignore_errors=True)

    async def trim_logs(self, *, max_bytes: int, before: float) -> None:
        """Bounds what each place's processes have written, and removes logs of jobs that ended and wrote nothing since
        `before`."""
        living = {job_id for (job_id, _), handle in self._handles.items() if handle.alive()}
        await asyncio.to_thread(logs.shorten, self._log_root, max_bytes=max_bytes)
        await asyncio.to_thread(logs.remove_old, self._log_root, before=before, living=living)

    async def jobs(self) -> list[str]:
        """See `Controller`."""
        return sorted({job_id for job_id, _ in self._handles})

    async def capacity(self, job_id: str = "", spec: TrainingJob | None = None) -> Capacity:
        """Cores that no limit has promised yet (or the machine's less its load), the machine's available memory, and
        its accelerators: no process holds any."""
        if self._cores:
            promised = sum(
                self._quotas.get(key, handle.start.cpu_cores or 0.0)
                for key, handle in self._handles.items() if handle.alive()
            )
            free = self._cores - promised
        else:
            free = float(len(os.sched_getaffinity(0))) - os.getloadavg()[0]
        return Capacity(max(0.0, free), psutil.virtual_memory().available, self._gpus)


def _has_limits(handle: ProcessHandle) -> bool:
    return handle.start.cpu_cores is not None or handle.start.memory_bytes is not None


async def _gone(handle: ProcessHandle) -> None:
    """Waits until the process has ended."""
    try:
        descriptor = os.pidfd_open(handle.pid)
    except ProcessLookupError:
        return
    except OSError:  # a kernel or sandbox without pidfd
        while handle.alive():  # noqa: ASYNC110  # nobody would set an event
            await asyncio.sleep(_NO_PIDFD_POLL_S)
        return
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    try:
        if not handle.alive():  # the descriptor may be that of another process, which has its pid now
            return
        loop.add_reader(descriptor, ended.set)
        await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
