"""How far jobs are behind their topics: measured every few seconds, told, and shown."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from recmesh.runtime.clock import Clock
from recmesh.runtime.errors import MeshError
from recmesh.runtime.events import Event
from recmesh.runtime.events.catalog import TOPIC_OBSERVED, PartitionObserved, TopicObserved
from recmesh.runtime.lifecycle import Loop
from recmesh.runtime.telemetry import Metrics, get_logger
from services.shardsvc.app.runs import RunProgress
from services.shardsvc.app.streaming import Streams
from services.shardsvc.app.tasklog import TaskLog
from services.shardsvc.domain import alignment
from services.shardsvc.domain.alignment import Lag
from services.shardsvc.domain.lease import View

EVERY_S = 5.0
MOST_TOLD = 4096
"""Partitions in one event."""
_metrics = Metrics("shardsvc")
_messages = _metrics.gauge(
    "topic_lag_messages", "Messages of a partition that a job has not trained", labels=("job", "partition")
)
_seconds = _metrics.gauge(
    "topic_lag_seconds", "Age of the oldest message of a partition that a job has not trained",
    labels=("job", "partition"),
)
_log = get_logger(__name__)


class Lags:
    """Looks at all jobs with topics whose leases this replica sweeps."""

    name = "lags"

    def __init__(
        self, streams: Streams, tasks: TaskLog, latest: Mapping[str, RunProgress], *, clock: Clock,
        emit: Callable[[Event[TopicObserved]], object],
    ) -> None:
        """`latest`: jobs whose runs are open, as they were when last looked at."""
        self._streams, self._tasks, self._latest, self._clock, self._emit = streams, tasks, latest, clock, emit
        self.known: dict[str, Sequence[Lag]] = {}
        """By job, as they were when last measured."""
        self._shown: set[tuple[str, str]] = set()
        self._loop = Loop(self.name, self.look, clock=clock)

    async def start(self) -> None:
        """Begins to look."""
        await self._loop.start()

    async def stop(self) -> None:
        """Looks no more."""
        await self._loop.stop()

    async def look(self) -> float:
        """Once at every job; seconds until the next look."""
        for job_id, run in list(self._latest.items()):
            try:
                lags = self.known[job_id] = await self._measured(job_id, run.view)
            except MeshError as error:
                _log.info("job %s: the lag of its topics is not known: %s", job_id, error.message)
                continue
            for lag in lags:
                _messages.labels(job_id, lag.uri).set(lag.end - lag.offset)
                _seconds.labels(job_id, lag.uri).set(lag.lag_s)
                self._shown.add((job_id, lag.uri))
            if lags:
                told = [
                    PartitionObserved(partition=lag.uri, offset=lag.offset, end=lag.end, lag_s=lag.lag_s,
                                      state="assigned" if lag.assigned else "unassigned")
                    for lag in lags[:MOST_TOLD]
                ]
                data = TopicObserved(at=self._clock.now(), lag_s=max(lag.lag_s for lag in lags), partitions=told)
                self._emit(Event(TOPIC_OBSERVED, job_id, data))
        self._forget()
        return EVERY_S

    def _forget(self) -> None:
        """Gauges of jobs that have ended would stand for ever."""
        for job_id, uri in [key for key in self._shown if key[0] not in self._latest]:
            self._shown.discard((job_id, uri))
            _messages.remove(job_id, uri)
            _seconds.remove(job_id, uri)
        self.known = {job_id: lags for job_id, lags in self.known.items() if job_id in self._latest}

    async def _measured(self, job_id: str, view: View) -> Sequence[Lag]:
        journal, follower = await self._tasks.journal(job_id), self._streams.follower(job_id)
        if follower is None or not journal.tags:
            return ()
        oldest, now, found = alignment.trained_to(journal.line, view.trained_to), self._clock.now(), []
        for place, at in sorted(journal.offsets.items()):
            offset = oldest.get(place, at)
            end, age_s = max(follower.ends.get(place, offset), offset), 0.0
            if offset < end:
                age_s = await asyncio.to_thread(partial(follower.age_of, place, offset, now=now))
            found.append(Lag(place[1], offset, end, age_s, place in oldest))
        return found
