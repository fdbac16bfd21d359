"""The task log: written once per job, before its first lease, by whoever gets there first."""

import asyncio
import hashlib
from collections import OrderedDict

from recmesh.data.order import Plan, differs, generate
from recmesh.data.records import TaskRecord
from recmesh.runtime.errors import Aborted, DataLoss, FailedPrecondition
from recmesh.spec.dataset import DatasetSpec
from services.shardsvc import wire
from services.shardsvc.app.indexing import Indexer
from services.shardsvc.domain.line import Line
from services.shardsvc.store.durable import AppendLog, task_subject

_KEPT_LINES = 256
_PRINT_VERSION = 2
"""Of the fingerprint: to be raised when a default changes its value."""


class TaskLog:
    """Lines of jobs, read from their logs; a closed line never changes, so it is kept."""

    def __init__(self, log: AppendLog, indexer: Indexer) -> None:
        self._log = log
        self._indexer = indexer
        self._lines: OrderedDict[str, Line] = OrderedDict()

    async def ensure(
        self, job_id: str, spec: DatasetSpec, *, epochs: int, seed: int, shuffle: bool, fresh: bool
    ) -> Line:
        """The closed line of a job, written where it is not yet; only a `fresh` job may lack it.

        Whatever interrupts the writing, the next caller goes on where the log ends. FailedPrecondition: the
        log was begun with other data, epochs, seed or shuffling, or from files that changed since.
        """
        print_ = _fingerprint(spec, epochs=epochs, seed=seed, shuffle=shuffle)
        while True:
            logged, begun_as, last = await self._read(job_id)
            if logged and begun_as != print_:
                raise FailedPrecondition(
                    f"the tasks of job {job_id} were begun with other data, epochs, seed or shuffling",
                    reason="OTHER_DATASET",
                )
            line = Line(logged)
            if line.closed:
                return self._keep(job_id, line)
            if not fresh:
                raise log_short(job_id, line)
            try:
                await self._go_on(job_id, spec, Plan((), epochs, seed, shuffle), logged, print_, last)
            except Aborted:
                continue                        # somebody else writes too: read again

    async def _go_on(
        self, job_id: str, spec: DatasetSpec, plan: Plan, logged: list[TaskRecord], print_: str, last: int
    ) -> None:
        index = await self._indexer.index(spec)
        plan = Plan(index.slices, plan.epochs, plan.seed, plan.shuffle)
        records = await asyncio.to_thread(lambda: list(generate(plan)))
        at = differs(logged, records)
        if at is not None:
            raise FailedPrecondition(
                f"the files of job {job_id} changed while its tasks were written: record {at} is another now",
                reason="FILE_CHANGED",
            )
        for chunk in wire.chunks(records[len(logged) :], fingerprint=print_):
            last = await self._log.append(task_subject(job_id), chunk, expected_last=last)

    async def line(self, job_id: str) -> Line:
        """The closed line of a job; DataLoss when its log lacks the end."""
        known = self._lines.get(job_id)
        if known is not None:
            self._lines.move_to_end(job_id)
            return known
        line = Line((await self._read(job_id))[0])
        if not line.closed:
            raise log_short(job_id, line)
        return self._keep(job_id, line)

    async def forget(self, job_id: str) -> None:
        """Removes the log."""
        self._lines.pop(job_id, None)
        await self._log.purge(task_subject(job_id))

    async def _read(self, job_id: str) -> tuple[list[TaskRecord], str, int]:
        """Records, the fingerprint they were begun with, and the last sequence."""
        records: list[TaskRecord] = []
        print_, last = "", 0
        async for last, data in self._log.read(task_subject(job_id)):
            some_print, some = wire.tasks_of_chunk(last, data)
            print_ = print_ or some_print
            records.extend(some)
        return records, print_, last

    def _keep(self, job_id: str, line: Line) -> Line:
        self._lines[job_id] = line
        while len(self._lines) > _KEPT_LINES:
            self._lines.popitem(last=False)
        return line


def log_short(job_id: str, line: Line) -> DataLoss:
    """Positions are known that the log does not have: only a rollback to older ledgers can help."""
    return DataLoss(
        f"the task log of job {job_id} lost its end: it stops at position {line.end}", reason="LOG_SHORT"
    )


def _fingerprint(spec: DatasetSpec, *, epochs: int, seed: int, shuffle: bool) -> str:
    """Of what is not as by default: a field that the specification gains later changes no print."""
    fields = spec.model_dump_json(exclude={"name"}, exclude_defaults=True)
    text = f"{_PRINT_VERSION}\0{fields}\0{epochs}\0{seed}\0{int(shuffle)}"
    return f"{_PRINT_VERSION}:{hashlib.sha256(text.encode()).hexdigest()}"
