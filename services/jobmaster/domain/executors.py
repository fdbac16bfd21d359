"""Which data executors may be asked for rows, by the processes of a job, and how full their buffers are. Pure."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from services.jobmaster.domain.job import JobStatus, RoleKey
from services.jobmaster.domain.vitals import Beat


@dataclass(frozen=True, slots=True)
class Executor:
    """A data executor that runs, as it was last heard."""

    address: str
    incarnation: str
    accepting: bool = True
    """Tasks of other executors."""
    queued: int = 0


def executors_of(status: JobStatus, beats: Mapping[RoleKey, Beat]) -> list[Executor]:
    """Those of one job that have said where they serve and were not asked to go, by number."""
    found = []
    for role in sorted(status.live("data"), key=lambda role: role.index):
        if role.stage != "running" or not role.address:
            continue
        beat = beats.get(role.key)
        serving = beat.serving if beat is not None and beat.incarnation == role.incarnation else None
        accepting, queued = (serving.accepting, serving.queued) if serving is not None else (True, 0)
        found.append(Executor(role.address, role.incarnation, accepting, queued))
    return found


@dataclass(frozen=True, slots=True)
class Buffers:
    """Means over executors and time, from 0 to 1; and how fast the job was meanwhile."""

    fill: float
    """Share of the time in which buffers had all that workers asked for: at 0 these wait, at 1 executors do."""
    cpu_idle: float
    """0 where a core's limit is not known."""
    memory: float
    """0 where there is no limit."""
    samples_per_s: float = 0.0
    """By what its workers have counted; 0: one has come or gone."""


@dataclass(frozen=True, slots=True)
class _Look:
    at: float
    cpu_idle: float
    memory: float
    counted: Mapping[str, tuple[float, float]]
    """By incarnation: when it was heard, and until then a worker's samples, an executor's time waited for."""


@dataclass(slots=True)
class BufferWindow:
    """Buffers since the executors are who they are now."""

    _seen: deque[_Look] = field(default_factory=deque)
    _who: frozenset[str] = frozenset()

    def hear(
        self, now: float, executors: Sequence[Beat], workers: Sequence[Beat], *, cores: float, memory_bytes: int,
        window_s: float,
    ) -> None:
        """Once per look. No executors: they are not all there, and nothing that was seen before counts."""
        who = frozenset(beat.incarnation for beat in executors)
        if who != self._who:
            self._seen.clear()
            self._who = who
        if not executors or any(beat.serving is None for beat in executors):
            return

        def mean(values: Sequence[float]) -> float:
            return min(1.0, max(0.0, sum(values) / len(values)))

        counted = {beat.incarnation: (beat.at, beat.serving.waited_s) for beat in executors if beat.serving}
        self._seen.append(_Look(
            now,
            mean([1.0 - beat.cpu_cores / cores for beat in executors]) if cores else 0.0,
            mean([beat.memory_bytes / memory_bytes for beat in executors]) if memory_bytes else 0.0,
            counted | {beat.incarnation: (beat.at, float(beat.samples)) for beat in workers},
        ))
        while len(self._seen) > 2 and self._seen[1].at <= now - window_s:
            self._seen.popleft()

    def mean(self, *, window_s: float) -> Buffers | None:
        """None until a whole window lies behind."""
        if not self._seen or self._seen[-1].at - self._seen[0].at < window_s:
            return None
        rates = _rates(self._seen[0].counted, self._seen[-1].counted)
        waited = [min(1.0, rates[name]) for name in self._who if name in rates]
        if len(waited) < len(self._who):
            return None
        trained = [rate for name, rate in rates.items() if name not in self._who]
        is_whole = self._seen[0].counted.keys() == self._seen[-1].counted.keys()
        return Buffers(
            1.0 - sum(waited) / len(waited),
            sum(each.cpu_idle for each in self._seen) / len(self._seen),
            sum(each.memory for each in self._seen) / len(self._seen),
            sum(trained) if is_whole else 0.0,
        )

    def clear(self) -> None:
        """What was seen is answered."""
        self._seen.clear()


def _rates(before: Mapping[str, tuple[float, float]], after: Mapping[str, tuple[float, float]]) -> dict[str, float]:
    """Per second, of those that were heard at both times."""
    both = {name: (*before[name], *after[name]) for name in after if name in before}
    return {name: max(0.0, count - had) / (at - since) for name, (since, had, at, count) in both.items() if at > since}
