"""How far a stream falls behind in a surge, with and without w·sigmoid(q/scale) between it and batch data.

One executor reads two sources: batch data, of which some tasks always wait, and a stream whose tasks come at a third of
the executor's pace, and in the surge at four fifths. Lag is how long a task of the stream waits from its coming until
it is decoded. Without priorities tasks are read in the order in which they came. Decoders are paced (see
bench.workloads.serving), so that the pace is known; shelf, threads and rules are the role's own.
"""

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.figures import Result
from bench.mesh import criteo_data, say, scratch
from bench.synthetic import criteo_like, write_parquet
from bench.workloads.serving import paced
from recmesh.data import FileSlice, TaskReader, TaskRecord, index_dataset
from recmesh.data.decoded import Decoded
from recmesh.spec.dataset import DatasetSpec
from recmesh.trainer.executor.priority import Priority
from recmesh.trainer.executor.serving import Executor
from recmesh.trainer.executor.shelf import Shelf

TASKS_PER_S = 10.0
TASK_ROWS = 256
STREAM_SHARE, SURGE_SHARE = 0.33, 0.8
"""Of the executor's pace."""
BATCH_WAITING = 20
"""Tasks of batch data that wait at any time."""
SECONDS, QUICK_SECONDS = 120.0, 24.0
"""Of which the middle third is the surge."""
LEAST_SHARE = 0.1
STREAM_WEIGHT = 1.5
BATCH, STREAM = 0, 1


class InOrder(Priority):
    """The baseline: whichever task came first."""

    def __init__(self, came: "list[int]") -> None:
        super().__init__(least_share=0.0)
        self._came = came

    def choose(self, waiting: Any) -> int | None:
        """The source of the first task that still waits."""
        there = {each.source for each in waiting if each.queued > 0}
        for place, source in enumerate(self._came):
            if source in there:
                del self._came[place]
                return source
        return None


def run(*, quick: bool) -> Result:
    """`max_lag_s_*` and `mean_lag_s_*` of the stream in the surge; `batch_share_*` of the tasks read meanwhile."""
    seconds = QUICK_SECONDS if quick else SECONDS
    figures: dict[str, float] = {}
    with scratch() as folder:
        for name in ("priority", "in_order"):
            lags, batch_share = _surge(folder, seconds, with_priority=name == "priority")
            figures |= {
                f"max_lag_s_{name}": max(lags), f"mean_lag_s_{name}": sum(lags) / len(lags),
                f"batch_share_{name}": batch_share, f"stream_tasks_{name}": float(len(lags)),
            }
            say(f"  {name}: at most {max(lags):.2f} s, batch data had {batch_share:.0%}")
    figures["max_lag_ratio"] = figures["max_lag_s_priority"] / figures["max_lag_s_in_order"]
    return Result("priority", figures, {
        "tasks_per_s": TASKS_PER_S, "stream": STREAM_SHARE, "surge": SURGE_SHARE, "batch_tasks_waiting": BATCH_WAITING,
        "least_share": LEAST_SHARE, "weights": [1.0, STREAM_WEIGHT], "seconds": seconds, "peer": "in order of arrival",
        "quick": f"{QUICK_SECONDS:g} s instead of {SECONDS:g}" if quick else "",
    })


def _surge(folder: Path, seconds: float, *, with_priority: bool) -> tuple[list[float], float]:
    """(seconds that each of the stream's tasks waited that came in the surge, the batch data's share meanwhile)."""
    spec, piece = _data(folder)
    reader = TaskReader(spec)
    came: list[int] = []
    waits_since: dict[int, float] = {}
    lags: list[float] = []
    surge = seconds / 3, 2 * seconds / 3
    began = time.monotonic()
    counts, waiting, lock = [0, 0], [0, 0], threading.Lock()

    def decode(task: TaskRecord) -> Decoded:
        source, now = _source(task), time.monotonic()
        with lock:
            waiting[source] -= 1
            counts[source] += surge[0] <= now - began < surge[1]
            since = waits_since.pop(task.order_seed, None)
        if since is not None and surge[0] <= since - began < surge[1]:
            lags.append(now - since)
        return reader.decode(replace(task, file=piece))

    priority = Priority(least_share=LEAST_SHARE) if with_priority else InOrder(came)
    shelf = Shelf([1.0, STREAM_WEIGHT], 1 << 40, most_queued=1 << 16, priority=priority)
    executor = Executor(shelf, [paced(decode, TASKS_PER_S * TASK_ROWS)], thresholds=None, reach=_nobody)
    executor.start("here")
    number, owed = 0, 0.0
    try:
        last = began
        while (now := time.monotonic()) - began < seconds:
            is_surge = surge[0] <= now - began < surge[1]
            owed += (now - last) * TASKS_PER_S * (SURGE_SHARE if is_surge else STREAM_SHARE)
            last = now
            with lock:
                coming = [STREAM] * int(owed) + [BATCH] * (BATCH_WAITING - waiting[BATCH])
                owed -= int(owed)
            for source in coming:
                number += 1
                task = _task(piece, number, source)
                with lock:
                    waiting[source] += 1
                    came.append(source)
                    if source == STREAM:
                        waits_since[task.order_seed] = time.monotonic()
                executor.announce([task])
            time.sleep(0.005)
        with lock:      # what still waits has waited at least so long
            lags += [time.monotonic() - since for since in waits_since.values() if surge[0] <= since - began < surge[1]]
            share = counts[BATCH] / max(1, sum(counts))
    finally:
        executor.stop()
    return lags, share


def _data(folder: Path) -> tuple[DatasetSpec, FileSlice]:
    path = folder / "rows.parquet"
    if not path.exists():
        write_parquet(path, criteo_like(TASK_ROWS, seed=1, ids=1000))
    spec = DatasetSpec.parse(criteo_data([str(path)], task_rows=TASK_ROWS))
    return spec, index_dataset(spec).slices[0]


def _task(piece: FileSlice, number: int, source: int) -> TaskRecord:
    """The same rows in an order of their own."""
    return TaskRecord(0, 0, number * TASK_ROWS, piece.rows, 0, number, replace(piece, view=source))


def _source(task: TaskRecord) -> int:
    assert task.file is not None
    return task.file.view


def _nobody(address: str) -> Any:
    raise AssertionError(f"there is no peer {address}")
