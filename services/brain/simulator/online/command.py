"""`recmesh simulate --online`: one online job over a series of arrivals, once per stream planner."""

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from recmesh.plugins.registry import BrokenPlugin, UnknownPlugin, load
from recmesh.plugins.streams import GROUP, StreamPlanner
from recmesh.runtime.errors import CallerError, InvalidArgument, MeshError, Violation
from recmesh.runtime.progress import Progress
from services.brain.domain.streams import STREAM_PLANNERS
from services.brain.domain.streams.fallback import Band
from services.brain.domain.streams.kale import Kale
from services.brain.domain.streams.stabilise import Stability
from services.brain.simulator.online import report
from services.brain.simulator.online.comparison import PEAK_TO_TROUGH, PEAK_WORKERS, Case, adequate, judged, loaded
from services.brain.simulator.online.engine import Course, Setting
from services.brain.simulator.online.metrics import Columns, columns
from services.brain.simulator.online.series import KNOWN, series_named
from services.brain.simulator.online.truths import THETAS, theta_named

DEFAULT = ("adequate", "hpa", "autopilot", "madu", "kale", "horizon")

_EPILOG = """\
examples:
  recmesh simulate --online server
  recmesh simulate --online mine.csv --planner kale --planner horizon --restart .1 --lead 10 --out report

A series of your own is CSV with a header (.csv, .csv.gz): times (seconds or ISO 8601) and values come first.
It is scaled, and its last fifth is judged. docs/reference/simulate.md says what is simulated, and how.
"""


def parser() -> argparse.ArgumentParser:
    """The options."""
    made = argparse.ArgumentParser(
        prog="recmesh simulate --online", formatter_class=argparse.RawDescriptionHelpFormatter, epilog=_EPILOG,
        description="Run the stream planners of brain over a series of arrivals for one simulated online job.",
    )  # fmt: skip
    add = made.add_argument
    add("--online", required=True, nargs="?", const="", metavar="SERIES",
        help=f"{', '.join(KNOWN)}, or a .csv or .csv.gz file")  # fmt: skip
    add("--planner", action="append", default=[], metavar="NAME",
        help=f"again for each: adequate, {', '.join(STREAM_PLANNERS)}, or one of an entry point "
        f"(default: {', '.join(DEFAULT)})")  # fmt: skip
    add("--theta", default="t4", metavar="NAME",
        help=f"speed by workers: {', '.join(THETAS)}, or four coefficients with commas (default: t4)")  # fmt: skip
    add("--peak-workers", type=int, default=PEAK_WORKERS, metavar="N",
        help=f"the series is scaled so that its peak needs so many (default: {PEAK_WORKERS})")  # fmt: skip
    add("--peak-to-trough", type=float, default=PEAK_TO_TROUGH, metavar="RATIO",
        help=f"and is so many times its trough (default: {PEAK_TO_TROUGH})")  # fmt: skip
    add("--days", type=float, default=60.0, metavar="N", help="of the series, its last; 0: all (default: 60)")
    add("--judged", type=float, default=0.2, metavar="SHARE", help="of them, the last, are judged (default: .2)")
    add("--least", type=int, default=1, metavar="N", help="workers that a job has (default: 1)")
    add("--most", type=int, default=40, metavar="N", help="workers that it may have (default: 40)")
    add("--restart", type=float, default=600.0, metavar="SECONDS",
        help="for which a change stops training (default: 600)")  # fmt: skip
    add("--lead", type=float, default=0.0, metavar="SECONDS", help="until new workers are ready (default: 0)")
    add("--step", type=float, default=300.0, metavar="SECONDS", help="of forecasts and plans (default: 300)")
    add("--every", type=float, default=0.0, metavar="SECONDS",
        help="between two plans; until the next the schedule is followed (default: a step)")  # fmt: skip
    add("--slo", type=float, default=1200.0, metavar="SECONDS", help="lag that must not be passed (default: 1200)")
    add("--drain", type=float, default=1200.0, metavar="SECONDS",
        help="in which planners mean to work off what waits (default: 1200)")  # fmt: skip
    add("--tau", type=float, default=600.0, metavar="SECONDS",
        help="kale holds counts for so long; long restarts want more (default: 600)")  # fmt: skip
    add("--fallback", action="store_true", help="scale on the measurement where lag or use leaves its band")
    add("--seed", type=int, default=0, metavar="N", help="of planners that draw (default: 0)")
    add("--data", type=Path, default=None, metavar="FOLDER", help="that holds traffic/ (default: $RECMESH_DATA)")
    add("--out", type=Path, default=None, metavar="FOLDER", help="write report.html and figures.json here")
    add("--json", action="store_true", help="one JSON document instead of text")
    return made


@dataclass(frozen=True, slots=True)
class Study:
    """What is to be simulated, checked."""

    case: Case
    setting: Setting
    planners: Mapping[str, StreamPlanner]


