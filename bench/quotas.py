"""What `straggler` and `hot_ps` share: a job whose roles have equal CPU quotas, and one of them that gets slow.

The quotas' sum is at most 1.6 of the machine's 2 cores: with less room, slowing one role would speed up the others, and
a figure would mean nothing. The slowed role gets a share of its quota with a period of 1 s: shorter ones fall below
the kernel's least quota. Where no control group can be written the role is stopped and continued by signals instead, in
the same period and share of one core; the figure's context says which it was.
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from bench.mesh import Mesh, criteo_data, one_thread, say
from recmesh.client.views import Job
from recmesh.runtime.errors import MeshError
from recmesh.runtime.process import ProcessHandle, find

CORES_SUM = 1.6
"""Of all quotas."""
SLOW_SHARE = 0.03
"""Of the slowed role's quota, as in the paper."""
PERIOD_US = 1_000_000
START_S = 600.0
"""Five processes that import a framework with a third of a core each."""
CHECKPOINT_S = 60.0
"""Whoever restarts a job waits so long for a checkpoint: a server with hardly any CPU may never write its part."""
SETTLE_S = 5.0
"""From the first steps until the pace is steady."""
BATCH = 512
MODEL: Mapping[str, Any] = {"embedding_dim": 8, "cross_layers": 2, "hidden": [768, 384]}
"""A step computes much and pulls little: parameter servers with the same quota as workers keep up with all of them."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """How many processes there are of each role; each may use the same share of a core."""

    workers: int
    servers: int

    @property
    def cpu(self) -> float:
        """Cores of one process."""
        return CORES_SUM / (self.workers + self.servers)

    def roles(self) -> dict[str, Any]:
        """For a job's specification."""
        counts = {"ps": self.servers, "worker": self.workers}
        return {
            role: {"replicas": count, "cpu": round(self.cpu, 4), "memory": "3Gi", "env": one_thread()}
            for role, count in counts.items()
        }


def job(name: str, file: Path, fleet: Fleet, *, epochs: int) -> dict[str, Any]:
    """The job of which one role will get slow."""
    return {
        "name": name, "model": {"zoo": "torch_dcn_v2", "params": dict(MODEL)}, "data": criteo_data([str(file)]),
        "training": {
            "batch_size": BATCH, "epochs": epochs, "shard_batches": 32, "optimizer": {"kind": "adagrad", "lr": 0.01},
        },
        "roles": fleet.roles(), "checkpoint": {"every_s": 20}, "export": None,
    }


def started(
    running: Mesh, fleet: Fleet, name: str, file: Path, epochs: int, *, servers: int | None = None
) -> str:
    """The id of such a job, all of whose workers train. `servers`: another number than the fleet's, each as fast."""
    spec = job(name, file, fleet, epochs=epochs)
    spec["roles"]["ps"]["replicas"] = servers or fleet.servers
    job_id = running.client.submit(spec).job_id
    running.wait(job_id, all_train(fleet.workers), patience_s=START_S)
    time.sleep(SETTLE_S)
    return job_id


def restart_elsewhere(
    running: Mesh, job_id: str, role: str, index: int, *, workers: int, detect_s: float
) -> tuple[float, int]:
    """One role gets slow, and once that is known the job is stopped and started again, where nothing is slow.

    Returns when all workers train again: (unix time of the slowing, samples that were left then).
    """
    before = running.client.job(job_id)
    with slowed(running, job_id, role, index):
        began = time.time()
        time.sleep(detect_s)
        try:
            running.client.checkpoint(job_id, timeout_s=CHECKPOINT_S)
        except MeshError as error:
            say(f"  no checkpoint before the restart ({error.message}): the last one has to do")
    for handle in find(running.home / "run" / "jobs" / job_id):
        if handle.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(handle.pid, signal.SIGKILL)
    gen = running.client.job(job_id).gen
    running.wait(job_id, lambda job: job.gen > gen and all_train(workers)(job), patience_s=START_S)
    return began, before.progress.total - before.progress.samples


def samples_of(job: Job) -> dict[int, int]:
    """Trained by each worker's present process."""
    return {item.index: item.samples for item in job.roles if item.role == "worker" and item.state == "running"}


def all_train(workers: int) -> Callable[[Job], bool]:
    """Every worker has taken its first steps."""

    def do(job: Job) -> bool:
        return job.phase == "Running" and sum(count > 2 * BATCH for count in samples_of(job).values()) >= workers

    return do


def rates(running: Mesh, job_id: str, *, window_s: float) -> tuple[float, dict[int, float]]:
    """Samples per second of the job, and of each worker, over a window that begins now."""
    began, before = time.monotonic(), running.client.job(job_id)
    time.sleep(window_s)
    took_s, after = time.monotonic() - began, running.client.job(job_id)
    old, new = samples_of(before), samples_of(after)
    whole = sum(new[index] - old[index] for index in new if index in old) / took_s
    return whole, {index: (new[index] - old[index]) / took_s for index in sorted(new) if index in old}


