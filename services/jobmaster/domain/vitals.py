"""Heartbeats: kept in memory, because the next one is a second away."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from services.jobmaster.domain.job import RoleKey

MAX_WORKS, LEAST_BETWEEN_S = 120, 0.5


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Means per step over the last report interval, in seconds."""

    data_s: float = 0.0
    pull_s: float = 0.0
    compute_s: float = 0.0
    push_s: float = 0.0
    total_s: float = 0.0
    steps: int = 0

    @property
    def worked_s(self) -> float:
        """All steps together, without what the worker waited for its next shard."""
        return self.steps * (self.data_s + self.pull_s + self.compute_s + self.push_s)


@dataclass(frozen=True, slots=True)
class Serving:
    """What a data executor's buffer holds; `forwarded`, `taken` and `decoded` count tasks since its start."""

    queued: int = 0
    held_bytes: int = 0
    limit_bytes: int = 0
    accepting: bool = False
    """Tasks of other executors."""
    forwarded: int = 0
    taken: int = 0
    decoded: int = 0
    waited_s: float = 0.0
    """Since its start: while some call waited for rows that were not decoded yet."""


@dataclass(frozen=True, slots=True)
class Scores:
    """How often predictions came true and not, by bin, ascending; empty bins are left out."""

    bins: tuple[int, ...] = ()
    positives: tuple[int, ...] = ()
    negatives: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Beat:
    """What a process last said of itself; counts are since its start."""

    at: float
    incarnation: str
    gen: int = 0
    samples: int = 0
    step: StepTimes = StepTimes()
    loss: float = 0.0
    auc: float = 0.0
    window_samples: int = 0
    memory_bytes: int = 0
    cpu_s: float = 0.0
    rows: int = 0
    busy_s: float = 0.0
    skipped_nan: int = 0
    bad_records: int = 0
    note: str = ""
    draining: bool = False
    """Its machine, its scheduler or a person asks it to go; it puts its work in order."""
    serving: Serving | None = None
    """Data executors."""
    occupied_s: float = 0.0
    """Workers: while there was something to train."""
    scores: tuple[Scores, ...] = ()
    """By label, of the predictions since the last beat."""
    samples_per_s: float = 0.0
    """Between this beat and an earlier one, at least a second apart."""
    cpu_cores: float = 0.0
    busy_share: float = 0.0
    worked_s: float = 0.0
    """In steps since the process was first heard, waiting for shards aside."""


@dataclass(slots=True)
class Vitals:
    """The newest beat of each place."""

    beats: dict[RoleKey, Beat] = field(default_factory=dict)
    grown: dict[RoleKey, float] = field(default_factory=dict)
    """When the samples of a place last grew."""
    _bases: dict[RoleKey, Beat] = field(default_factory=dict)
    _works: dict[RoleKey, deque[tuple[float, float]]] = field(default_factory=dict)
    """(when, seconds in kernels) of the last beats of the place's process."""

    def hear(self, key: RoleKey, beat: Beat) -> None:
        """Takes a beat in, and derives rates from one at least a second older."""
        base = self._bases.get(key)
        if base is None or base.incarnation != beat.incarnation or beat.samples < base.samples:
            self._bases[key] = base = beat
            self._works[key] = deque(maxlen=MAX_WORKS)
        works = self._works[key]
        if not works or beat.at - works[-1][0] >= LEAST_BETWEEN_S:
            works.append((beat.at, beat.busy_s))
        elapsed_s = beat.at - base.at
        old = self.beats.get(key)
        worked_s = old.worked_s if old is not None and old.incarnation == beat.incarnation else 0.0
        beat = replace(beat, worked_s=worked_s + beat.step.worked_s)
        if old is None or old.incarnation != beat.incarnation or beat.samples > old.samples:
            self.grown[key] = beat.at
        if elapsed_s >= 1.0:
            beat = replace(
                beat,
                samples_per_s=(beat.samples - base.samples) / elapsed_s,
                cpu_cores=max(0.0, beat.cpu_s - base.cpu_s) / elapsed_s,
                busy_share=max(0.0, beat.busy_s - base.busy_s) / elapsed_s,
            )
            self._bases[key] = beat
        elif old is not None and old.incarnation == beat.incarnation:
            beat = replace(
                beat, samples_per_s=old.samples_per_s, cpu_cores=old.cpu_cores, busy_share=old.busy_share
            )
        self.beats[key] = beat

    def forget(self, key: RoleKey) -> Beat | None:
        """The place's process has ended; its last beat."""
        self._bases.pop(key, None)
        self._works.pop(key, None)
        self.grown.pop(key, None)
        return self.beats.pop(key, None)

    def busy_over(self, role: str, window_s: float, *, now: float) -> dict[int, float]:
        """Seconds in kernels per second over about the last `window_s`, by index; of those heard for so long."""
        result = {}
        for (name, index), works in self._works.items():
            recent = [work for work in works if work[0] >= now - 1.5 * window_s]
            if name == role and len(recent) > 1 and recent[-1][0] - recent[0][0] >= 0.8 * window_s:
                (began, before), (ended, after) = recent[0], recent[-1]
                result[index] = max(0.0, after - before) / (ended - began)
        return result

    def of(self, role: str) -> list[Beat]:
        """Beats of all processes of a role."""
        return [beat for (name, _), beat in sorted(self.beats.items()) if name == role]


def weighted(beats: Iterable[Beat], name: str) -> float | None:
    """Mean of `loss` or `auc` over workers, each weighted by the samples in its window; None without any."""
    pairs = [
        (getattr(beat, name), beat.window_samples) for beat in beats
        if beat.window_samples > 0 and (name != "auc" or beat.auc > 0)      # 0: there was one class only
    ]
    total = sum(weight for _, weight in pairs)
    return sum(value * weight for value, weight in pairs) / total if total else None


def mean_step(beats: Iterable[Beat]) -> StepTimes:
    """Means over the workers' steps."""
    steps = [beat.step for beat in beats if beat.step.steps > 0]
    count = sum(step.steps for step in steps)
    if not count:
        return StepTimes()

    def mean(name: str) -> float:
        return sum(float(getattr(step, name)) * step.steps for step in steps) / count

    return StepTimes(
        mean("data_s"), mean("pull_s"), mean("compute_s"), mean("push_s"), mean("total_s"), count
    )


def share_of_calls(beats: Iterable[Beat]) -> float:
    """The part of workers' steps that their calls to parameter servers take; above 1 where calls overlap."""
    step = mean_step(beats)
    return (step.pull_s + step.push_s) / step.total_s if step.total_s > 0 else 0.0