def main(argv: Sequence[str]) -> int:
    """Exit code: 0 done, 1 our fault, 2 the caller's."""
    options = parser().parse_args(argv)
    try:
        study = prepared(options)
        minutes = (study.case.last - study.case.first) * len(study.planners)
        with Progress("simulate", total=minutes, unit="minutes") as progress:
            courses = run(
                study, seed=options.seed, tell=lambda text: print(text, file=sys.stderr, flush=True), progress=progress
            )
        found = {name: columns(each, slo_s=options.slo) for name, each in courses.items()}
        planners = {name: each.document() for name, each in found.items()}
        document = {"setting": _told(options, study), "planners": planners}
        if options.out is not None:
            _write(options, study, courses, found, document)
    except MeshError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, CallerError) else 1
    try:
        print(json.dumps(document, indent=2) if options.json else report.text(found))
        if options.out is not None and not options.json:
            print(f"\nPlots in {options.out / 'report.html'}")
        sys.stdout.flush()
    except BrokenPipeError:         # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def prepared(options: argparse.Namespace) -> Study:
    """Reads and checks everything before anything runs; InvalidArgument names the option."""
    _check(options)
    theta = theta_named(options.theta)
    setting = Setting(
        theta, least=options.least, most=options.most, step_s=options.step,
        plan_every_s=options.every or options.step, restart_s=options.restart, lead_s=options.lead,
        lag_slo_s=options.slo, drain_s=options.drain, fallback=Band() if options.fallback else None,
    )  # fmt: skip
    names = tuple(options.planner) or DEFAULT
    kinds = {name: _kind(name) for name in names if name != "adequate"}
    data = options.data or Path(os.environ.get("RECMESH_DATA") or "../shared/data")
    values = series_named(options.online, data, days=options.days)
    arriving = loaded(values, theta, peak_workers=options.peak_workers, ratio=options.peak_to_trough)
    case = judged(options.online, arriving, step_s=options.step, share=(1.0 - options.judged, 1.0))
    if "kale" in kinds:
        kinds["kale"] = partial(Kale, stability=Stability(tau_s=options.tau))
    made = {name: kinds[name]() if name in kinds else adequate(case, setting) for name in names}
    return Study(case, setting, made)


def run(
    study: Study, *, seed: int, tell: Callable[[str], None], progress: Progress | None = None
) -> dict[str, Course]:
    """One replay per planner, all over the same arrivals and forecasts."""
    courses: dict[str, Course] = {}
    told = progress or Progress("simulate")
    for name, planner in study.planners.items():
        began = time.perf_counter()
        before = len(courses) * (study.case.last - study.case.first)
        told.update(before, note=name)
        courses[name] = study.case.under(
            planner, study.setting, seed=seed,
            tell=lambda done, before=before: told.update(before + done),  # type: ignore[misc]  # a default binds it
        )
        days, took_s = (study.case.last - study.case.first) / 1440, time.perf_counter() - began
        tell(f"{name}: {days:.1f} days, {courses[name].changes:,} changes, {took_s:.1f} s")
    return courses


def _kind(name: str) -> Callable[[], StreamPlanner]:
    try:
        found: Callable[[], StreamPlanner] = load(GROUP, name, STREAM_PLANNERS)
    except (UnknownPlugin, BrokenPlugin) as error:
        reason = f"{error}; and adequate" if isinstance(error, UnknownPlugin) else str(error)
        raise InvalidArgument("cannot simulate", violations=[Violation("--planner", reason)]) from error
    return found


def _check(options: argparse.Namespace) -> None:
    steps = options.step > 0 and options.step % 60 == 0 and 86_400 % options.step == 0
    every = options.every >= 0 and steps and options.every % options.step == 0
    rules: list[tuple[str, bool, str]] = [
        ("--peak-workers", options.peak_workers >= 1, "must be 1 or more"),
        ("--peak-to-trough", 1 < options.peak_to_trough < math.inf, "must be above 1"),
        ("--days", 0 <= options.days < math.inf, "must be 0 or more"),
        ("--judged", 0 < options.judged < 1, "must be a share above 0 and below 1"),
        ("--least", 1 <= options.least <= options.most, "must be 1 or more, and not above --most"),
        ("--restart", 0 <= options.restart < math.inf, "must be 0 or more seconds"),
        ("--lead", 0 <= options.lead < math.inf, "must be 0 or more seconds"),
        ("--step", steps, "must be whole minutes that fill a day, like 300"),
        ("--every", every, "must be whole steps"),
        ("--slo", 0 < options.slo < math.inf, "must be above 0 seconds"),
        ("--drain", 0 < options.drain < math.inf, "must be above 0 seconds"),
        ("--tau", 0 < options.tau < math.inf, "must be above 0 seconds"),
        ("--online", bool(options.online), f"needs a series: {', '.join(KNOWN)}, or a .csv or .csv.gz file"),
        ("--seed", options.seed >= 0, "must be 0 or more"),
        ("--planner", len(set(options.planner)) == len(options.planner), "names a planner twice"),
    ]
    violations = [Violation(field, reason) for field, right, reason in rules if not right]
    if violations:
        raise InvalidArgument("cannot simulate", violations=violations)


def _told(options: argparse.Namespace, study: Study) -> dict[str, Any]:
    named = {key: value for key, value in vars(options).items() if key not in ("json", "out", "data", "planner")}
    return {
        **{key.replace("_", "-"): value for key, value in named.items()},
        "planner": ", ".join(study.planners), "judged-days": round((study.case.last - study.case.first) / 1440, 1),
    }  # fmt: skip


def _write(
    options: argparse.Namespace, study: Study, courses: Mapping[str, Course], found: Mapping[str, Columns],
    document: object,
) -> None:  # fmt: skip
    title = f"{options.online}: an online job under {len(courses)} planners"
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        page = report.page(title, courses, found, _told(options, study))
        (options.out / "report.html").write_text(page, encoding="utf-8")
        (options.out / "figures.json").write_text(json.dumps(document, indent=2), encoding="utf-8")
    except OSError as error:
        raise InvalidArgument(
            f"cannot write the report: {error}", violations=[Violation("--out", str(options.out))]
        ) from error
