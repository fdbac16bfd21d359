"""Heartbeats: kept in memory, because the next one is a second away."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from services.jobmaster.domain.job import RoleKey


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Means per step over the last report interval, in seconds."""

    data_s: float = 0.0
    pull_s: float = 0.0
    compute_s: float = 0.0
    push_s: float = 0.0
    total_s: float = 0.0
    steps: int = 0


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
    note: str = ""
    draining: bool = False
    """Its machine asks it to go."""
    samples_per_s: float = 0.0
    """Between this beat and an earlier one, at least a second apart."""
    cpu_cores: float = 0.0
    busy_share: float = 0.0


@dataclass(slots=True)
class Vitals:
    """The newest beat of each place."""

    beats: dict[RoleKey, Beat] = field(default_factory=dict)
    grown: dict[RoleKey, float] = field(default_factory=dict)
    """When the samples of a place last grew."""
    _bases: dict[RoleKey, Beat] = field(default_factory=dict)

    def hear(self, key: RoleKey, beat: Beat) -> None:
        """Takes a beat in, and derives rates from one at least a second older."""
        base = self._bases.get(key)
        if base is None or base.incarnation != beat.incarnation or beat.samples < base.samples:
            self._bases[key] = base = beat
        elapsed_s = beat.at - base.at
        old = self.beats.get(key)
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
        self.grown.pop(key, None)
        return self.beats.pop(key, None)

    def of(self, role: str) -> list[Beat]:
        """Beats of all processes of a role."""
        return [beat for (name, _), beat in sorted(self.beats.items()) if name == role]


def weighted(beats: Iterable[Beat], name: str) -> float | None:
    """Mean of `loss` or `auc` over workers, each weighted by the samples in its window; None without any."""
    pairs = [(getattr(beat, name), beat.window_samples) for beat in beats if beat.window_samples > 0]
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
