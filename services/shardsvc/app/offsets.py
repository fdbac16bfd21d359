"""What of topics no rollback will train again: told to them, and let go of here."""

import asyncio
from functools import partial

from recmesh.data.topics import topic_of
from recmesh.formats import IntervalSet
from recmesh.runtime.errors import Aborted
from recmesh.runtime.telemetry import get_logger
from services.shardsvc.app.following import Opened
from services.shardsvc.app.tasklog import TaskLog
from services.shardsvc.domain import alignment

TRIM_TASKS = 4096
"""So many tasks of a line are done for ever before they leave the log."""
_log = get_logger(__name__)


class Offsets:
    """Commits of all jobs with topics. Any replica may make them; later ones take the place of earlier ones."""

    def __init__(self, tasks: TaskLog, *, opened: Opened = topic_of) -> None:
        self._tasks, self._opened = tasks, opened

    async def commit(self, job_id: str, done: IntervalSet) -> int:
        """`done`: of the oldest snapshot that a rollback may fall back to. How many partitions were told.

        Errors as of `Topic`; partitions of other sources are told then all the same when it is called again.
        """
        journal = await self._tasks.journal(job_id, fresh=True)
        begun = journal.begun
        if begun is None or not journal.tags:
            return 0
        unfinished = alignment.unfinished(journal.line, done)
        offsets = {place: unfinished.get(place, at) for place, at in journal.offsets.items()}
        sources = [source for stream in begun.spec.streams for source in stream.sources]
        least: dict[tuple[str, str, str], int] = {}         # of sources with a group and a partition in common
        for (view, uri), offset in offsets.items():
            key = sources[view].servers, sources[view].group, uri
            least[key] = min(offset, least.get(key, offset))
        for view, source in enumerate(sources):
            mine = {uri: least[source.servers, source.group, uri] for of, uri in offsets if of == view}
            if mine:
                await asyncio.to_thread(partial(self._opened(source).commit, source.group or job_id, mine))
        return len(offsets)

    async def trim(self, job_id: str, done: IntervalSet) -> None:
        """Once there is enough of it, what is done for ever leaves the log. Whoever else writes to it goes first."""
        journal = await self._tasks.journal(job_id, fresh=True)
        base = journal.trimmable(alignment.first_gap(done))
        if journal.begun is None or journal.line.tasks - journal.line.tasks_behind(base) < TRIM_TASKS:
            return
        try:
            trimmed = await self._tasks.trim(job_id, base)
        except Aborted:
            return
        _log.info("job %s: %d tasks below position %d left its log", job_id, trimmed, base)
