"""Tables of what brain learned, weighed, decided, and what came of it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from recmesh.client.explanations import Change, Fit, FitPoint, FrontPoint, Look, ScheduleStep, Similar
from recmesh.explain import words
from recmesh.runtime.ops import Cell, Tone, text
from recmesh.runtime.ops.panels import Value

Clock = Callable[[float], str]
"""A moment in words."""

VERDICTS = {"kept": Tone.OK, "taken back": Tone.WARN, "cancelled": Tone.IDLE}
REASONS = {
    "GROW": Tone.OK, "FREE_GAIN": Tone.OK, "SHRINK": Tone.OK, "EXPLORE": Tone.OK, "STARTED": Tone.OK,
    "KEEP": Tone.IDLE, "TOO_SMALL_A_GAIN": Tone.IDLE, "PINNED": Tone.IDLE,
    "UNCERTAIN": Tone.WARN, "NO_ROOM": Tone.WARN, "OVER_QUOTA": Tone.WARN, "QUEUED": Tone.WARN,
}  # fmt: skip
"""What is better now, what stays for good reason, and what someone may want to look at."""


@dataclass(frozen=True, slots=True)
class Sheet:
    """Columns and rows."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Value]]

    def texts(self) -> list[list[str]]:
        """The rows without colours."""
        return [[each.text if isinstance(each, Cell) else str(each) for each in row] for row in self.rows]


def similar(jobs: Sequence[Similar]) -> Sheet:
    """Past jobs that a plan was made from."""
    rows = [[each.job_id, f"{each.similarity:.2f}", each.why] for each in jobs]
    return Sheet(["like job", "similarity", "why"], rows)


def step(step_s: dict[str, float]) -> Sheet:
    """Where the time of a step goes."""
    total = sum(step_s.values()) or 1.0
    rows: list[list[Value]] = [
        [name, Cell(f"{part / total:.0%}", share=part / total), text.duration(part) if part else ""]
        for name, part in step_s.items()
    ]
    return Sheet(["part", "share", "time"], rows)


def fit(found: Fit, at: Clock) -> Sheet:
    """Each configuration's geometric mean of what was measured beside what was predicted, samples/s."""
    measured: dict[tuple[float, ...], list[FitPoint]] = {}
    for point in found.points:
        measured.setdefault((point.workers, point.worker_cpu, point.ps, point.ps_cpu), []).append(point)
    return Sheet(
        ["workers", "worker CPU", "ps", "PS CPU", "times", "measured", "predicted", "±", "error", "last at"],
        [[*(f"{each:g}" for each in key), *_fitted(points, at)] for key, points in sorted(measured.items())],
    )


def _fitted(points: Sequence[FitPoint], at: Clock) -> list[str]:
    newest = max(points, key=lambda each: each.at)
    rates = [each.measured for each in points if each.measured > 0]
    mean = math.exp(math.fsum(map(math.log, rates)) / len(rates)) if rates else 0.0
    spread = f"{math.expm1(newest.log_sd):.0%}" if newest.predicted and newest.log_sd < 100 else ""
    error = f"{newest.predicted / mean - 1:+.1%}" if mean and newest.predicted else ""
    return [str(len(points)), words.rate(mean), words.rate(newest.predicted), spread, error, at(newest.at)]


def coefficients(found: Fit) -> str:
    """`gradient 0.00081, ...`; those at 0 bring nothing."""
    return ", ".join(f"{name} {value:.3g}" for name, value in found.coefficients.items())


def schedule(steps: Sequence[ScheduleStep], at: Clock) -> Sheet:
    """An online job's, one row for each stretch with the same number of workers."""
    rows: list[list[Value]] = []
    for place, each in enumerate(steps):
        if place and steps[place - 1].workers == each.workers:
            continue
        rows.append([
            at(each.at), words.rate(each.demand), words.rate(each.capacity),
            Cell(str(each.workers), Tone.WARN if each.unmet else Tone.PLAIN), each.why,
        ])
    return Sheet(["from", "planned for", "capacity", "workers", "why"], rows)


def front(points: Sequence[FrontPoint]) -> Sheet:
    """Candidates by their cost."""
    return Sheet(
        ["", "configuration", "cost", "gain", "samples/s", "reason", "why"],
        [
            [
                Cell("chosen", Tone.OK) if each.is_chosen else "", words.configuration(each), f"{each.cost:+.3g}",
                f"{each.gain:+,.3g}" if abs(each.gain) < 100 else f"{each.gain:+,.0f}", words.rate(each.samples_per_s),
                each.reason, each.why,
            ]
            for each in sorted(points, key=lambda point: (point.cost, point.gain))
        ],
    )  # fmt: skip


def decisions(looks: Sequence[Look], at: Clock, *, job: Callable[[str], Value] | None = None) -> Sheet:
    """What was decided and why; with `job` a column for it."""
    return Sheet(
        ["at", *(["job"] if job else []), "planner", "reason", "change", "speed", "expected", "why"],
        [
            [
                at(each.at), *([job(each.job_id)] if job else []), each.planner,
                Cell(each.reason, REASONS.get(each.reason, Tone.PLAIN)),
                words.difference(each.now, each.chosen), words.rate(each.samples_per_s),
                words.rate(each.expected_samples_per_s), each.why,
            ]
            for each in looks
        ],
    )  # fmt: skip


def changes(found: Sequence[Change], at: Clock, *, job: Callable[[str], Value] | None = None) -> Sheet:
    """What came of decisions, samples/s; with `job` a column for it."""
    return Sheet(
        ["at", *(["job"] if job else []), "change", "before", "expected", "after", "overhead", "verdict", "why"],
        [
            [
                at(each.at), *([job(each.job_id)] if job else []), words.difference(each.before, each.after),
                words.rate(each.rate_before), words.rate(each.rate_expected), words.rate(each.rate_after),
                text.duration(each.overhead_s) if each.overhead_s else "",
                Cell(each.verdict, VERDICTS.get(each.verdict, Tone.PLAIN)), each.why,
            ]
            for each in found
        ],
    )  # fmt: skip
