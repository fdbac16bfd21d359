"""The task log of a job. Of files it tells the slices and the plan from which all tasks follow (ADR 16), written before
the first lease by whoever gets there first; of streams it is begun, and `app.streaming` goes on with it while the job
trains."""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from recmesh.data.planned import Shape
from recmesh.data.records import TaskRecord
from recmesh.data.slices import Slices
from recmesh.data.topics import topic_of
from recmesh.formats import IntervalSet
from recmesh.runtime.clock import Clock, system_clock
from recmesh.runtime.errors import Aborted, DataLoss, FailedPrecondition
from recmesh.spec.dataset import DatasetSpec
from services.shardsvc import wire
from services.shardsvc.app.following import Opened, settled
from services.shardsvc.app.indexing import Indexer
from services.shardsvc.domain.journal import Begun, Journal, Planned
from services.shardsvc.domain.line import Line
from services.shardsvc.store.durable import AppendLog, task_subject

_KEPT_LINES = 256
_PRINT_VERSION = 2
"""Of the fingerprint: to be raised when a default changes its value."""


class TaskLog:
    """Lines of jobs, read from their logs, of which only the end can be new."""

    def __init__(
        self, log: AppendLog, indexer: Indexer, *, clock: Clock = system_clock, opened: Opened = topic_of
    ) -> None:
        self._log, self._clock, self._opened = log, clock, opened
        self._indexer = indexer
        self._journals: OrderedDict[str, Journal] = OrderedDict()
        self._making = asyncio.Lock()
        """One page of a plan is made at a time: whoever waits for it mostly wants the same."""

    async def ensure(
        self, job_id: str, spec: DatasetSpec, *, epochs: int, seed: int, shuffle: bool, fresh: bool
    ) -> Line:
        """The line of a job, written where it is not yet, of streams only begun; only a `fresh` job may lack it.

        Whatever interrupts the writing, the next caller goes on where the log ends. FailedPrecondition: the
        log was begun with other data, epochs, seed or shuffling, or from files that changed since.
        """
        print_ = _fingerprint(spec, epochs=epochs, seed=seed, shuffle=shuffle)
        self._journals.pop(job_id, None)        # a new generation believes the log alone
        while True:
            journal = await self.journal(job_id, fresh=True)
            if journal.last and journal.fingerprint != print_:
                raise FailedPrecondition(
                    f"the tasks of job {job_id} were begun with other data, epochs, seed or shuffling",
                    reason="OTHER_DATASET",
                )
            if journal.line.closed or journal.begun is not None:
                return journal.line
            if not fresh:
                raise log_short(job_id, journal.line)
            try:
                if spec.streams:
                    await self._begin(job_id, spec, epochs, seed, shuffle, print_, after=journal.last)
                else:
                    await self._list(job_id, spec, Shape(epochs, seed, shuffle), journal, print_)
            except Aborted:
                continue                        # somebody else writes too: read again

    async def _begin(
        self, job_id: str, spec: DatasetSpec, epochs: int, seed: int, shuffle: bool, print_: str, *, after: int
    ) -> None:
        """Where topics begin is settled here, once for the life of the job."""
        spec, starts = await asyncio.to_thread(settled, spec, now=self._clock.now(), opened=self._opened)
        message = wire.begin_to_bytes(Begun(spec, epochs, seed, shuffle), fingerprint=print_, starts=starts)
        await self.append(job_id, message, after=after)

    async def trim(self, job_id: str, base: int) -> int:
        """Positions below `base` are done for ever: what only they need leaves the log. How many tasks that were.

        First it is written down what is needed of it, so that nothing is missing whenever this is interrupted. Aborted:
        somebody else wrote meanwhile.
        """
        journal = await self.journal(job_id, fresh=True)
        before, base = journal.line.tasks, journal.trimmable(base)
        kept = next(iter(journal.line.from_position(base)), None)
        if journal.begun is None or kept is None:
            return 0
        message = wire.trim_to_bytes(journal.trimming(base), fingerprint=journal.fingerprint, starts=journal.starts())
        await self.append(job_id, message, after=journal.last)
        await self._log.purge(task_subject(job_id), below=kept.sequence)
        return before - journal.line.tasks

    async def _list(self, job_id: str, spec: DatasetSpec, shape: Shape, journal: Journal, print_: str) -> None:
        if journal.line.tasks:
            raise FailedPrecondition(
                f"an older release began to write the tasks of job {job_id} and did not end: submit it anew",
                reason="OTHER_RELEASE",
            )
        logged, last, first = journal.slices, journal.last, len(journal.slices)
        slices = (await self._indexer.index(spec)).slices
        assert isinstance(slices, Slices), "of a dataset without streams"
        if journal.last != last:                # meanwhile others here wrote, perhaps to the end, perhaps other data
            raise Aborted(f"the tasks of job {job_id} are written by another call, too")
        if not await asyncio.to_thread(logged.begins, slices):
            raise FailedPrecondition(
                f"the files of job {job_id} changed while its tasks were written: they are not those of {first} slices "
                "that are logged", reason="FILE_CHANGED",
            )
        following = wire.listing(slices, first=first, fingerprint=print_)
        while (message := await asyncio.to_thread(next, following, None)) is not None:
            last = await self.append(job_id, message, after=last)
        message = wire.plan_to_bytes(Planned(shape, len(slices), slices.rows), fingerprint=print_)
        await self.append(job_id, message, after=last)

    async def tasks_of(self, line: Line, pieces: Iterable[tuple[int, int]]) -> Sequence[TaskRecord]:
        """See Line.tasks_of_all. What takes time is done in a thread."""
        pieces = IntervalSet(pieces).pairs()    # leases mostly follow each other
        if not line.is_at_hand(pieces):
            async with self._making:
                if not line.is_at_hand(pieces):
                    return await asyncio.to_thread(line.tasks_of_all, pieces)
        return line.tasks_of_all(pieces)

    async def append(self, job_id: str, message: bytes, *, after: int) -> int:
        """The next message; its sequence. `after` is the last sequence that its writer knew when it made the message:
        Aborted when another one has written since.
        """
        try:
            sequence = await self._log.append(task_subject(job_id), message, expected_last=after)
        except BaseException:
            self._journals.pop(job_id, None)    # perhaps it is there: only the log knows
            raise
        journal = self._journals.get(job_id)
        if journal is not None and journal.last == after:
            self._take(job_id, journal, sequence, message)
        return sequence

    def _take(self, job_id: str, journal: Journal, sequence: int, message: bytes) -> None:
        try:
            journal.take(sequence, wire.message_of(sequence, message))
        except BaseException:
            self._journals.pop(job_id, None)    # it may have half of the message: there was no room for slices, say
            raise

    async def line(self, job_id: str, *, to: int = 0) -> Line:
        """The line of a job, at least to this position if the log has it; DataLoss when a log of files has no end."""
        journal = await self.journal(job_id)
        if not journal.line.closed and (journal.begun is None or journal.line.end < to):
            journal = await self.journal(job_id, fresh=True)
        if not journal.line.closed and journal.begun is None:
            raise log_short(job_id, journal.line)
        return journal.line

    async def journal(self, job_id: str, *, fresh: bool = False) -> Journal:
        """What the log says; with `fresh` also what was written since it was last read."""
        known = self._journals.get(job_id)
        if known is None or fresh:
            known = known or Journal()
            async for sequence, data in self._log.read(task_subject(job_id), known.last + 1):
                if sequence > known.last:       # whoever else reads it has not come so far
                    self._take(job_id, known, sequence, data)
            newest = self._journals.get(job_id)
            if newest is not None and newest.last > known.last:
                known = newest                  # of two readers the one who came farther is believed
            self._journals[job_id] = known
        self._journals.move_to_end(job_id)
        while len(self._journals) > _KEPT_LINES:
            self._journals.popitem(last=False)
        return known

    def let_go(self, job_id: str) -> None:
        """What is held in memory of a job that ended; its log has it all."""
        self._journals.pop(job_id, None)

    async def forget(self, job_id: str) -> None:
        """Removes the log."""
        self._journals.pop(job_id, None)
        await self._log.purge(task_subject(job_id))


def log_short(job_id: str, line: Line) -> DataLoss:
    """Positions are known that the log does not have: only a rollback to older ledgers can help."""
    return DataLoss(
        f"the task log of job {job_id} lost its end: it stops at position {line.end}", reason="LOG_SHORT"
    )


def log_trimmed(job_id: str, line: Line, position: int) -> DataLoss:
    """A snapshot older than all that were kept is gone back to, or none at all."""
    return DataLoss(
        f"job {job_id} is to train from position {position} on, and what stands before {line.base} was let go of: "
        "every snapshot that was kept had it", reason="LOG_TRIMMED",
    )


def _fingerprint(spec: DatasetSpec, *, epochs: int, seed: int, shuffle: bool) -> str:
    """Of what is not as by default: a field that the specification gains later changes no print."""
    fields = spec.model_dump_json(exclude={"name"}, exclude_defaults=True)
    text = f"{_PRINT_VERSION}\0{fields}\0{epochs}\0{seed}\0{int(shuffle)}"
    return f"{_PRINT_VERSION}:{hashlib.sha256(text.encode()).hexdigest()}"
