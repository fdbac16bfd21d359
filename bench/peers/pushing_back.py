"""A pipeline of two layers that pushes back, as Flink's does: a source deals tasks out in turn, and waits.

Each executor has so many credits; the source takes the next executor in turn, and when that has no credit left it
waits for one, though others have. So the pipeline goes at the pace of the slowest. The executors are those of recmesh
in mode `forward`, and rows travel by the same wire.
"""

import queue
import threading
import time
from collections.abc import Iterator, Sequence

from recmesh.data import Batch, TaskRecord
from recmesh.trainer.ports import DataExecutor

CREDITS = 4
"""Tasks that one executor may have; Flink's default is a handful of buffers per channel."""


def batches(
    executors: Sequence[DataExecutor], tasks: Sequence[TaskRecord], *, batch: int
) -> Iterator[tuple[float, Batch]]:
    """(when it came, the batch)."""
    lanes: list[queue.Queue[TaskRecord | None]] = [queue.Queue() for _ in executors]
    credits = [threading.Semaphore(CREDITS) for _ in executors]
    found: queue.Queue[tuple[float, Batch] | BaseException | None] = queue.Queue(maxsize=4)

    def deal() -> None:
        for number, task in enumerate(tasks):
            place = number % len(executors)
            credits[place].acquire()
            executors[place].announce([task])
            lanes[place].put(task)
        for lane in lanes:
            lane.put(None)

    def pull(place: int) -> None:
        try:
            while (task := lanes[place].get()) is not None:
                for lo in range(task.base, task.base + task.rows, batch):
                    rows = None
                    while rows is None:
                        rows = executors[place].read(task, lo, min(lo + batch, task.base + task.rows), wait_s=10).batch
                    found.put((time.perf_counter(), rows))
                credits[place].release()
            found.put(None)
        except BaseException as error:      # the loop must hear of it
            found.put(error)

    threading.Thread(target=deal, daemon=True).start()
    for place in range(len(executors)):
        threading.Thread(target=pull, args=(place,), daemon=True).start()
    left = len(executors)
    while left:
        item = found.get(timeout=300)
        if isinstance(item, BaseException):
            raise item
        if item is None:
            left -= 1
        else:
            yield item
