"""One loaded model of an HN: a queue and a thread of its own, so that no other model waits for it or fails with it."""

import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np

from recmesh.runtime.errors import Aborted, Unavailable
from recmesh.serving.frames import Header
from recmesh.serving.hn.batching import Batcher, Entry
from recmesh.serving.programs import Arrays, DeviceLost, Program
from recmesh.serving.settings import ServingSettings
from recmesh.serving.tensors import Array, Tensor

Answer = Callable[[Header, Sequence[Tensor]], None]
Fail = Callable[[Exception], None]


@dataclass(slots=True, eq=False)
class Request:
    """A call of the model. Exactly one of `answer` and `fail` is called, once."""

    caller: int
    """Which connection it came by."""
    call: int
    inputs: Arrays = field(repr=False)
    outputs: Sequence[str]
    deadline: float
    """On the monotonic clock."""
    answer: Answer
    fail: Fail
    arrived: float = field(default_factory=time.monotonic)
    """As above; so of a frame that was read a moment ago."""


class Model:
    """Runs what is submitted, in batches where the settings say so and the program allows it."""

    def __init__(
        self,
        key: str,
        program: Program,
        settings: ServingSettings,
        *,
        can_batch: bool,
        lost: Callable[[DeviceLost], None],
        log: Callable[[str], None],
        digest: str = "",
    ) -> None:
        self.key = key
        self.digest = digest
        """Of a half's files, as `split.json` has it; empty of a whole model."""
        self._program = program
        self._can_batch = can_batch and settings.max_batch_size > 0
        self._lost = lost
        self._log = log
        self._queue: Batcher[Request] = Batcher(settings)
        self._changed = threading.Condition()
        self._closed = False
        self._running = 0
        self._due = 0.0
        self._thread = threading.Thread(target=self._work, name=f"model {key}", daemon=True)
        self._thread.start()

    @property
    def queued(self) -> int:
        """Requests that wait."""
        return len(self._queue)

    @property
    def idle(self) -> bool:
        """Nothing waits, and nothing runs."""
        with self._changed:
            return not self._running and not len(self._queue)

    @property
    def overdue_s(self) -> float:
        """For how long what runs has run past the deadlines of all who wait for it; 0 when nothing runs."""
        return max(0.0, time.monotonic() - self._due) if self._running else 0.0

    def submit(self, request: Request, *, priority: int, timeout_us: int) -> None:
        """Wait in line; ResourceExhausted, Unavailable (being unloaded)."""
        rows = max((array.shape[0] for array in request.inputs.values() if array.ndim), default=1)
        signature = self._signature(request) if self._can_batch else None
        with self._changed:
            if self._closed:
                raise Unavailable(f"model {self.key} is being unloaded", reason="NOT_LOADED")
            self._queue.put(
                request, rows=rows, signature=signature, now=request.arrived, deadline=request.deadline,
                priority=priority, timeout_us=timeout_us,
            )  # fmt: skip
            self._changed.notify()

    def cancel(self, chosen: Callable[[Request], bool]) -> None:
        """What is chosen and waits is not run, and fails as CANCELLED."""
        with self._changed:
            gone = self._queue.remove(chosen)
        for request in gone:
            request.fail(Aborted("the caller went away before the model was free", reason="CANCELLED"))

    def close(self) -> None:
        """Take nothing more; the thread ends when what waits is answered."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _work(self) -> None:
        while (batch := self._next()) is not None:
            if batch:
                self._run(batch)
                with self._changed:
                    self._running = 0
            del batch                            # the inputs' memory is the sender's again

    def _next(self) -> list[Entry[Request]] | None:
        """The next batch, once there is one; empty after a look in vain, None when the model is closed."""
        with self._changed:
            now = time.monotonic()
            late = self._queue.expire(now)
            batch = self._queue.take(now)
            self._running = len(batch)
            self._due = max((entry.deadline for entry in batch), default=0.0)
            if not batch and not late:
                if self._closed and not len(self._queue):
                    return None
                self._changed.wait(self._queue.wait_s(now))
        for request, error in late:
            request.fail(error)
        return batch

    def _run(self, batch: list[Entry[Request]]) -> None:
        try:
            self._run_together(batch)
        except DeviceLost as error:
            for entry in batch:
                entry.item.fail(error)
            self._lost(error)
        except Exception as error:
            if len(batch) == 1:
                batch[0].item.fail(error)
                return
            for entry in batch:                  # one request must not fail for what another holds
                self._run([entry])

    def _run_together(self, batch: list[Entry[Request]]) -> None:
        started = time.monotonic_ns()
        rows = [entry.rows for entry in batch]
        inputs = batch[0].item.inputs if len(batch) == 1 else _joined(batch)
        prepared = time.monotonic_ns()
        outputs = self._program.run(inputs)
        computed = time.monotonic_ns()
        if len(batch) > 1 and any(not array.ndim or array.shape[0] != sum(rows) for array in outputs.values()):
            self._can_batch = False
            self._log(f"model {self.key}: its outputs do not follow the batch; its requests are run one by one")
            raise ValueError("the outputs do not follow the batch")
        answers = [
            [Tensor.of(name, _slice(outputs[name], begin, size, whole=len(batch) == 1)) for name in entry.item.outputs]
            for entry, begin, size in zip(batch, np.cumsum([0, *rows[:-1]]).tolist(), rows, strict=True)
        ]
        ended = time.monotonic_ns()
        del inputs
        for entry in batch:
            entry.item.inputs = {}               # their memory is the sender's again, and the answer tells it so
        for index, (entry, tensors) in enumerate(zip(batch, answers, strict=True)):
            header = {
                "queue_ns": max(0, started - int(entry.arrived * 1e9)), "input_ns": prepared - started,
                "compute_ns": computed - prepared, "output_ns": ended - computed,
                "executions": int(index == 0), "batch_size": sum(rows),
            }  # fmt: skip
            entry.item.answer(header, tensors)

    def _signature(self, request: Request) -> Hashable:
        names = sorted(request.inputs)
        if any(not request.inputs[name].ndim for name in names):
            return None
        rows = {request.inputs[name].shape[0] for name in names}
        if len(rows) != 1:
            return None
        shapes = tuple((name, request.inputs[name].dtype.str, request.inputs[name].shape[1:]) for name in names)
        return (shapes, tuple(request.outputs))


def _joined(batch: Sequence[Entry[Request]]) -> Arrays:
    return {name: np.concatenate([entry.item.inputs[name] for entry in batch]) for name in batch[0].item.inputs}


def _slice(array: Array, begin: int, size: int, *, whole: bool) -> Array:
    return array if whole else array[begin : begin + size]
