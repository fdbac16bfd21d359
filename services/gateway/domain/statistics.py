"""Counts and times of a model's requests: totals for the protocol, rates and percentiles for people."""

import math
from collections import Counter, deque
from dataclasses import dataclass, field

LOWEST_S = 50e-6
GROWTH = 1.25
PHASES = ("queue", "input", "infer", "output")
"""Of an inference, by the names of the statistics extension."""
BUCKETS = 72
"""50 µs · 1.25^71 is over 6 minutes; a percentile is right within 12 %."""


@dataclass(slots=True)
class Histogram:
    """Latencies in buckets that grow geometrically."""

    counts: list[int] = field(default_factory=lambda: [0] * BUCKETS)
    total: int = 0

    def add(self, seconds: float) -> None:
        """Count one latency."""
        index = 0 if seconds <= LOWEST_S else math.ceil(math.log(seconds / LOWEST_S, GROWTH))
        self.counts[min(index, BUCKETS - 1)] += 1
        self.total += 1

    def quantile(self, share: float) -> float:
        """The latency that `share` of the requests did not exceed, in seconds; 0 with no requests."""
        rank = max(1, math.ceil(self.total * share))
        seen = 0
        for index, count in enumerate(self.counts):
            seen += count
            if seen >= rank and count:
                return LOWEST_S * GROWTH**index
        return 0.0


@dataclass(slots=True)
class Duration:
    """How often, and how long all together."""

    count: int = 0
    ns: int = 0

    def add(self, ns: int) -> None:
        """Count one more."""
        self.count += 1
        self.ns += max(0, ns)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one request went."""

    at: float
    model: str
    version: str
    samples: int
    total_s: float
    times: "Times | None" = None
    error: str = ""
    copy: bool = False
    """Sent to a shadow; nobody waited for it."""

    @property
    def reason(self) -> str:
        """Of a failure, for programs; empty without one."""
        return self.error.partition(":")[0]


@dataclass(frozen=True, slots=True)
class Times:
    """Where one inference's time went, in nanoseconds."""

    queue_ns: int
    input_ns: int
    compute_ns: int
    output_ns: int
    executions: int = 1
    """1 for one of the requests that were run together, 0 for the others."""
    fresh_version: int = 0
    """Of a model that follows a job: the version of rows and weights that answered."""

    @property
    def phases(self) -> dict[str, int]:
        """By the names of the statistics extension."""
        return dict(zip(PHASES, (self.queue_ns, self.input_ns, self.compute_ns, self.output_ns), strict=True))


@dataclass(slots=True)
class ModelStatistics:
    """All of one model version's requests since the gateway started."""

    success: Duration = field(default_factory=Duration)
    fail: Duration = field(default_factory=Duration)
    queue: Duration = field(default_factory=Duration)
    compute_input: Duration = field(default_factory=Duration)
    compute_infer: Duration = field(default_factory=Duration)
    compute_output: Duration = field(default_factory=Duration)
    samples: int = 0
    executions: int = 0
    last_at: float = 0.0
    latency: Histogram = field(default_factory=Histogram)
    failures: "Counter[str]" = field(default_factory=Counter)
    """By reason."""

    def add(self, outcome: Outcome) -> None:
        """Count one request."""
        total_ns = int(outcome.total_s * 1e9)
        self.last_at = outcome.at
        if outcome.error:
            self.fail.add(total_ns)
            self.failures[outcome.reason] += 1
            return
        self.success.add(total_ns)
        if outcome.times is not None:
            self.queue.add(outcome.times.queue_ns)
            self.compute_input.add(outcome.times.input_ns)
            self.compute_infer.add(outcome.times.compute_ns)
            self.compute_output.add(outcome.times.output_ns)
        self.samples += outcome.samples
        self.executions += 1 if outcome.times is None else outcome.times.executions
        self.latency.add(outcome.total_s)


@dataclass(slots=True)
class RateCounter:
    """Requests per window of `step_s`, aligned to the clock; windows without requests are zeros, not gaps."""

    step_s: float
    window: int = -1
    count: int = 0
    closed: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=360))
    unsent: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=360))

    def add(self, now: float) -> None:
        """Count one request."""
        self.advance(now)
        self.count += 1

    def advance(self, now: float) -> None:
        """Close the windows that ended before `now`."""
        current = int(now // self.step_s)
        if self.window < 0:
            self.window = current
        if current - self.window > 360:  # asleep for long: what is older than the memory is dropped
            self._close(self.window)
            self.window, self.count = current - 360, 0
        while self.window < current:
            self._close(self.window)
            self.window, self.count = self.window + 1, 0

    def take(self, now: float) -> list[tuple[float, float]]:
        """(start, requests per second) of each window that ended since the last call."""
        self.advance(now)
        points = list(self.unsent)
        self.unsent.clear()
        return points

    def _close(self, window: int) -> None:
        point = (window * self.step_s, self.count / self.step_s)
        self.closed.append(point)
        self.unsent.append(point)
