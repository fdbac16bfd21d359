"""Figures of this process, for Prometheus and the ops page."""

from collections import deque

from recmesh.runtime.clock import Clock
from recmesh.runtime.telemetry import Metrics

WINDOW_S = 10.0


class Figures:
    """Counts what the flusher does. `written` is called from its threads, so it only adds numbers."""

    def __init__(self, metrics: Metrics, *, clock: Clock) -> None:
        self._clock = clock
        self._written = metrics.counter("written_bytes", "Bytes of parts written to storage")
        self._flush_s = metrics.histogram("flush_seconds", "Time from taking a part over to storage")
        self._parts = metrics.counter("parts_flushed", "Parts that reached storage")
        self._memory = metrics.gauge("memory_bytes", "Shared memory held by copies of parts")
        self._replicated = metrics.counter("replicated_bytes", "Bytes of parts copied to a peer's memory")
        self._snapshots = metrics.counter("snapshots", "Snapshots by what became of them", labels=["state"])
        self._recent: deque[tuple[float, int]] = deque(maxlen=4096)
        self.total_written_bytes = 0
        self.total_replicated_bytes = 0
        self.memory_bytes = 0
        self.ended_by_state: dict[str, int] = {}

    def written(self, size_bytes: int) -> None:
        """Bytes went to storage."""
        self._written.inc(size_bytes)
        self.total_written_bytes += size_bytes
        self._recent.append((self._clock.monotonic(), size_bytes))

    def flushed(self, *, seconds: float, size_bytes: int) -> None:
        """A part is on storage."""
        del size_bytes
        self._parts.inc()
        self._flush_s.observe(seconds)

    def memory(self, size_bytes: int) -> None:
        """Bytes held in shared memory now."""
        self.memory_bytes = size_bytes
        self._memory.set(size_bytes)

    def replicated(self, size_bytes: int) -> None:
        """A part was copied to a peer's memory."""
        self._replicated.inc(size_bytes)
        self.total_replicated_bytes += size_bytes

    def ended(self, state: str) -> None:
        """A snapshot became stored, committed, failed or damaged."""
        self._snapshots.labels(state).inc()
        self.ended_by_state[state] = self.ended_by_state.get(state, 0) + 1

    def bytes_per_s(self) -> float:
        """Flush throughput over the last seconds."""
        since = self._clock.monotonic() - WINDOW_S
        return sum(size for at, size in list(self._recent) if at >= since) / WINDOW_S
