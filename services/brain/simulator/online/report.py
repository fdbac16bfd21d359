"""What a person reads: a table, and a page with plots."""

from collections.abc import Mapping
from html import escape
from typing import Any

import numpy as np

from recmesh.plugins.planning import Floats
from services.brain.simulator import svg
from services.brain.simulator.online.engine import MINUTE_S, Course
from services.brain.simulator.online.metrics import Columns
from services.brain.simulator.report import STYLE, span, table

HEADS = ("planner", "violations", "accumulated lag", "mean lag", "worst lag", "downtime", "worker-hours", "changes",
         "corrected")  # fmt: skip
MOST_POINTS = 1500


def rows(found: Mapping[str, Columns]) -> list[list[str]]:
    """One row per planner, in the order of HEADS."""
    return [
        [
            name, f"{each.violation_rate:.2%}", f"{each.lag_minutes:,.0f} min", span(each.mean_lag_s),
            span(60 * each.lag_max_minutes), span(60 * each.down_minutes), f"{each.worker_hours:,.1f}",
            f"{each.changes:,}", f"{each.corrections:,} min" if each.corrections else "",
        ]
        for name, each in found.items()
    ]  # fmt: skip


def text(found: Mapping[str, Columns]) -> str:
    """For the terminal."""
    return table(HEADS, rows(found))


def page(title: str, courses: Mapping[str, Course], found: Mapping[str, Columns], setting: Mapping[str, Any]) -> str:
    """One HTML file that needs nothing else."""
    colours = {name: svg.COLOURS[n % len(svg.COLOURS)] for n, name in enumerate(courses)}
    body = rows(found)
    head = "".join(f"<th>{escape(name)}</th>" for name in HEADS)
    lines = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in body)
    facts = "".join(f"<dt>{escape(name)}</dt><dd>{escape(str(value))}</dd>" for name, value in setting.items())
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}</style>'
        f"<h1>{escape(title)}</h1><table><tr>{head}</tr>{lines}</table>"
        f"<figure>{_workers(courses, colours)}</figure><figure>{_lag(courses, colours)}</figure>"
        f"<h2>Setting</h2><dl>{facts}</dl><p>Lag: age of the oldest sample that waits, at the end of each minute; "
        "accumulated: their sum. Violations: minutes in which it is above the SLO. Downtime: time for which changes "
        "stopped training.</p></html>"
    )


def _workers(courses: Mapping[str, Course], colours: Mapping[str, str]) -> str:
    highest = max(int(each.workers.max()) for each in courses.values())
    lines = [
        svg.Line(name, *_thinned(each.workers.astype(np.float64)), colours[name]) for name, each in courses.items()
    ]
    return svg.chart("Workers", lines, x=_time(courses), y=_upright(float(highest), "workers"))


def _lag(courses: Mapping[str, Course], colours: Mapping[str, str]) -> str:
    highest = max(float(each.lag_s.max()) for each in courses.values()) / MINUTE_S
    lines = [svg.Line(name, *_thinned(each.lag_s / MINUTE_S), colours[name]) for name, each in courses.items()]
    return svg.chart("Lag", lines, x=_time(courses), y=_upright(max(highest, 1.0), "minutes"))


def _time(courses: Mapping[str, Course]) -> svg.Axis:
    return svg.days(MINUTE_S * max(len(each.lag_s) for each in courses.values()), "since the judged part began")


def _upright(high: float, label: str) -> svg.Axis:
    return svg.Axis(0.0, high, label, [(high * part / 4, f"{high * part / 4:.3g}") for part in range(5)])


def _thinned(values: Floats) -> tuple[Floats, Floats]:
    """The highest value of each of so many spans: peaks stay in sight."""
    starts = np.unique(np.linspace(0, len(values), min(len(values), MOST_POINTS), endpoint=False).astype(np.intp))
    highest: Floats = np.maximum.reduceat(values, starts)
    return starts.astype(np.float64) * MINUTE_S, highest
