"""How far jobs are behind their topics: measured every few seconds, told, and shown."""

from collections.abc import Callable, Mapping

from recmesh.runtime.clock import Clock
from recmesh.runtime.errors import MeshError
from recmesh.runtime.events import Event
from recmesh.runtime.events.catalog import TOPIC_OBSERVED, PartitionObserved, TopicObserved
from recmesh.runtime.lifecycle import Loop
from recmesh.runtime.telemetry import Metrics, get_logger
from services.shardsvc.app.runs import RunProgress
from services.shardsvc.app.streaming import Streams

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
        self, streams: Streams, latest: Mapping[str, RunProgress], *, clock: Clock,
        emit: Callable[[Event[TopicObserved]], object],
    ) -> None:
        """`latest`: jobs whose runs are open, as they were when last looked at."""
        self._streams, self._latest, self._clock, self._emit = streams, latest, clock, emit
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
                lags = await self._streams.measure(job_id, run.view)
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
        self._streams.forget_lags(set(self._latest))
