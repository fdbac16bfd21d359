"""A worker's way of reading from data executors, without the rest of a worker: leases, then batches by threads."""

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from bench.mesh import ROOT, one_thread
from bench.workloads.serving import job_of
from recmesh.data import Batch, TaskReader, TaskRecord, index_dataset
from recmesh.data.order import Plan, generate
from recmesh.runtime.rpc import sync_channel
from recmesh.spec.dataset import DatasetSpec
from recmesh.spec.fingerprint import job_fingerprint
from recmesh.trainer.ports import ExecutorAddress, Lease, Piece
from recmesh.trainer.wire import RemoteExecutor
from recmesh.trainer.worker.pending import Pending
from recmesh.trainer.worker.reading import FromExecutors

LEASE_BATCHES = 64


@dataclass(slots=True)
class Served:
    """A started executor."""

    process: subprocess.Popen[str]
    address: str
    pid: int


def started(data: dict[str, Any], *, flight: bool = False, rows_per_s: float = 0.0, **role: Any) -> Served:
    """A process of its own that serves rows of `data`; `rows_per_s`: see bench.workloads.serving.paced."""
    task = {"data": data, "role": role, "flight": flight, "rows_per_s": rows_per_s}
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.workloads.serving", json.dumps(task)], cwd=ROOT,
        env={**os.environ, **one_thread()}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )
    assert process.stdout is not None
    said = json.loads(process.stdout.readline() or "null")
    if said is None:
        raise RuntimeError("the executor did not start")
    return Served(process, said["address"], said["pid"])


def introduce(executors: Sequence[Served]) -> None:
    """All learn of all."""
    addresses = [each.address for each in executors]
    for each in executors:
        assert each.process.stdin is not None
        each.process.stdin.write(json.dumps(addresses) + "\n")
        each.process.stdin.flush()


def ended(executors: Sequence[Served]) -> list[dict[str, int]]:
    """What each has done, by its own account; they are gone."""
    found = []
    for each in executors:
        out, _ = each.process.communicate(timeout=60)
        found.append(json.loads(out.splitlines()[-1]) if out.strip() else {})
    return found


@contextlib.contextmanager
def executors_of(data: dict[str, Any], rates: Sequence[float], **role: Any) -> Iterator[list[Served]]:
    """Executors that know each other, one for each rate (rows per second; 0: its own), gone at the end of the block."""
    made: list[Served] = []
    try:
        made += [started(data, rows_per_s=rate, **role) for rate in rates]
        introduce(made)
        yield made
    finally:
        for each in made:
            with contextlib.suppress(ProcessLookupError):
                each.process.kill()
            each.process.wait()


def reader_of(data: dict[str, Any], addresses: Sequence[str], *, batch: int) -> FromExecutors:
    """A worker's reader of these executors; one that had to read itself would spoil the figure, and fails."""
    spec = job_of(data)
    fingerprint = job_fingerprint(spec, job_id="bench")

    def local() -> TaskReader:
        raise RuntimeError("no executor answered in time")

    reader = FromExecutors(
        connect=lambda address: RemoteExecutor(sync_channel(address), fingerprint=fingerprint), local=local,
        batch_size=batch, patience_s=120.0,
    )
    reader.use([ExecutorAddress(address, "bench") for address in addresses])
    return reader


def tasks_of(data: dict[str, Any], *, epochs: int = 1) -> list[TaskRecord]:
    """In the order in which a job would have them."""
    spec = DatasetSpec.parse(data)
    plan = Plan(index_dataset(spec).slices, epochs, 1, spec.shuffle)
    return [task for task in generate(plan) if not task.close]


def leases_of(data: dict[str, Any], *, batch: int, epochs: int) -> Iterator[Lease]:
    """As shardsvc cuts them: runs of whole batches with the tasks that they touch."""
    tasks = tasks_of(data, epochs=epochs)
    end = tasks[-1].base + tasks[-1].rows
    for number, lo in enumerate(range(0, end, batch * LEASE_BATCHES)):
        hi = min(end, lo + batch * LEASE_BATCHES)
        touched = tuple(task for task in tasks if task.base < hi and lo < task.base + task.rows)
        yield Lease(number + 1, Piece(0, lo, hi), touched)


def batches_of(reader: FromExecutors, leases: Iterator[Lease], *, batch: int) -> Iterator[tuple[float, Batch]]:
    """(when it came, the batch), in the order in which they come; the worker's own queue and threads' rules."""
    pending, gone, ready = Pending(), threading.Event(), queue.Queue[Any](maxsize=4)

    def lease() -> None:
        for each in leases:
            reader.announce(each.tasks)
            for lo in range(each.piece.lo, each.piece.hi, batch):
                item = each, Piece(0, lo, min(each.piece.hi, lo + batch))
                pending.offer(item, most=reader.ahead, gone=gone)
        done.set()

    def read(number: int) -> None:
        try:
            while not gone.is_set():
                item = pending.take(partial(reader.choose, thread=number), timeout_s=0.1)
                if item is None:
                    if done.is_set() and not len(pending):
                        break
                    continue
                found = reader.batch(item[0].tasks, item[1].lo, item[1].hi)
                pending.look_again()
                ready.put((time.perf_counter(), found))
            ready.put(None)
        except BaseException as error:      # the loop must hear of it
            ready.put(error)

    done = threading.Event()
    bodies: list[Callable[[], None]] = [lease, *(partial(read, number) for number in range(reader.threads))]
    threads = [threading.Thread(target=body, daemon=True) for body in bodies]
    for thread in threads:
        thread.start()
    left = reader.threads
    try:
        while left:
            item = ready.get(timeout=300)
            if isinstance(item, BaseException):
                raise item
            if item is None:
                left -= 1
                continue
            yield item
    finally:
        gone.set()
