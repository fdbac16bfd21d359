"""What a person reads: a table for the terminal, and a page with plots."""

import math
from collections.abc import Mapping, Sequence
from html import escape

import numpy as np

from recmesh.plugins.planning import Floats
from services.brain.simulator import svg
from services.brain.simulator.metrics import Course, Figures, completion_times, course, figures
from services.brain.simulator.scenario import Outcome

COLUMNS = (
    "planner", "mean JCT", "median", "p90", "p99", "makespan", "waited", "JCR", "< 100 CPU", "≥ 100 CPU", "CUR", "MUR",
    "held", "in time", "changes",
)  # fmt: skip


def rows(found: Mapping[str, Figures]) -> list[list[str]]:
    """One row per planner, in the order of COLUMNS."""
    return [
        [
            name,
            *map(span, (each.jct_mean_s, each.jct_median_s, each.jct_p90_s, each.jct_p99_s)),
            span(each.makespan_s), span(each.wait_mean_s),
            *map(percent, (each.jcr, each.jcr_small, each.jcr_large, each.cur, each.mur, each.allocated)),
            percent(each.deadlines_met), "" if math.isnan(each.changes_per_job) else f"{each.changes_per_job:.1f}",
        ]
        for name, each in found.items()
    ]  # fmt: skip


def table(columns: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """Aligned text: names to the left, numbers to the right. Columns without any value are left out."""
    kept = [n for n in range(len(columns)) if not body or any(row[n] for row in body)]
    widths = [max(len(row[n]) for row in [columns, *body]) for n in kept]
    lines = []
    for row in [columns, *body]:
        cells = [row[n].ljust(w) if n == 0 else row[n].rjust(w) for n, w in zip(kept, widths, strict=True)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def against(outcomes: Mapping[str, Outcome]) -> list[str]:
    """How much shorter the mean JCT of the first planner is than each other's, over jobs that both ended."""
    names = list(outcomes)
    mine = _by_job(outcomes[names[0]])
    sentences = []
    for other in names[1:]:
        theirs = _by_job(outcomes[other])
        both = [job for job in mine if job in theirs]
        if not both:
            continue
        ratio = float(np.mean([mine[job] for job in both]) / np.mean([theirs[job] for job in both]))
        word = "shorter" if ratio <= 1 else "longer"
        sentences.append(
            f"{names[0]}: mean JCT {abs(1 - ratio):.1%} {word} than {other} (over {len(both):,} jobs that both ended)"
        )
    return sentences


def page(title: str, outcomes: Mapping[str, Outcome], setting: Mapping[str, str]) -> str:
    """One HTML file that needs nothing else."""
    found = {name: figures(outcome) for name, outcome in outcomes.items()}
    colours = dict(zip(outcomes, [svg.COLOURS[n % len(svg.COLOURS)] for n in range(len(outcomes))], strict=True))
    body = rows(found)
    kept = [n for n in range(len(COLUMNS)) if any(row[n] for row in body)]
    head = "".join(f"<th>{escape(COLUMNS[n])}</th>" for n in kept)
    lines = "".join("<tr>" + "".join(f"<td>{escape(row[n])}</td>" for n in kept) + "</tr>" for row in body)
    facts = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in setting.items())
    sentences = "".join(f"<li>{escape(text)}</li>" for text in against(outcomes))
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}</style>'
        f"<h1>{escape(title)}</h1><ul>{sentences}</ul><table><tr>{head}</tr>{lines}</table>"
        f"<figure>{_completion(outcomes, colours)}</figure><figure>{_utilisation(outcomes, colours)}</figure>"
        f"<h2>Setting</h2><dl>{facts}</dl><p>JCT: job completion time, from arrival to the end. JCR: share of jobs "
        "that succeeded. CUR, MUR: cores and memory used by jobs, of what they held. Held: cores that jobs held, of "
        "the cluster's, until the last end.</p></html>"
    )


STYLE = (
    ":root{color-scheme:light dark}"
    "body{font:15px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem}"
    "h1{font-size:1.4rem}h2{font-size:1.1rem}table{border-collapse:collapse;font-variant-numeric:tabular-nums;"
    "font-size:.85rem;display:block;overflow-x:auto}th,td{padding:.3rem .6rem;text-align:right;"
    "border-bottom:1px solid color-mix(in srgb,currentColor 20%,transparent)}th:first-child,td:first-child"
    "{text-align:left}figure{margin:1.5rem 0}dl{display:grid;grid-template-columns:max-content 1fr;gap:.2rem 1rem}"
    "dt{opacity:.7}dd{margin:0}p{opacity:.75;font-size:.85rem}"
)


def _completion(outcomes: Mapping[str, Outcome], colours: Mapping[str, str]) -> str:
    """The share of jobs that ended within a time; a line that ends below 100 % has jobs that did not succeed."""
    lines, longest = [], 2.0
    for name, outcome in outcomes.items():
        times = np.sort(completion_times(outcome.runs))
        if not len(times):
            continue
        longest = max(longest, float(times[-1]))
        shown = _thinned(len(times))
        share = (np.arange(1, len(times) + 1) / len(outcome.runs))[shown]
        lines.append(svg.Line(name, times[shown], share, colours[name]))
    return svg.chart(
        "Job completion time", lines, x=svg.seconds(10.0, longest, "from arrival to the end"), y=svg.shares("jobs")
    )


def _utilisation(outcomes: Mapping[str, Outcome], colours: Mapping[str, str]) -> str:
    courses: dict[str, Course] = {name: course(outcome) for name, outcome in outcomes.items()}
    end = max((float(each.at_s[-1]) for each in courses.values()), default=1.0)
    lines = []
    for name, each in courses.items():
        lines.append(svg.Line(f"{name}, held", each.at_s, each.held, colours[name]))
        lines.append(svg.Line(f"{name}, used", each.at_s, each.used, colours[name], dashed=True))
    return svg.chart(
        "Cores over time", lines, x=svg.days(end, "since the first arrival"), y=svg.shares("of the cluster")
    )


def _by_job(outcome: Outcome) -> dict[str, float]:
    return {run.job.job_id: run.ended - run.job.arrival_s for run in outcome.runs if run.phase.value == "succeeded"}


def _thinned(count: int, most: int = 400) -> Floats:
    return np.unique(np.linspace(0, count - 1, min(count, most)).astype(np.intp))


def span(seconds: float) -> str:
    """A time in the unit a person would use; empty for NaN."""
    if math.isnan(seconds):
        return ""
    for limit, unit, name in ((120.0, 1.0, "s"), (7200.0, 60.0, "min"), (172_800.0, 3600.0, "h")):
        if seconds < limit:
            return f"{seconds / unit:.1f} {name}"
    return f"{seconds / 86_400:.1f} d"


def percent(share: float) -> str:
    """Empty for NaN."""
    return "" if math.isnan(share) else f"{share:.1%}"