class PeersPace:
    """Samples per second of one worker that is not slow, while most of a job is trained: the pace of this very run."""

    def __init__(self, victim: int, *, until_share: float = 0.9) -> None:
        self._victim, self._until_share = victim, until_share
        self._first: tuple[float, dict[int, int]] | None = None
        self.per_s = 0.0

    def look(self, job: Job) -> None:
        """Call it with the job now and then."""
        now, samples = time.monotonic(), samples_of(job)
        if self._first is None:
            self._first = now, {index: count for index, count in samples.items() if index != self._victim}
            return
        since, before = self._first
        if job.progress.share <= self._until_share and set(before) <= set(samples) and now - since > 1.0:
            trained = sum(samples[index] - count for index, count in before.items())
            self.per_s = trained / len(before) / (now - since)


@dataclass
class Slowed:
    """A place of a job whose process gets a share of its quota. Whichever follows it there has a machine of its own."""

    mesh: Mesh
    job_id: str
    role: str
    index: int
    share: float = SLOW_SHARE
    how: str = ""
    """cgroup quota | SIGSTOP and SIGCONT"""
    seen: set[int] = field(default_factory=set)
    _end: threading.Event = field(default_factory=threading.Event)

    def look(self) -> None:
        """Slows the present process of the place, once."""
        for handle in find(self.mesh.home / "run" / "jobs" / self.job_id):
            if handle.name.startswith(f"{self.role}-{self.index}-") and handle.alive() and handle.pid not in self.seen:
                self.seen.add(handle.pid)
                self._slow(handle)

    def _slow(self, handle: ProcessHandle) -> None:
        cores = (handle.start.cpu_cores or 1.0) * self.share
        if any(_quota(Path(folder), cores) for folder in handle.start.cgroups):
            self.how = "cgroup quota"
        else:
            self.how = "SIGSTOP and SIGCONT"
            threading.Thread(target=self._turns, args=(handle, cores), daemon=True).start()
        say(f"  {handle.name} has {cores:.4f} cores from now on ({self.how})")

    def _turns(self, handle: ProcessHandle, cores: float) -> None:
        period_s = PERIOD_US / 1e6
        while not self._end.is_set() and handle.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(handle.pid, signal.SIGCONT)
                time.sleep(period_s * cores)
                os.kill(handle.pid, signal.SIGSTOP)
            self._end.wait(period_s * (1 - cores))
        with contextlib.suppress(ProcessLookupError):
            os.kill(handle.pid, signal.SIGCONT)

    def end(self) -> None:
        """The machine is as it was; processes that come to the place later are left alone."""
        self._end.set()


def _quota(folder: Path, cores: float) -> bool:
    """Another CPU quota for a control group; False when it is none that has one."""
    quota_us = max(1000, int(cores * PERIOD_US))
    with contextlib.suppress(OSError):
        if (folder / "cpu.max").exists():
            (folder / "cpu.max").write_text(f"{quota_us} {PERIOD_US}")
            return True
        if (folder / "cpu.cfs_quota_us").exists():
            (folder / "cpu.cfs_quota_us").write_text(str(1000))   # never more than a period while both change
            (folder / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (folder / "cpu.cfs_quota_us").write_text(str(quota_us))
            return True
    return False


@contextlib.contextmanager
def slowed(running: Mesh, job_id: str, role: str, index: int) -> Iterator[Slowed]:
    """The place is slow within the block."""
    made = Slowed(running, job_id, role, index)
    made.look()
    try:
        yield made
    finally:
        made.end()


def until_trained(
    running: Mesh, job_id: str, *, patience_s: float, look: Callable[[Job], None] = lambda job: None
) -> tuple[float, Job]:
    """(unix time at which every sample was trained, the job); `look` sees it on the way.

    Trained means: the closing snapshot is committed, as nothing before it proves that nothing lacks.
    """
    def over(job: Job) -> bool:
        look(job)
        return job.over

    job = running.wait(job_id, over, patience_s=patience_s)
    closing = [
        event for event in running.client.events(job_id)
        if event.type == "job.snapshot_committed" and event.data["samples"] == job.progress.total
    ]
    return unix(closing[0].time), job


def unix(time_of_event: float | str) -> float:
    """Events tell their time as unix seconds or in ISO 8601."""
    if isinstance(time_of_event, str):
        return datetime.fromisoformat(time_of_event).timestamp()
    return time_of_event


def until_stopped(running: Mesh, job_id: str) -> None:
    """Returns when nothing of a stopped job runs any more."""
    deadline = time.monotonic() + 120.0
    while not running.client.job(job_id).over:
        if time.monotonic() > deadline:
            raise TimeoutError(f"job {job_id} does not stop")
        time.sleep(0.2)
