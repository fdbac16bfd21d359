"""Measured configurations, drawn from the profiles of a running job."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import exp, log

from recmesh.plugins.planning import Allocation
from services.brain.domain.model import Profile


class Mode(StrEnum):
    """How workers wait for each other."""

    SYNC = "sync"
    ASYNC = "async"


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Mean seconds of one step of one worker, by what it waited for; 0 is "not measured"."""

    data_s: float = 0.0
    pull_s: float = 0.0
    compute_s: float = 0.0
    push_s: float = 0.0
    ps_busy_s: float = 0.0
    """Of pull and push: the time a PS itself was at work."""

    @property
    def total_s(self) -> float:
        """One step; the PS's own time lies within pull and push."""
        return self.data_s + self.pull_s + self.compute_s + self.push_s


@dataclass(frozen=True, slots=True)
class Observation:
    """One configuration and what it gave."""

    workers: int
    ps: int
    samples_per_s: float
    worker_cpu: float = 1.0
    ps_cpu: float = 1.0
    batch: float = 1.0
    """Samples of one step of one worker."""
    at: float = 0.0
    """Seconds; when its last window ended."""
    mode: Mode = Mode.ASYNC
    hardware: str = ""
    """Kind of the workers' accelerator; "" is CPU."""
    breakdown: Breakdown | None = None
    windows: float = 1.0
    """How many windows it is the mean of."""

    @property
    def step_s(self) -> float:
        """T = w·m/Ψ: in this time every worker does one step."""
        return self.workers * self.batch / self.samples_per_s

    @property
    def configuration(self) -> tuple[int, int, float, float, float, Mode, str]:
        """What must be equal for two observations to be of the same thing."""
        return (self.workers, self.ps, self.worker_cpu, self.ps_cpu, self.batch, self.mode, self.hardware)

    @property
    def allocation(self) -> Allocation:
        """The same as a planner writes it."""
        return Allocation(self.workers, self.ps, self.worker_cpu, self.ps_cpu, gpu_kind=self.hardware)


def observations(
    profiles: Iterable[Profile],
    *,
    mode: Mode = Mode.ASYNC,
    hardware: str = "",
    merged_windows: int = 8,
) -> list[Observation]:
    """One observation per run of steady windows, in the order of time.

    The first window of a configuration holds the change itself (or the job's start), and the last one may hold the
    next, so both are left out; the last of all is kept, since no change has followed it. A long run is cut after
    `merged_windows`: a cluster that changes in its midst must not vanish in a mean. Windows in which nothing was
    trained say nothing.
    """
    runs: list[list[Observation]] = []
    for profile in sorted(profiles, key=lambda each: each.at):
        seen = _of(profile, mode=mode, hardware=hardware)
        if runs and runs[-1][-1].configuration == seen.configuration:
            runs[-1].append(seen)
        else:
            runs.append([seen])
    found: list[Observation] = []
    for index, run in enumerate(runs):
        last = len(run) if index == len(runs) - 1 else len(run) - 1
        steady = [window for window in run[1:last] if window.samples_per_s > 0]
        found += [merged(steady[i : i + merged_windows]) for i in range(0, len(steady), merged_windows)]
    return found


def merged(run: Sequence[Observation]) -> Observation:
    """The mean of windows of one configuration: geometric for the speed, as errors are relative."""
    total = sum(each.windows for each in run)
    newest = max(run, key=lambda each: each.at)
    speed = exp(sum(each.windows * log(each.samples_per_s) for each in run) / total)
    parts = [(each.windows, each.breakdown) for each in run if each.breakdown is not None]
    breakdown = None
    if parts:
        weight = sum(windows for windows, _ in parts)
        breakdown = Breakdown(
            *(
                sum(windows * float(getattr(part, name)) for windows, part in parts) / weight
                for name in ("data_s", "pull_s", "compute_s", "push_s", "ps_busy_s")
            )
        )
    return Observation(
        newest.workers,
        newest.ps,
        speed,
        newest.worker_cpu,
        newest.ps_cpu,
        newest.batch,
        newest.at,
        newest.mode,
        newest.hardware,
        breakdown,
        total,
    )


def _of(profile: Profile, *, mode: Mode, hardware: str) -> Observation:
    workers, ps, batch = max(1, profile.workers), max(1, profile.ps), profile.batch_size or 1
    step_s = workers * batch / profile.samples_per_s if profile.samples_per_s > 0 else 0.0
    breakdown = Breakdown(
        profile.data_s,
        profile.pull_s,
        profile.compute_s,
        profile.push_s,
        min(profile.ps_busy_share * step_s, profile.pull_s + profile.push_s),
    )
    return Observation(
        workers,
        ps,
        profile.samples_per_s,
        profile.worker_cpu or 1.0,
        profile.ps_cpu or 1.0,
        batch,
        profile.at,
        mode,
        hardware,
        breakdown if breakdown.compute_s > 0 else None,
    )
