"""A stream whose partitions are skewed, over data executors: not shuffled, shuffled whole, and by thresholds (KALE).

32 partitions of a JetStream topic, their rates by zipf 1.0. An event belongs to its partition's executor. Without
shuffling it is decoded there (`none`); `basic` sends each task to any executor; `threshold` is the role's mode
`rebalance`, which passes on what exceeds `refuse_above`. Executors are processes with the role's own buffer, wire and
rules; events are read from a real server, and made known in the order and at the moments of their arrival; decoders
are paced, so that capacity is known. What recmesh does, leases to whoever is free, needs no owner of partitions.

`auc_shuffled_minus_plain`: what shuffling is worth to the model, on flights (see bench.workloads.ordered).
"""

import asyncio
import json
import os
import queue
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import psutil

from bench.figures import Result
from bench.mesh import ROOT, one_thread, say
from bench.synthetic import DENSE, TABLES, criteo_like, write_parquet
from bench.workloads import flights
from bench.workloads.asking import ended, executors_of
from bench.workloads.nats import nats_server
from bench.workloads.serving import job_of
from recmesh.data import FileSlice, TaskRecord
from recmesh.data.topics import topic_of
from recmesh.partitions import Limits, ensure, subject_of
from recmesh.replay.rows import as_json, open_rows
from recmesh.runtime.bus import Link, Publisher
from recmesh.runtime.rpc import sync_channel
from recmesh.spec.fingerprint import job_fingerprint
from recmesh.trainer.wire import RemoteExecutor
from recmesh.trainer.wire.common import task_to

PARTITIONS, ZIPF = 32, 1.0
EXECUTORS = 4
RATE = 1_024.0
"""Events per second of one executor."""
LOAD = 0.8
"""Of all executors; the one with the busiest partitions gets 1.24 of its own, without shuffling."""
TASK_EVENTS, LINGER_S = 128, 1.0
"""Of one partition; fewer when the first of them has waited so long."""
SECONDS, QUICK_SECONDS = 60.0, 12.0
DISTINCT = 10_000
"""Events that differ; they come again and again."""
READERS = 32
"""Tasks of one executor that are asked for at once."""
PATIENCE_S = 30.0
MODES = ("none", "basic", "threshold")

JUDGE = {
    "first": 70, "days": 14, "unjudged": 4, "batch_size": 512, "receivers": EXECUTORS, "lr": 0.1,
    "params": {"hidden": [128, 64], "embedding_dim": 32},
}
SEEDS, QUICK_SEEDS, QUICK_DAYS = 5, 1, 6
HOWS = ("plain", "shuffled", "tasks")
AT_ONCE = 2


def run(*, quick: bool) -> Result:
    """By mode: `forwarded_mb` of events decoded elsewhere than at their partition's executor, `cpu_s` of all executors,
    `max_lag_s` and `mean_lag_s` from a task's coming until its rows are there, over partitions; `*_vs_basic`."""
    seconds = QUICK_SECONDS if quick else SECONDS
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="recmesh-bench-") as folder:
        events = _events(Path(folder))
        arrivals = arriving(seconds)
        with nats_server(Path(folder) / "nats", synced=False) as url:
            tasks = _published(url, events, arrivals)
            say(f"  {sum(each.task.rows for each in tasks):,} events in {len(tasks):,} tasks")
            for mode in MODES:
                found = _measured(mode, url, tasks)
                figures |= {f"{name}_{mode}": value for name, value in found.items()}
                say(f"  {mode}: {found['forwarded_mb']:.1f} MB forwarded, lag at most {found['max_lag_s']:.2f} s")
    figures["forwarded_bytes_vs_basic"] = figures["forwarded_mb_threshold"] / figures["forwarded_mb_basic"]
    figures["max_lag_ratio"] = figures["max_lag_s_threshold"] / figures["max_lag_s_basic"]
    figures["cpu_ratio"] = figures["cpu_s_threshold"] / figures["cpu_s_basic"]
    details = {
        "partitions": PARTITIONS, "zipf": ZIPF, "executors": EXECUTORS, "events_per_s_each": RATE, "load": LOAD,
        "task_events": TASK_EVENTS, "linger_s": LINGER_S, "seconds": seconds,
        "forwarded": "bytes of events decoded elsewhere than at their partition's executor. basic sends tasks there at "
                     "once, for nothing; an executor that passes on tells where events lie, and they are read there",
        "quick": f"{QUICK_SECONDS:g} s instead of {SECONDS:g}; AUC of {QUICK_SEEDS} seed, {QUICK_DAYS} days, "
                 f"instead of {SEEDS}, {JUDGE['days']}" if quick else "",
    }
    figures |= _judged(details, quick=quick)
    return Result("shuffle", figures, details)


