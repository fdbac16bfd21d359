"""How far jobs are behind their topics, and how fast messages arrive there: measured every few seconds, told, shown."""

import asyncio
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any

from recmesh.data.topics import topic_of
from recmesh.runtime.clock import Clock
from recmesh.runtime.errors import MeshError
from recmesh.runtime.events import Event
from recmesh.runtime.events.catalog import TOPIC_OBSERVED, PartitionObserved, TopicObserved
from recmesh.runtime.events.rates import rates_events
from recmesh.runtime.lifecycle import Loop
from recmesh.runtime.telemetry import Metrics, get_logger
from recmesh.spec.dataset import StreamSource
from services.shardsvc.app.following import Follower, Opened
from services.shardsvc.app.runs import RunProgress
from services.shardsvc.app.tasklog import TaskLog
from services.shardsvc.domain import alignment
from services.shardsvc.domain.alignment import Lag, Place
from services.shardsvc.domain.arrivals import LONGEST_GAP_S, STEP_S, Arrivals, Listing
from services.shardsvc.domain.lease import View

EVERY_S = 5.0
LIMIT_S = 60.0
"""For one job."""
MOST_TOLD = 4096
"""Partitions in one event."""
_metrics = Metrics("shardsvc")
_messages = _metrics.gauge(
    "topic_lag_messages", "Messages of a partition that a job has not trained", labels=("job_id", "partition")
)
_seconds = _metrics.gauge(
    "topic_lag_seconds", "Age of the oldest message of a partition that a job has not trained",
    labels=("job_id", "partition"),
)
_log = get_logger(__name__)


class Lags:
    """Looks at all jobs with topics whose leases this replica sweeps."""

    name = "lags"

    def __init__(
        self, tasks: TaskLog, latest: Mapping[str, RunProgress], *, clock: Clock,
        emit: Callable[[Event[Any]], object], opened: Opened = topic_of,
    ) -> None:
        """`latest`: jobs whose runs are open, as they were when last looked at."""
        self._tasks, self._latest, self._clock, self._emit, self._opened = tasks, latest, clock, emit, opened
        self._followers: dict[str, Follower] = {}
        self._arrivals = Arrivals()
        self._listings: dict[Hashable, asyncio.Task[Listing]] = {}
        """Of this look; jobs that share a topic ask for it once."""
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
        """At every job at once; seconds until the next look."""
        try:
            await asyncio.gather(*(self._look_at(job_id, run) for job_id, run in list(self._latest.items())))
        finally:
            listings, self._listings = list(self._listings.values()), {}
            for task in listings:
                task.cancel()                   # those that still go on are of jobs that were given up
            await asyncio.gather(*listings, return_exceptions=True)
        self._tell_arrivals([task.result() for task in listings if not task.cancelled() and not task.exception()])
        self._forget()
        return EVERY_S

    def _tell_arrivals(self, listings: Sequence[Listing]) -> None:
        for event in rates_events("shardsvc", STEP_S, self._arrivals.look_at_all(listings)):
            self._emit(event)
        self._arrivals.forget(before=self._clock.now() - 2 * LONGEST_GAP_S)

    async def _look_at(self, job_id: str, run: RunProgress) -> None:
        try:
            async with asyncio.timeout(LIMIT_S):
                lags = self.known[job_id] = await self._measured(job_id, run.view)
        except (MeshError, TimeoutError) as error:
            _log.info("job %s: the lag of its topics is not known: %s", job_id, error)
            return
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

    async def _measured(self, job_id: str, view: View) -> Sequence[Lag]:
        journal = await self._tasks.journal(job_id)
        if journal.begun is None or not journal.tags:
            return ()
        if job_id not in self._followers:
            self._followers[job_id] = Follower(journal.begun.spec, self._opened)
        follower, now, found = self._followers[job_id], self._clock.now(), []
        oldest, ends = alignment.trained_to(journal.line, view.trained_to), await self._ends(follower)
        for place, at in sorted(journal.offsets.items()):
            offset = oldest.get(place, at)
            end, age_s = max(ends.get(place, offset), offset), 0.0
            if offset < end:
                age_s = await asyncio.to_thread(partial(follower.age_of, place, offset, now=now))
            found.append(Lag(place[1], offset, end, age_s, place in oldest))
        return found

    async def _ends(self, follower: Follower) -> dict[Place, int]:
        """One past the newest message of each partition, as it is now."""
        topics = follower.topics()
        found: dict[Place, int] = {}
        asked = [asyncio.ensure_future(self._listing(source)) for source in topics.values()]
        await asyncio.gather(*asked, return_exceptions=True)    # also where one fails: all are looked at
        for view, listing in zip(topics, asked, strict=True):
            found |= {(view, partition.uri): partition.span.end for partition in listing.result().partitions}
        return found

    async def _listing(self, source: StreamSource) -> Listing:
        """Of this look. Whoever asked for it first may be given up meanwhile, and others wait for it all the same."""
        topic = source.servers, source.kafka, source.jetstream, tuple(sorted(source.options.items()))
        if topic not in self._listings:
            self._listings[topic] = asyncio.create_task(asyncio.to_thread(self._listed, source))
        return await asyncio.shield(self._listings[topic])

    def _listed(self, source: StreamSource) -> Listing:
        """Its moment is the middle of the call: ends are of some moment within it."""
        asked = self._clock.now()
        partitions = self._opened(source).partitions()
        at = (asked + self._clock.now()) / 2
        return Listing(source.servers, source.kafka or source.jetstream, at, partitions)

    def _forget(self) -> None:
        """Gauges of what is not there any more would stand for ever."""
        for known in (self.known, self._followers):
            for job_id in [job_id for job_id in known if job_id not in self._latest]:
                del known[job_id]
        there = {(job_id, lag.uri) for job_id, lags in self.known.items() for lag in lags}
        for job_id, uri in self._shown - there:
            _messages.remove(job_id, uri)
            _seconds.remove(job_id, uri)
        self._shown &= there
