"""What an online job is asked to bear and what it bears, measured over a window; what a change of its workers costs."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from services.jobmaster.domain.vitals import Beat

MAX_POINTS = 4096
QUIET_S = 12.0
"""Ends of topics are looked at every 5 s; one that has not grown for so long does not grow."""
STILL_S = 5.0
"""Shorter times without progress are those between heartbeats, and of long batches."""
LEARNING = 0.5
"""Weight of the newest measurement of what a change costs."""


@dataclass(frozen=True, slots=True)
class Flow:
    """Of the time just past."""

    arrivals_per_s: float
    trained_per_s: float
    occupied: float
    """Share of their time in which the workers had something to train; 0: not known of all of them."""
    workers: int = 0
    """That this was measured of."""

    def where(self, *, lag_s: float, backlog: int, window_s: float) -> "Flow":
        """The same, by what waits now. Where more waited through the whole window than came in it, workers had
        something to train all the time: if they waited for it, whatever held it up holds up the next sample, too."""
        waited = lag_s > window_s and backlog > self.arrivals_per_s * window_s and self.trained_per_s > 0
        return replace(self, occupied=1.0) if waited else self


@dataclass(slots=True)
class FlowWindow:
    """Arrivals by the ends of topics, training by each worker's own counts."""

    _ends: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=MAX_POINTS))
    _partitions: int = 0
    _workers: dict[str, deque[tuple[float, int, float]]] = field(default_factory=dict)
    """By incarnation: when it was heard, what it had trained, and for how long it had had something to train."""

    def hear(self, now: float, *, arrived: int, partitions: int, workers: Sequence[Beat], window_s: float) -> None:
        """Once per look. arrived: messages that ever came, on so many partitions."""
        if partitions != self._partitions or (self._ends and arrived < self._ends[-1][1]):
            self._ends.clear()
            self._partitions = partitions
        if not self._ends or arrived != self._ends[-1][1] or now - self._ends[-1][0] >= QUIET_S:
            self._ends.append((now, arrived))
        while len(self._ends) > 2 and self._ends[1][0] <= now - window_s:
            self._ends.popleft()
        heard = {beat.incarnation: beat for beat in workers}
        self._workers = {name: self._workers.get(name) or deque(maxlen=MAX_POINTS) for name in heard}
        for name, points in self._workers.items():
            beat = heard[name]
            if points and (beat.at <= points[-1][0] or beat.samples < points[-1][1]):
                continue
            points.append((beat.at, beat.samples, beat.occupied_s))
            while len(points) > 2 and points[1][0] <= beat.at - window_s:
                points.popleft()

    def mean(self) -> Flow | None:
        """None until something was seen to come, or not to come."""
        if len(self._ends) < 2:
            return None
        (began, before), (ended, after) = self._ends[0], self._ends[-1]
        trained = capacity = 0.0
        seen = 0
        for points in self._workers.values():
            if len(points) < 2:
                continue
            (at, samples, occupied_s), (then, more, longer_s) = points[0], points[-1]
            trained += (more - samples) / (then - at)
            if longer_s > occupied_s and more > samples:
                capacity += (more - samples) / (longer_s - occupied_s)
                seen += 1
        is_whole = seen == len(self._workers) and capacity > 0      # of one without work nothing is known
        occupied = min(1.0, trained / capacity) if is_whole else 0.0
        return Flow((after - before) / (ended - began), trained, occupied, len(self._workers))

    def restart_workers(self) -> None:
        """Their number changes: what they did before says nothing of what they do after."""
        self._workers.clear()


@dataclass(slots=True)
class ChangeCost:
    """A change of the number of workers, while it is carried out."""

    began: float
    grows: bool
    still_s: float = 0.0
    """The longest time in which nobody trained, though there was work."""
    _work_since: float | None = None

    def hear(self, now: float, *, has_work: bool, trained_at: float) -> None:
        """Once per look. trained_at: when some worker's samples last grew; heartbeats come seconds apart."""
        if not has_work:
            self._work_since = None
            return
        self._work_since = now if self._work_since is None else self._work_since
        still_s = now - max(trained_at, self._work_since, self.began)
        if still_s > STILL_S:
            self.still_s = max(self.still_s, still_s)


def learned(before: float, measured: float) -> float:
    """A moving mean; the first measurement stands as it is."""
    return measured if before <= 0 else before + LEARNING * (measured - before)
