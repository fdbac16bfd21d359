"""Lines of streams are written ahead of what is leased, window by window, while their jobs train."""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from recmesh.data import FileSlice, TaskRecord
from recmesh.data.index import Agreement
from recmesh.data.order import LINE, row_seed
from recmesh.data.records import is_partition
from recmesh.data.taskgraph import Group, NotYet, TaskGraph, Window
from recmesh.data.topics import topic_of
from recmesh.data.windows import Turn
from recmesh.runtime.clock import Clock
from recmesh.runtime.errors import Aborted, DataLoss, MeshError, NotFound
from recmesh.runtime.lifecycle import Loop
from recmesh.runtime.telemetry import Metrics, get_logger
from services.shardsvc import wire
from services.shardsvc.app.following import Advance, Follower, Opened
from services.shardsvc.app.tasklog import TaskLog
from services.shardsvc.domain import alignment
from services.shardsvc.domain.journal import Begun, Journal, Served, last_empty
from services.shardsvc.domain.lease import State
from services.shardsvc.store.queue import QueueStore

AHEAD_TASKS = 4096
"""A line is written until so many of its tasks wait to be leased: memory is bounded, however much there is to read."""
PATIENCE_S = 5.0
"""Between two looks for what is not there yet, or was wrong."""
MOST_DOUBLINGS = 4
"""Of it, while things stay wrong."""
_THREADS = 16
"""They wait for stores and servers."""
T = TypeVar("T")
_log = get_logger(__name__)
_metrics = Metrics("shardsvc")
_groups = _metrics.counter("stream_groups", "Groups of files that were written to lines of streams")
_windows = _metrics.counter("stream_windows", "Windows of streams that were written to their ends")


class _Writer:
    """What the writer of one line keeps between two steps; all of it can be lost."""

    def __init__(self, begun: Begun, opened: Opened) -> None:
        self.graph = TaskGraph(begun.spec, seed=begun.seed, patience_s=PATIENCE_S)
        self.agreement = Agreement(begun.spec)
        self.follower = Follower(begun.spec, opened)
        self.at: tuple[int, Turn] | None = None
        self.groups: deque[Group] | None = None
        """Files of this window that are not written yet; None: it is not complete."""
        self.files_at = 0.0
        """When to look whether it is."""
        self.written_bytes = self.total_bytes = 0
        """Of its files."""
        self.look_at = 0.0
        self.waits_for = ""
        self.faults = 0
        """In a row."""

    def turn_to(self, window: tuple[int, Turn]) -> None:
        """Another window."""
        if self.at != window:
            self.at, self.groups, self.files_at, self.waits_for = window, None, 0.0, ""

    def take(self, groups: Sequence[Group]) -> None:
        """The window's files."""
        self.groups, self.waits_for = deque(groups), ""
        self.written_bytes, self.total_bytes = 0, sum(group.size_bytes for group in groups)

    def drop(self) -> None:
        """The first group is written."""
        assert self.groups
        self.written_bytes += self.groups.popleft().size_bytes


@dataclass(frozen=True, slots=True)
class StreamState:
    """How far a line of streams has been written."""

    waits_for: str = ""
    """Why nothing is written now; empty: something is, or enough is there."""
    event_time: float = 0.0
    """Where the newest window begins of which something is on the line, unix seconds; 0: nothing is."""


def _named(group: Group) -> tuple[int, Sequence[str]]:
    return group.view, group.uris