@dataclass(frozen=True, slots=True)
class Coming:
    """A task, and when its events are there: seconds after the begin."""

    due_s: float
    partition: int
    task: TaskRecord
    size_bytes: int


def arriving(seconds: float) -> list[tuple[float, int, int, int]]:
    """(when, partition, first event, events) of tasks, as they would be cut from a stream with these rates."""
    weights = [1 / (rank + 1) ** ZIPF for rank in range(PARTITIONS)]
    total = LOAD * EXECUTORS * RATE
    found = []
    for partition, weight in enumerate(weights):
        rate = total * weight / sum(weights)
        count, first = int(seconds * rate), 0
        while first < count:
            rows = min(TASK_EVENTS, max(1, int(LINGER_S * rate)), count - first)
            found.append(((first + rows) / rate, partition, first, rows))
            first += rows
    return sorted(found)


def _events(folder: Path) -> list[bytes]:
    path = folder / "rows.parquet"
    write_parquet(path, criteo_like(DISTINCT, seed=1, ids=100_000))
    rows = open_rows([str(path)])
    return [text for chunk in rows.chunks() for text in as_json(chunk.table, rows.columns)]


def _dataset(url: str) -> dict[str, Any]:
    names = [f"I{n + 1}" for n in range(DENSE)], [f"C{n + 1}" for n in range(TABLES)]
    types = {"label": "int", **dict.fromkeys(names[0], "float"), **dict.fromkeys(names[1], "int")}
    return {
        "streams": [{"sources": [
            {"jetstream": "events-*", "servers": url, "start": "earliest", "types": types},
        ]}],
        "label": "label",
        "features": [{"name": name, "kind": "dense"} for name in names[0]] + [{"name": name} for name in names[1]],
    }


def _published(url: str, events: Sequence[bytes], arrivals: Sequence[tuple[float, int, int, int]]) -> list[Coming]:
    """The tasks, once their events are in the topic."""
    counts = [0] * PARTITIONS
    for _, partition, first, rows in arrivals:
        counts[partition] = max(counts[partition], first + rows)

    async def publish() -> None:
        link = Link(url, name="bench")
        await link.open(30)
        try:
            await ensure(link, "events", PARTITIONS, limits=Limits(), field="")
            publisher = Publisher(link)
            await publisher.start()
            for partition, count in enumerate(counts):
                for n in range(count):
                    event = events[n % len(events)]
                    await publisher.send(subject_of("events", partition), event, message_id=f"{partition}:{n}")
            await publisher.flush()
            await publisher.stop()
        finally:
            await link.close()

    asyncio.run(publish())
    spec = job_of(_dataset(url)).data
    assert spec is not None
    known = topic_of(spec.streams[0].sources[0]).partitions()
    sizes = list(accumulate((len(events[n % len(events)]) for n in range(max(counts))), initial=0))
    found, base = [], 0
    for due_s, partition, first, rows in arrivals:
        there = known[partition]
        piece = FileSlice(there.uri, 0, there.tag, there.span.first + first, rows)
        task = TaskRecord(1, 0, base, rows, 0, 0, piece)
        found.append(Coming(due_s, partition, task, sizes[first + rows] - sizes[first]))
        base += rows
    return found


class _Asking:
    """Threads that ask for tasks where they were announced, or passed on to, until their rows are there."""

    def __init__(self, tasks: Sequence[Coming], reach: dict[str, RemoteExecutor]) -> None:
        self.lags: dict[int, list[float]] = {partition: [] for partition in range(PARTITIONS)}
        """By partition: seconds since each task came."""
        self.passed: list[Coming] = []
        """Tasks that an executor has passed on."""
        self._tasks, self._reach = tasks, reach
        self._due: dict[str, queue.Queue[tuple[Coming, float] | None]] = {each: queue.Queue() for each in reach}
        self._failures: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._guarded, args=(address,), daemon=True)
            for address in reach for _ in range(READERS)
        ]
        for thread in self._threads:
            thread.start()

    def came(self, each: Coming, address: str, *, since: float) -> None:
        """This executor gets it."""
        self._reach[address].announce([each.task])
        self._due[address].put((each, since))

    def wait(self) -> None:
        """Until all rows are there; RuntimeError when some are not."""
        for waiting in self._due.values():
            for _ in range(READERS):
                waiting.put(None)
        for thread in self._threads:
            thread.join(120)
        if self._failures or any(thread.is_alive() for thread in self._threads):
            raise RuntimeError(f"tasks were not read: {self._failures[:1]}")

    def _guarded(self, address: str) -> None:
        try:
            while (item := self._due[address].get()) is not None:
                self._read(*item, address)
        except BaseException as error:      # `wait` must hear of it
            self._failures.append(error)

    def _read(self, each: Coming, since: float, home: str) -> None:
        address, begin, end = home, each.task.base, each.task.base + each.task.rows
        while True:
            answer = self._reach[address].read(each.task, begin, end, wait_s=PATIENCE_S, here=address != home)
            if answer.batch is not None:
                break
            if answer.moved_to:
                address = answer.moved_to
                self.passed.append(each)
        assert answer.batch.size == each.task.rows
        self.lags[each.partition].append(time.monotonic() - since)


