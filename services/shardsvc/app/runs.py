"""Runs: opened for a generation, leased, renewed, reconciled, and healed when the queue is lost."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Protocol, TypeVar

from recmesh.data.records import TaskRecord
from recmesh.formats import IntervalSet
from recmesh.runtime.clock import Clock
from recmesh.runtime.errors import Aborted, AlreadyExists, FailedPrecondition, MeshError, NotFound, Unavailable
from recmesh.runtime.events import Event
from recmesh.runtime.events.catalog import LEASE_REQUEUED, RUN_OPENED, LeaseRequeued, RunOpened
from recmesh.runtime.gates import gate
from recmesh.runtime.telemetry import Metrics, get_logger
from recmesh.spec.dataset import DatasetSpec
from services.shardsvc import wire
from services.shardsvc.app.tasklog import TaskLog, log_short, log_trimmed
from services.shardsvc.domain.alignment import first_gap
from services.shardsvc.domain.lease import (
    Granted,
    Lease,
    Reconciled,
    Released,
    Renewed,
    Requeued,
    State,
    View,
)
from services.shardsvc.domain.line import Line
from services.shardsvc.domain.pace import Pace
from services.shardsvc.domain.run import Run, life_above, stale
from services.shardsvc.store.durable import KeyValueStore
from services.shardsvc.store.queue import MOST_SHARDS, QueueStore

Emit = Callable[[Event[LeaseRequeued] | Event[RunOpened]], object]

REQUEUES_KEPT = 200
_REOPEN_RETRY_S = 0.5
_LOOK_EVERY = 4
"""Sweeps between two looks."""
_metrics = Metrics("shardsvc")
_granted = _metrics.counter("leases_granted", "Leases handed out")
_requeued = _metrics.counter("leases_requeued", "Leases whose rest went back to the queue", labels=("cause",))
_rebuilt = _metrics.counter("queues_rebuilt", "Queues opened again after the store lost or restarted them")
_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class OpenRun:
    """What the jobmaster asks for."""

    job_id: str
    gen: int
    spec: DatasetSpec
    epochs: int
    seed: int
    shuffle: bool
    batch_size: int
    shard_batches: int
    ttl_s: float
    done: IntervalSet
    epoch_floor: int = 0


@dataclass(frozen=True, slots=True)
class LeaseAnswer:
    """Leases, and the tasks that any of them touches, by their bases."""

    state: State
    leases: Sequence[Lease] = ()
    tasks: Sequence[TaskRecord] = ()
    ttl_s: float = 0.0
    retry_after_s: float = 0.0
    line_end: int = 0
    """Where the line ends; 0: it is not closed, or nothing was granted."""


@dataclass(frozen=True, slots=True)
class RunProgress:
    """A run as it is now."""

    run: Run
    line: Line
    view: View
    per_s: float
    eta_s: float | None

    @property
    def drained(self) -> bool:
        """Nothing queued, nothing leased, line closed, and the queue knows all of it."""
        return (
            self.line.closed and self.view.total >= self.line.end and self.view.queued == 0 and not self.view.leases
        )


class _Reopened(Enum):
    DONE = auto()
    EARLY = auto()
    """The jobmaster has not opened this generation yet."""
    OVER = auto()
    """A newer one is open, or the run is closed."""


class _Answer(Protocol):
    @property
    def state(self) -> State: ...


A = TypeVar("A", bound=_Answer)


class Runs:
    """The runs of all jobs. Any replica may answer any call: nothing here is more than a cache."""

    def __init__(
        self, queue: QueueStore, runs: KeyValueStore, tasks: TaskLog, *, clock: Clock, emit: Emit
    ) -> None:
        self._queue = queue
        self._runs = runs
        self._tasks = tasks
        self._clock = clock
        self._emit = emit
        self._locks: dict[str, asyncio.Lock] = {}
        self._paces: dict[str, Pace] = {}
        self._unswept: set[str] = set()
        self.active: dict[str, int] = {}
        """Jobs whose leases this replica sweeps, with their generation."""
        self.latest: dict[str, RunProgress] = {}
        """How each of them was when last looked at."""
        self.requeued: deque[tuple[float, str, Requeued]] = deque(maxlen=REQUEUES_KEPT)
        """(unix seconds, job, what) of the newest requeues that this replica saw."""

    # --- opening ---------------------------------------------------------------------------------

    async def open(self, request: OpenRun) -> tuple[Line, int]:
        """Opens the run for a generation; the line, and how many positions are to do.

        Safe to repeat, and to interrupt at any point: the log is written first, then the run, then the
        queue, and each step finds what is there.
        """
        line = await self._tasks.ensure(
            request.job_id, request.spec, epochs=request.epochs, seed=request.seed, shuffle=request.shuffle,
            fresh=not request.done,
        )
        if line.beyond(request.done):
            raise log_short(request.job_id, line)
        if first_gap(request.done) < line.base:
            raise log_trimmed(request.job_id, line, first_gap(request.done))
        wanted = Run(
            request.job_id, request.gen, request.batch_size, request.shard_batches, request.ttl_s,
            request.done, life=life_above(request.epoch_floor),
        )
        run = await self._change(request.job_id, lambda known: known.opened(wanted) if known else wanted)
        gate("shardsvc.open", f"job {run.job_id}, generation {run.gen}")
        outcome = await self._queue.open(run.job_id, run.opening(line))
        if outcome == "stale":
            raise stale(run.job_id, run.gen, run.gen + 1)
        self.active[run.job_id] = run.gen
        if outcome == "opened":
            self._emit(_opened(run, line))
        return line, line.end - request.done.size

    async def close(self, job_id: str, *, forget: bool) -> None:
        """Ends a run; later calls learn that their generation is over. `forget` removes its task log too."""
        run = await self._load(job_id)
        self._drop(job_id)
        if run and not forget:
            await self._change(job_id, _closed)
        await self._queue.forget(job_id, run.gen if run else 0)
        self._tasks.let_go(job_id)
        if forget:
            await self._tasks.forget(job_id)
            await self._runs.delete(job_id)
            self._locks.pop(job_id, None)

    async def _change(self, job_id: str, change: Callable[[Run | None], Run]) -> Run:
        """Compare-and-set of the run."""
        while True:
            entry = await self._runs.get(job_id)
            known = wire.run_from_bytes(entry.value) if entry else None
            run = change(known)
            if run == known:
                return run
            try:
                if entry is None:
                    await self._runs.create(job_id, wire.run_to_bytes(run))
                else:
                    await self._runs.update(job_id, wire.run_to_bytes(run), entry.revision)
                return run
            except (Aborted, AlreadyExists):
                continue

    # --- leasing ---------------------------------------------------------------------------------

    async def lease(
        self, job_id: str, gen: int, *, worker: str, shards: int, request_id: str, below: int = 0
    ) -> LeaseAnswer:
        """Shards for a worker, with the tasks they touch; with `below` only of positions before it."""
        wanted = min(max(1, shards), MOST_SHARDS)
        granted = await self._healed(
            job_id, gen,
            lambda: self._queue.lease(
                job_id, gen, worker=worker, shards=wanted, request_id=request_id, below=below),
            over=Granted(State.STALE_GEN),
        )
        self._tell(job_id, granted.requeued)
        if granted.state is State.REOPEN:
            return LeaseAnswer(State.WAIT, retry_after_s=_REOPEN_RETRY_S)
        if granted.state is not State.GRANTED:
            return LeaseAnswer(granted.state, ttl_s=granted.ttl_s, retry_after_s=granted.retry_after_s)
        gate("shardsvc.lease", granted.leases)
        end = max(lease.hi for lease in granted.leases)
        line = await self._tasks.line(job_id, to=end)
        if line.end < end:
            raise log_short(job_id, line)
        _granted.inc(len(granted.leases))
        self.active.setdefault(job_id, gen)
        tasks = await self._tasks.tasks_of(line, ((lease.progress, lease.hi) for lease in granted.leases))
        end = line.end if line.closed else 0
        return LeaseAnswer(State.GRANTED, granted.leases, tasks, granted.ttl_s, line_end=end)

    async def renew(
        self, job_id: str, gen: int, *, worker: str, progress: Sequence[tuple[int, int, bool, int]]
    ) -> Renewed:
        """A worker's heartbeat for its leases. While the queue is away nothing is said to be lost."""
        renewed = await self._healed(
            job_id, gen, lambda: self._queue.renew(job_id, gen, worker=worker, progress=progress),
            over=Renewed(State.STALE_GEN),
        )
        gate("shardsvc.renew", progress)
        return renewed

    async def release(self, job_id: str, gen: int, *, worker: str, crashed: bool) -> Released:
        """A worker drains or died: its remainders are queued at once."""
        released = await self._healed(
            job_id, gen, lambda: self._queue.release(job_id, gen, worker=worker, crashed=crashed),
            over=Released(State.STALE_GEN),
        )
        if released.state is State.REOPEN:
            raise _away(job_id, gen)
        self._tell(job_id, released.requeued)
        return released

    async def size_shards(self, job_id: str, gen: int, *, worker: str, shard_batches: int) -> Released:
        """A worker is slow (or, with 0, no more): it holds no more than one shard of so many batches."""
        sized = await self._healed(
            job_id, gen, lambda: self._queue.size(job_id, gen, worker=worker, shard_batches=shard_batches),
            over=Released(State.STALE_GEN),
        )
        if sized.state is State.REOPEN:
            raise _away(job_id, gen)
        self._tell(job_id, sized.requeued)
        return sized

    async def reconcile(self, job_id: str, gen: int, *, done: IntervalSet) -> tuple[int, int]:
        """Queues what a snapshot's ledgers lack and nobody has: (positions queued, positions missing)."""
        line = await self._tasks.line(job_id)
        if not line.closed:
            line = (await self._tasks.journal(job_id, fresh=True)).line
        if line.beyond(done):
            raise log_short(job_id, line)
        run = await self._change(job_id, lambda known: _known(job_id, known).reconciled(gen, done))
        found = await self._healed(
            job_id, gen, lambda: self._queue.reconcile(job_id, gen, done=done),
            over=Reconciled(State.STALE_GEN),
        )
        if found.state is State.STALE_GEN:
            raise stale(job_id, gen, run.gen + 1)
        if found.state is State.REOPEN:
            raise _away(job_id, gen)
        orphans = sum(hi - lo for lo, hi in found.orphans)
        return orphans, line.end - done.size

    async def current(self, job_id: str, gen: int) -> None:
        """FailedPrecondition (STALE_GEN) when another generation is open, NotFound when none is."""
        run = _known(job_id, await self._load(job_id))
        if run.gen != gen:
            raise stale(job_id, gen, run.gen)

    async def progress(self, job_id: str) -> RunProgress:
        """The run as it is now; NotFound when it was never opened, FailedPrecondition (STALE_GEN) once closed."""
        run = _known(job_id, await self._load(job_id))
        line = await self._tasks.line(job_id)
        box: list[View] = []

        async def look() -> Released:
            released, view = await self._queue.look(job_id, run.gen)
            box[:] = [view] if view else []
            return released

        released = await self._healed(job_id, run.gen, look, over=Released(State.STALE_GEN))
        self._tell(job_id, released.requeued)
        if not box:
            raise _away(job_id, run.gen)
        line = await self._tasks.line(job_id, to=box[0].total)
        if not line.closed and job_id not in self.active:       # nobody here looks whether it was closed since
            line = (await self._tasks.journal(job_id, fresh=True)).line
        pace = self._paces.setdefault(job_id, Pace())
        pace.observe(box[0].done, now=self._clock.monotonic())
        eta_s = pace.eta_s(box[0].total - box[0].done) if line.closed else None
        now = RunProgress(run, line, box[0], pace.per_s, eta_s)
        if job_id in self.active:
            self.latest[job_id] = now
        return now

    # --- sweeping and healing ----------------------------------------------------------------------

    def sweeper(self, every_s: float) -> Callable[[], Awaitable[float]]:
        """The step of a loop: sweeps, and answers when to do so again."""
        steps = 0

        async def step() -> float:
            nonlocal steps
            if not steps:
                await self.resume()
            await self.sweep(look=steps % _LOOK_EVERY == 0)
            steps += 1
            return every_s

        return step

    async def resume(self) -> None:
        """After a start: sweep what other lives of this process opened."""
        for entry in await self._runs.entries():
            try:
                run = wire.run_from_bytes(entry.value)
            except MeshError as error:
                _log.error("the run of job %s is left alone: %s", entry.key, error)
                continue
            if not run.closed:
                self.active[run.job_id] = run.gen

    async def sweep(self, *, look: bool = False) -> None:
        """Ends leases that are over, also where no worker asks any more; with `look` `latest` is renewed.

        A job that cannot be swept keeps no other from it; that is logged once, until it can.
        """
        for job_id, gen in list(self.active.items()):
            try:
                await self._sweep(job_id, gen)
                if look and self.active.get(job_id) == gen:
                    with contextlib.suppress(NotFound, FailedPrecondition, Unavailable):    # ended meanwhile
                        await self.progress(job_id)
                self._unswept.discard(job_id)
            except MeshError as error:
                if job_id not in self._unswept:
                    _log.error("job %s cannot be swept: %s", job_id, error)
                self._unswept.add(job_id)

    async def _sweep(self, job_id: str, gen: int) -> None:
        try:
            released = await self._healed(
                job_id, gen, lambda: self._queue.sweep(job_id, gen), over=Released(State.STALE_GEN)
            )
        except NotFound:
            self._drop(job_id)
            return
        self._tell(job_id, released.requeued)
        if released.state is State.STALE_GEN and self.active.get(job_id) == gen:
            run = await self._load(job_id)      # another replica opened a newer one, or closed the run
            if run is None or run.closed:
                self._drop(job_id)
            else:
                self.active[job_id] = run.gen

    def _drop(self, job_id: str) -> None:
        for known in (self.active, self.latest, self._paces):
            known.pop(job_id, None)
        self._unswept.discard(job_id)

    async def _load(self, job_id: str) -> Run | None:
        entry = await self._runs.get(job_id)
        return wire.run_from_bytes(entry.value) if entry else None

    async def _healed(self, job_id: str, gen: int, call: Callable[[], Awaitable[A]], *, over: A) -> A:
        """The call's answer; a queue that the store lost, or kept over a restart, is opened again first.

        `over` is the answer when the generation has ended.
        """
        answer = await call()
        if answer.state is not State.REOPEN:
            return answer
        async with self._locks.setdefault(job_id, asyncio.Lock()):
            answer = await call()               # whoever had the lock may have healed it
            if answer.state is not State.REOPEN:
                return answer
            match await self._reopen(job_id, gen):
                case _Reopened.DONE:
                    return await call()
                case _Reopened.OVER:
                    return over
        return answer

    async def _reopen(self, job_id: str, gen: int) -> "_Reopened":
        """Builds the queue from the log and the newest ledgers that are known."""
        run = await self._load(job_id)
        if run is None:
            raise NotFound(f"no run of job {job_id} is open", reason="NO_RUN")
        if run.closed or run.gen > gen:
            return _Reopened.OVER
        if run.gen < gen:
            return _Reopened.EARLY
        line = (await self._tasks.journal(job_id, fresh=True)).line
        run = await self._change(job_id, lambda known: _known(job_id, known).rebuilt())
        outcome = await self._queue.open(job_id, run.opening(line))
        self.active[job_id] = run.gen
        _rebuilt.inc()
        _log.warning("the queue of job %s was %s after its store restarted or lost it", job_id, outcome)
        return _Reopened.DONE

    def _tell(self, job_id: str, requeued: Iterable[Requeued]) -> None:
        for one in requeued:
            _requeued.labels(one.cause.value).inc()
            self.requeued.append((self._clock.now(), job_id, one))
            data = LeaseRequeued(
                job_id=job_id, worker=one.worker, positions=one.hi - one.lo, reason=one.cause.value
            )
            self._emit(Event(LEASE_REQUEUED, job_id, data, id=f"{job_id}-{one.epoch}"))


def _known(job_id: str, run: Run | None) -> Run:
    if run is None:
        raise NotFound(f"no run of job {job_id} is open", reason="NO_RUN")
    if run.closed:
        raise stale(job_id, run.gen, run.gen + 1)
    return run


def _closed(run: Run | None) -> Run:
    assert run is not None
    return replace(run, closed=True)


def _away(job_id: str, gen: int) -> Unavailable:
    return Unavailable(f"the queue of job {job_id} is not open for generation {gen} yet", reason="NOT_OPEN")


def _opened(run: Run, line: Line) -> Event[RunOpened]:
    data = RunOpened(gen=run.gen, total=line.end, tasks=line.tasks)
    return Event(RUN_OPENED, run.job_id, data, id=f"{run.job_id}-{run.gen}-{run.life}")
