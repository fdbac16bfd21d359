"""The figures of one run, from one definition each: docs/reference/simulate.md repeats them in words."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from recmesh.plugins.planning import Floats
from services.brain.simulator.run import Phase, Run
from services.brain.simulator.scenario import Outcome

LARGE_CPU = 100.0
"""Jobs that ask for so many cores or more are counted apart, as DLRover-RM does."""


@dataclass(frozen=True, slots=True)
class Figures:
    """NaN where nothing is to be measured: no job ended, none had a deadline."""

    jobs: int
    ended: int
    jct_mean_s: float
    """Job completion time: from arrival to the end, waiting included; of jobs that succeeded."""
    jct_median_s: float
    jct_p90_s: float
    jct_p99_s: float
    makespan_s: float
    """From the first arrival to the last end."""
    wait_mean_s: float
    """From arrival until there was room."""
    jcr: float
    """Job completion rate: succeeded / submitted."""
    jcr_small: float
    """Of jobs whose user asked for less than 100 cores."""
    jcr_large: float
    cur: float
    """CPU utilisation rate: core-seconds used / core-seconds held by jobs."""
    mur: float
    """Memory utilisation rate, alike."""
    allocated: float
    """Core-seconds held / those of the cluster until the makespan."""
    deadlines_met: float
    lost: float
    """Samples trained and rolled back / samples trained."""
    changes_per_job: float
    paused_s_per_job: float
    faults_per_job: float
    no_node: int
    """Decisions that fitted the sum of what was free, and no nodes."""

    def document(self) -> dict[str, float | None]:
        """For JSON, where NaN is null."""
        return {name: None if isinstance(value, float) and math.isnan(value) else value
                for name, value in asdict(self).items()}  # fmt: skip


def figures(outcome: Outcome) -> Figures:
    """Of one policy's run."""
    runs = outcome.runs
    ended = [run for run in runs if run.phase is Phase.SUCCEEDED]
    times = completion_times(ended)
    first = min((run.job.arrival_s for run in runs), default=0.0)
    last = max((run.ended for run in ended), default=math.nan)
    begun = [run.started - run.job.arrival_s for run in runs if not math.isnan(run.started)]
    held_cpu, held_memory = _areas(outcome.held)
    used_cpu, used_memory = _areas(outcome.used)
    dated = [run for run in runs if run.job.deadline_s is not None]
    in_time = [run for run in dated if run.phase is Phase.SUCCEEDED and run.ended <= (run.job.deadline_s or 0.0)]
    trained = sum(run.trained for run in runs)
    return Figures(
        jobs=len(runs),
        ended=len(ended),
        jct_mean_s=float(times.mean()) if len(times) else math.nan,
        jct_median_s=_percentile(times, 50),
        jct_p90_s=_percentile(times, 90),
        jct_p99_s=_percentile(times, 99),
        makespan_s=last - first,
        wait_mean_s=float(np.mean(begun)) if begun else math.nan,
        jcr=_share(len(ended), len(runs)),
        jcr_small=_succeeded([run for run in runs if run.job.asked.resources.cpu < LARGE_CPU]),
        jcr_large=_succeeded([run for run in runs if run.job.asked.resources.cpu >= LARGE_CPU]),
        cur=_share(used_cpu, held_cpu),
        mur=_share(used_memory, held_memory),
        allocated=_share(held_cpu, outcome.total.cpu * (outcome.ended_at - first)),
        deadlines_met=_share(len(in_time), len(dated)),
        lost=_share(sum(run.lost for run in runs), trained),
        changes_per_job=_share(sum(run.changes for run in runs), len(runs)),
        paused_s_per_job=_share(sum(run.paused_s for run in runs), len(runs)),
        faults_per_job=_share(sum(run.faults for run in runs), len(runs)),
        no_node=sum(run.no_node for run in runs),
    )


def completion_times(runs: Sequence[Run]) -> Floats:
    """Seconds from arrival to the end, of those that succeeded, in their order."""
    times = [run.ended - run.job.arrival_s for run in runs if run.phase is Phase.SUCCEEDED]
    return np.array(times, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Course:
    """Shares of the cluster's cores over time: means of equal spans."""

    at_s: Floats
    """Middle of each span."""
    held: Floats
    used: Floats


def course(outcome: Outcome, *, spans: int = 200) -> Course:
    """From the first event to the last."""
    edges = np.linspace(0.0, max(outcome.ended_at, 1.0), spans + 1)
    capacity = outcome.total.cpu * np.diff(edges)
    held, used = (np.diff(_until(edges, rows)) / capacity for rows in (outcome.held, outcome.used))
    return Course((edges[1:] + edges[:-1]) / 2, held, used)


def _until(edges: Floats, rows: Sequence[tuple[float, float, float, float]]) -> Floats:
    """Core-seconds from 0 to each edge."""
    if not rows:
        return np.zeros_like(edges)
    table = np.array(rows, dtype=np.float64)
    at = np.concatenate([table[:, 0], table[:, 1]])
    step = np.concatenate([table[:, 2], -table[:, 2]])
    order = np.argsort(at, kind="stable")
    at, level = at[order], np.cumsum(step[order])
    area = np.concatenate([[0.0], np.cumsum(level[:-1] * np.diff(at))])
    found: Floats = np.interp(edges, at, area)
    return found


def _areas(rows: Sequence[tuple[float, float, float, float]]) -> tuple[float, float]:
    if not rows:
        return 0.0, 0.0
    table = np.array(rows, dtype=np.float64)
    spans = table[:, 1] - table[:, 0]
    return float(spans @ table[:, 2]), float(spans @ table[:, 3])


def _percentile(times: Floats, percent: float) -> float:
    return float(np.percentile(times, percent)) if len(times) else math.nan


def _succeeded(runs: Sequence[Run]) -> float:
    return _share(sum(run.phase is Phase.SUCCEEDED for run in runs), len(runs))


def _share(part: float, whole: float) -> float:
    return part / whole if whole else math.nan