def _measured(mode: str, url: str, tasks: Sequence[Coming]) -> dict[str, float]:
    rng, data = random.Random(1), _dataset(url)
    fingerprint = job_fingerprint(job_of(data), job_id="bench")
    role = {"mode": "rebalance" if mode == "threshold" else "forward"}
    forwarded = 0
    with executors_of(data, [RATE] * EXECUTORS, **role) as executors:
        reach = {each.address: RemoteExecutor(sync_channel(each.address), fingerprint=fingerprint)
                 for each in executors}
        addresses, pids = list(reach), [each.pid for each in executors]
        asking = _Asking(tasks, reach)
        before, began = _cpu_s(pids), time.monotonic()
        for coming in tasks:
            time.sleep(max(0.0, began + coming.due_s - time.monotonic()))
            home = coming.partition % EXECUTORS
            receiver = rng.randrange(EXECUTORS) if mode == "basic" else home
            forwarded += coming.size_bytes * (receiver != home)
            asking.came(coming, addresses[receiver], since=began + coming.due_s)
        asking.wait()
        took, cpu_s = time.monotonic() - began, _cpu_s(pids) - before
        done = ended(executors)
        for executor in reach.values():
            executor.close()
    forwarded += sum(each.size_bytes for each in asking.passed)
    worst = [max(lags) for lags in asking.lags.values()]
    return {
        "forwarded_mb": forwarded / 1e6,
        "forwarded_share": forwarded / sum(each.size_bytes for each in tasks),
        "passed_on_kb": sum(task_to(each.task).ByteSize() for each in asking.passed) / 1e3,
        "passed_on_tasks": float(sum(each["forwarded"] for each in done)),
        "cpu_s": cpu_s,
        "max_lag_s": max(worst),
        "median_partition_max_lag_s": statistics.median(worst),
        "mean_lag_s": statistics.mean(lag for lags in asking.lags.values() for lag in lags),
        "decoded_twice": float(sum(each["decoded"] for each in done) - len(tasks)),
        "seconds": took,
    }


def _cpu_s(pids: Sequence[int]) -> float:
    return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids)


def _judged(details: dict[str, Any], *, quick: bool) -> dict[str, float]:
    try:
        flights.source()
    except flights.DataMissing as missing:
        say(str(missing))
        details["missing"] = str(missing)
        return {}
    seeds, days = (QUICK_SEEDS, QUICK_DAYS) if quick else (SEEDS, JUDGE["days"])
    jobs = [(how, JUDGE | {"how": how, "seed": seed, "days": days}) for seed in range(seeds) for how in HOWS]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        made = list(pool.map(lambda job: _trained(job[1]), jobs))
    by_how = {how: [found for (name, _), found in zip(jobs, made, strict=True) if name == how] for how in HOWS}
    aucs = {how: [statistics.mean(each["days"]) for each in runs] for how, runs in by_how.items()}
    details |= {
        "judged_on": f"{made[0]['samples']:,} flights of {days} days, mean of AUC per day, {seeds} seeds",
        "auc_per_seed": {how: [round(value, 5) for value in values] for how, values in aucs.items()},
    }
    return {
        **{f"auc_{how}": statistics.mean(values) for how, values in aucs.items()},
        "auc_shuffled_minus_plain": statistics.mean(aucs["shuffled"]) - statistics.mean(aucs["plain"]),
        "auc_tasks_minus_plain": statistics.mean(aucs["tasks"]) - statistics.mean(aucs["plain"]),
    }


def _trained(task: dict[str, Any]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "bench.workloads.ordered", json.dumps(task)], cwd=ROOT,
        env={**os.environ, **one_thread()}, check=False, capture_output=True, text=True, timeout=1800,
    )
    if done.returncode:
        raise RuntimeError(f"{task['how']}, seed {task['seed']}, failed:\n{done.stderr[-4000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    say(f"  seed {task['seed']}, {task['how']}: {statistics.mean(found['days']):.5f} ({found['s']:.0f} s)")
    return found
