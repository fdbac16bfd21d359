"""One loaded model of an HN: a queue and a thread of its own, so that no other model waits for it or fails with it."""

import contextlib
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import numpy as np

from recmesh.runtime.errors import Aborted, Unavailable
from recmesh.serving.frames import Header
from recmesh.serving.hn.batching import MOST_WAITING, Batcher, Entry
from recmesh.serving.hn.followed import Followed
from recmesh.serving.hn.runtimes import RunTimes
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
    together: Callable[[], AbstractContextManager[None]] = nullcontext
    """Around the answers of a batch: those that go the same way leave it in one piece."""
    arrived: float = field(default_factory=time.monotonic)
    """As above; so of a frame that was read a moment ago."""
    version: int = 0
    """Of a model that follows its job: the one whose rows the inputs are."""


class Model:
    """Runs what is submitted, in batches where the settings say so and the program allows it."""

    def __init__(
        self,
        key: str,
        program: Program,
        settings: ServingSettings,
        *,
        can_batch: bool,
        most_waiting: int = MOST_WAITING,
        lost: Callable[[DeviceLost], None],
        log: Callable[[str], None],
        digest: str = "",
    ) -> None:
        self.key = key
        self.digest = digest
        """Of a half's files, as `split.json` has it; empty of a whole model."""
        self.settings = settings
        self._program = program
        self._followed = program if isinstance(program, Followed) else None
        self._can_batch = can_batch and settings.max_batch_size > 0
        self._lost = lost
        self._log = log
        self._times = RunTimes()
        self._queue: Batcher[Request] = Batcher(settings, most_waiting=most_waiting, times=self._times)
        self._changed = threading.Condition()
        self._closed = False
        self._running = 0
        self._running_rows = 0
        self._due = 0.0
        self._busy_ns = 0
        self._begun_ns = 0
        self.answered = 0
        """Requests that were run, since the model was loaded."""
        self._thread = threading.Thread(target=self._work, name=f"model {key}", daemon=True)
        self._thread.start()

    @property
    def queued(self) -> int:
        """Requests that wait."""
        return len(self._queue)

    @property
    def running(self) -> int:
        """Requests in the batch that is run now."""
        return self._running

    @property
    def busy_s(self) -> float:
        """For how long something ran, since the model was loaded; with what runs now."""
        with self._changed:
            return (self._busy_ns + (time.monotonic_ns() - self._begun_ns if self._begun_ns else 0)) / 1e9

    @property
    def idle(self) -> bool:
        """Nothing waits, and nothing runs."""
        with self._changed:
            return not self._running and not len(self._queue)

    @property
    def overdue_s(self) -> float:
        """For how long what runs has run past the deadlines of all who wait for it; 0 when nothing runs."""
        with self._changed:                      # or a batch might be seen with the deadline of none
            return max(0.0, time.monotonic() - self._due) if self._running else 0.0

    def submit(self, request: Request, *, priority: int, timeout_us: int) -> None:
        """Wait in line; see `Batcher.put`, and Unavailable (being unloaded). Who makes room for it fails."""
        rows = max((array.shape[0] for array in self._per_sample(request).values() if array.ndim), default=1)
        signature = self._signature(request) if self._can_batch else None
        with self._changed:
            if self._closed:
                raise Unavailable(f"model {self.key} is being unloaded", reason="NOT_LOADED")
            shed = self._queue.put(
                request, rows=rows, signature=signature, now=request.arrived, deadline=request.deadline,
                priority=priority, timeout_us=timeout_us, free_at=self._free_at(),
            )  # fmt: skip
            self._changed.notify()
        for other, error in shed:
            other.fail(error)

    def cancel(self, chosen: Callable[[Request], bool]) -> None:
        """What is chosen and waits is not run, and fails as CANCELLED."""
        with self._changed:
            gone = self._queue.remove(chosen)
        for request in gone:
            request.fail(Aborted("it waited for the model, and was never run", reason="CANCELLED"))

    def close(self) -> None:
        """Take nothing more; the thread ends when what waits is answered."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _free_at(self) -> float:
        """When what runs now will be done, if it takes as long as the last ones did."""
        begun = self._begun_ns / 1e9
        return begun + self._times.expected_s(self._running_rows, begun) if self._running else 0.0

    def _work(self) -> None:
        while (batch := self._next()) is not None:
            if batch:
                self._run(batch)
                with self._changed:
                    self._running = 0
                    self._busy_ns += time.monotonic_ns() - self._begun_ns
                    self._begun_ns = 0
                    self.answered += len(batch)
            del batch                            # the inputs' memory is the sender's again

    def _next(self) -> list[Entry[Request]] | None:
        """The next batch, once there is one; empty after a look in vain, None when the model is closed."""
        with self._changed:
            now = time.monotonic()
            late = self._queue.expire(now)
            batch = self._queue.take(now)
            self._running = len(batch)
            self._running_rows = sum(entry.rows for entry in batch)
            self._begun_ns = time.monotonic_ns() if batch else 0
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
        inputs = batch[0].item.inputs if len(batch) == 1 else self._joined(batch)
        prepared = time.monotonic_ns()
        outputs = self._outputs(batch[0].item.version, inputs)
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
        with self._changed:
            self._times.see(sum(rows), (ended - started) / 1e9, ended / 1e9)
        del inputs
        for entry in batch:
            entry.item.inputs = {}               # their memory is the sender's again, and the answer tells it so
        with contextlib.ExitStack() as stack:
            for together in dict.fromkeys(entry.item.together for entry in batch):
                stack.enter_context(together())
            for index, (entry, tensors) in enumerate(zip(batch, answers, strict=True)):
                header = {
                    "queue_ns": max(0, started - int(entry.arrived * 1e9)), "input_ns": prepared - started,
                    "compute_ns": computed - prepared, "output_ns": ended - computed,
                    "executions": int(index == 0), "batch_size": sum(rows),
                    "fresh_version": int(getattr(self._program, "answered", 0)),
                }  # fmt: skip
                entry.item.answer(header, tensors)

    def _outputs(self, version: int, inputs: Arrays) -> Arrays:
        if self._followed is not None:
            return self._followed.run_at(version, inputs)
        return self._program.run(inputs)

    def _per_sample(self, request: Request) -> Arrays:
        return request.inputs if self._followed is None else self._followed.per_sample(request.inputs)

    def _joined(self, batch: Sequence[Entry[Request]]) -> Arrays:
        requests = [entry.item.inputs for entry in batch]
        if self._followed is not None:
            return self._followed.joined(requests)
        return {name: np.concatenate([inputs[name] for inputs in requests]) for name in requests[0]}

    def _signature(self, request: Request) -> Hashable:
        inputs = self._per_sample(request)
        names = sorted(inputs)
        if any(not inputs[name].ndim for name in names):
            return None
        rows = {inputs[name].shape[0] for name in names}
        if len(rows) != 1:
            return None
        shapes = tuple((name, inputs[name].dtype.str, inputs[name].shape[1:]) for name in names)
        return (shapes, tuple(request.outputs), request.version)


def _slice(array: Array, begin: int, size: int, *, whole: bool) -> Array:
    return array if whole else array[begin : begin + size]