class Streams:
    """Writes the lines of all jobs that train on streams. Replicas may do so at once: of two appends one wins."""

    name = "streams"

    def __init__(
        self, tasks: TaskLog, queue: QueueStore, *, active: Mapping[str, int], clock: Clock, every_s: float = 0.5,
        opened: Opened = topic_of,
    ) -> None:
        """`active`: jobs whose runs are open, with their generation. `opened`: a source's topic."""
        self._opened = opened
        self._tasks, self._queue, self._active, self._clock = tasks, queue, active, clock
        self._every_s = every_s
        self._loop = Loop(self.name, self._look, clock=clock)
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="streams")
        self._writers: dict[str, _Writer] = {}
        self._under_way: dict[str, asyncio.Task[None]] = {}
        self._settled: dict[str, int] = {}
        """Jobs that have nothing to be written any more, with the generation whose queue knows it."""

    async def start(self) -> None:
        """Begins to look after lines."""
        await self._loop.start()

    async def _look(self) -> float:
        for job_id in {*self._writers, *self._settled, *self._under_way}:
            if job_id not in self._active:
                self._drop(job_id)
        for job_id, gen in list(self._active.items()):
            if self._settled.get(job_id) == gen:
                continue
            task = self._under_way.get(job_id)
            if task is None or task.done():
                self._under_way[job_id] = asyncio.create_task(self._kept(job_id), name=f"stream-{job_id}")
        return self._every_s

    async def state(self, job_id: str) -> StreamState:
        """Of a job; the default where it trains on no streams."""
        journal = await self._tasks.journal(job_id)
        if journal.begun is None:
            return StreamState()
        writer = self._writers.get(job_id)
        waits_for = "" if journal.line.closed or writer is None else writer.waits_for
        return StreamState(waits_for, journal.event_time)

    async def stop(self) -> None:
        """Ends what is under way; logs say how far it has come."""
        await self._loop.stop()
        for task in self._under_way.values():
            task.cancel()
        await asyncio.gather(*self._under_way.values(), return_exceptions=True)
        for job_id in list(self._writers):
            self._drop(job_id)
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def write(self, job_id: str, gen: int) -> None:
        """Writes until enough waits to be leased, the next window has not come, or the line is closed."""
        journal = await self._tasks.journal(job_id)
        begun = journal.begun
        if begun is None:
            self._settled[job_id] = gen
            return
        writer = self._writers.get(job_id)
        if writer is not None and self._clock.now() < writer.look_at:
            return
        if not journal.line.closed:
            journal = await self._tasks.journal(job_id, fresh=True)
        if writer is None:
            writer = self._writers[job_id] = _Writer(begun, self._opened)
            await self._recall(writer, journal)
        while True:
            line = journal.line
            extended = await self._queue.extend(job_id, gen, total=line.end, closed=line.closed)
            if extended.state is not State.GRANTED:
                return
            if line.closed:
                self._retire(job_id)
                self._settled[job_id] = gen
                return
            if line.tasks_behind(line.end - extended.queued) >= AHEAD_TASKS or self._clock.now() < writer.look_at:
                return
            await self._step(job_id, writer, journal)
            journal = await self._tasks.journal(job_id)

    async def _kept(self, job_id: str) -> None:
        """Whatever goes wrong is tried again, and told once."""
        gen = self._active.get(job_id)
        if gen is None:
            return
        try:
            await self.write(job_id, gen)
        except Aborted:                         # another replica writes it too: look at what it has done
            self._wait(job_id, "", 0.0)
        except MeshError as error:
            self._wait(job_id, error.message, self._later(job_id))
        except Exception as error:
            _log.exception("job %s: its line cannot be written", job_id)
            self._wait(job_id, f"{type(error).__name__}: {error}", self._later(job_id))

    def _later(self, job_id: str) -> float:
        """When to try again what was wrong: less and less often, as a thread may wait long for who does not answer."""
        writer = self._writers.get(job_id)
        if writer is None:
            return 0.0
        writer.faults += 1
        return self._clock.now() + PATIENCE_S * 2.0 ** min(writer.faults - 1, MOST_DOUBLINGS)

    async def _recall(self, writer: _Writer, journal: Journal) -> None:
        """What the first file of the line has settled for all others, as this writer has not seen it."""
        files = (record.file for record in journal.line.records if record.file is not None)
        first = next((piece for piece in files if not is_partition(piece.uri)), None)
        if first is not None:
            try:
                await self._threaded(partial(writer.agreement.recall, first))
            except (DataLoss, NotFound) as error:
                _log.warning("the types of %s are not known any more: %s", first.uri, error.message)

    def _wait(self, job_id: str, why: str, look_at: float) -> None:
        writer = self._writers.get(job_id)
        if writer is None:
            return
        self._say(job_id, writer, why)
        writer.look_at, writer.at = look_at, None

    def _say(self, job_id: str, writer: _Writer, why: str) -> None:
        if why and why != writer.waits_for:
            _log.info("job %s: its line waits: %s", job_id, why)
        writer.waits_for = why

    async def _step(self, job_id: str, writer: _Writer, journal: Journal) -> None:
        """One group of files and what has come of topics, or the end of a window, or of the line.

        What is appended follows from the log as it was when the step began. Whoever else reads the log meanwhile may
        move the journal on; then the step is forgotten.
        """
        after, next_window = journal.last, journal.next_window()
        if next_window is None:
            await self._close(job_id, journal)
            return
        (epoch, turn), now = next_window, self._clock.now()
        writer.turn_to(next_window)
        if writer.groups is None and now >= writer.files_at:
            window = await self._window(job_id, writer, turn, now)
            if isinstance(window, NotYet):
                writer.files_at = window.look_at
                self._say(job_id, writer, f"{window.turn}: {window.why}")
            else:
                writer.take(window.groups)
        while writer.groups and journal.is_logged(*_named(writer.groups[0]), epoch=epoch, turn=turn):
            writer.drop()
        advance = await self._threaded(partial(
            writer.follower.advance, turn, dict(journal.offsets), dict(journal.tags), now=now,
            timed=bool(writer.groups),
        ))
        group = writer.groups[0] if writer.groups and alignment.is_released(
            writer.written_bytes, writer.total_bytes, elapsed=advance.elapsed
        ) else None
        files: Sequence[FileSlice] = ()
        if group is not None:                   # messages wait until files are where they are
            files = await self._threaded(partial(writer.agreement.index, group))
            advance = replace(advance, slices=(), is_whole=advance.is_whole and not advance.slices)
        if journal.last != after:
            writer.at = None
            return
        left = 1 if writer.groups is None else len(writer.groups) - (group is not None)
        complete = left <= 0 and advance.is_whole
        if not (group or advance.slices or advance.starts or complete):
            waits_for_files = writer.groups is None and advance.is_whole
            writer.look_at = writer.files_at if waits_for_files else now + self._every_s
            return
        served = Served(epoch, turn, complete, advance.event_time)
        if complete and not group and advance.next_time is not None:
            served = replace(served, turn=last_empty(journal.begun, turn, advance.next_time))
        await self._append(job_id, journal, files, advance, served)
        writer.follower.wrote(advance.slices, now=now)
        writer.faults = 0
        if group is not None:
            writer.drop()                       # not before it is there
            _groups.inc()
        if complete:
            _windows.inc()
            _log.info("job %s: %s is on its line, which ends at %d", job_id, served.turn, journal.line.end)

    async def _window(self, job_id: str, writer: _Writer, turn: Turn, now: float) -> Window | NotYet:
        """The files of a window. Where topics lie beside them, what is wrong with files keeps no message waiting."""
        try:
            return await self._threaded(partial(writer.graph.window, turn, now=now))
        except MeshError as error:
            if not any(source.is_topic for source in writer.follower.spec.streams[turn.stream].sources):
                raise
            return NotYet(turn, why=error.message, look_at=self._later(job_id))

    async def _append(
        self, job_id: str, journal: Journal, files: Sequence[FileSlice], advance: Advance, served: Served
    ) -> None:
        begun = journal.begun
        assert begun is not None
        records, base, index = [], journal.line.end, journal.slices_of(served.epoch)
        slices = [*journal.unlogged(files, epoch=served.epoch, turn=served.turn), *advance.slices]
        for piece in slices:
            is_shuffled = begun.shuffle and not is_partition(piece.uri)     # messages stay in their order
            seed = row_seed(begun.seed, served.epoch, index) if is_shuffled else 0
            records.append(TaskRecord(0, LINE, base, piece.rows, served.epoch, seed, piece))
            base, index = base + piece.rows, index + 1
        after = journal.last
        for message in wire.chunks(records, served=served, starts=advance.starts):
            after = await self._tasks.append(job_id, message, after=after)

    async def _close(self, job_id: str, journal: Journal) -> None:
        begun = journal.begun
        assert begun is not None
        last = TaskRecord(0, LINE, journal.line.end, 0, begun.epochs, 0, None, close=True)
        for message in wire.chunks([last]):
            await self._tasks.append(job_id, message, after=journal.last)
        _log.info("job %s: the last window is on its line, which is closed at %d", job_id, journal.line.end)

    async def _threaded(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)

    def _retire(self, job_id: str) -> None:
        writer = self._writers.pop(job_id, None)
        if writer is not None:
            writer.graph.close()

    def _drop(self, job_id: str) -> None:
        self._settled.pop(job_id, None)
        self._retire(job_id)
        task = self._under_way.pop(job_id, None)
        if task is not None:
            task.cancel()
