"""Online training under six schemes over real series with a daily cycle: violations, lag, downtime, cost.

Simulated over all series, and on the real mesh over a compressed day of one (`--mesh`: that alone).
`RECMESH_FORECASTS=service` takes the forecaster service's model instead of the simulator's own (one fit per hour).
"""

import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from bench.figures import Result
from bench.mesh import scratch
from bench.workloads.peers_in_time import PREFIX
from bench.workloads.scheme_by_scheme import Day, compared
from bench.workloads.tides import as_lines
from recmesh.plugins.planning import Floats
from recmesh.plugins.streams import StreamPlanner
from services.brain.domain.streams.autopilot import Autopilot
from services.brain.domain.streams.horizon import Horizon
from services.brain.domain.streams.hpa import Hpa
from services.brain.domain.streams.kale import Kale, literal
from services.brain.domain.streams.madu import Madu
from services.brain.domain.streams.stabilise import Stability
from services.brain.simulator.online.comparison import Case, Forecasting, adequate, by_season, judged, loaded
from services.brain.simulator.online.engine import Setting
from services.brain.simulator.online.forecasts import Given
from services.brain.simulator.online.metrics import Columns, columns, geometric_mean, ratio, ratios, total
from services.brain.simulator.online.series import series_named
from services.brain.simulator.online.truths import T4

SERIES = ("taxi", "server", "road", "bikes", "api-01", "mongo-01", "mongo-02", "mongo-03", "purchase-03", "purchase-04")
"""Those of the data with an autocorrelation of .7 or more at one day."""
FINE = ("server", "mongo-01", "mongo-02", "mongo-03")
"""Measured every 5 min or oftener. The others are hourly or half-hourly and linear between, so that two values tell
those up to the next one: forecasts of them are easier than any of real traffic."""
QUICK_SERIES = ("server", "mongo-02")
DAYS = 60.0
EARLIER, JUDGED = (0.76, 0.8), (0.8, 1.0)
QUICK_EARLIER, QUICK_JUDGED = (0.77, 0.8), (0.8, 0.83)
STEP_S = 300.0
SLO_S = 1200.0
ALLOWED = 0.026
"""The share of violations that tuning may leave: KALE's own in the paper."""
FLOOR = 0.01
"""Of a ratio within a geometric mean, so that a zero does not hide the rest."""
STOP, LIVE = Setting(T4, step_s=STEP_S), Setting(T4, step_s=STEP_S, restart_s=0.1, lead_s=10.0)
"""A restart of 10 min, and what `bench resize` and `bench startup` measured here: a handoff of 64 ms to 103 ms, and new
workers after 3.4 s on an idle machine (rounded up to 10)."""

PAPER = {"kale_vs_hpa_lag_reduction": 0.692, "kale_vs_hpa_downtime_reduction": 0.331, "kale_violation_rate": 0.026,
         "hpa_violation_rate": 0.1957}  # fmt: skip

GRIDS: Mapping[str, Sequence[StreamPlanner]] = {
    "hpa": [Hpa(target=target) for target in (0.5, 0.6, 0.7, 0.8, 0.9)],
    "autopilot": [
        Autopilot(statistic="percentile", window_s=window, margin=margin, down_window_s=window)
        for window, margin in product((3600.0, 10_800.0, 21_600.0), (0.1, 0.3))
    ] + [Autopilot(statistic=kind, window_s=3600.0, margin=0.3, down_window_s=10_800.0) for kind in ("peak", "mean")],
    "madu": [Madu(target=target, shrink_share=share) for target, share in product((0.6, 0.75, 0.9), (0.1, 0.4))],
    "kale": [Kale(stability=Stability(tau_s=tau_s)) for tau_s in (600.0, 1800.0, 3600.0, 7200.0)],
}  # fmt: skip
"""What is tried on the earlier part; `horizon` has its defaults, which were chosen on it too."""


Figures = tuple[dict[str, float], dict[str, Any]]
"""And their context."""
DAY, QUICK_DAY = Day("server", day_s=180.0), Day("server", day_s=60.0)
SCHEMES = {"adequate": "", **{name: f"{PREFIX}{name}" for name in ("hpa", "autopilot", "madu", "kale", "horizon")}}
AGAIN = {f"{name}-2": SCHEMES[name] for name in ("kale", "horizon")}
"""Once more, in turn: one such day differs from the next by more than schemes that are near each other."""
QUICK_SCHEMES = {name: SCHEMES[name] for name in ("kale", "horizon")}


@dataclass(frozen=True, slots=True)
class Cost:
    """One table: how a change is paid for."""

    label: str
    setting: Setting


COSTS = (Cost("", STOP), Cost("_live", LIVE))


def data() -> Path:
    """$RECMESH_DATA, or ../shared/data beside this repository."""
    return Path(os.environ.get("RECMESH_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")


def run(*, quick: bool, mesh: bool = False) -> Result:
    """Simulated, then on the mesh (`mesh_*`). `mesh`: on the mesh alone; a quick run is simulated alone without it."""
    parts = [] if mesh else [simulated(quick=quick)]
    if mesh or not quick:
        parts.append(measured(quick=quick))
    figures: dict[str, float] = {}
    context: dict[str, Any] = {}
    for found, of_them in parts:
        figures |= found
        context |= of_them
    return Result("autoscale", figures, context)


def simulated(*, quick: bool) -> Figures:
    """Columns of each scheme, summed over the series; `*_live`: with the restart cost measured here.

    Ratios x/0 count 10, 0/0 count 1. `kale` is as mended here, its τ tuned on the earlier part like the settings of all
    peers; `kale_default` has τ 10 min, `kale_literal` is the paper's letter. In `horizon_vs_kale_geomean` a ratio
    below .01 counts .01. `*_fine*`: over the series alone that were measured every 5 min or oftener.
    """
    names = QUICK_SERIES if quick else SERIES
    forecasting, kind = forecasts()
    spans = (QUICK_EARLIER, QUICK_JUDGED) if quick else (EARLIER, JUDGED)
    earlier, cases = ([_case(name, span, forecasting) for name in names] for span in spans)
    found: dict[str, float] = {}
    tuned: dict[str, str] = {}
    for cost in COSTS:
        planners = {name: _tuned(grid, earlier, cost.setting) for name, grid in GRIDS.items()}
        tuned |= {f"{name}{cost.label}": repr(each) for name, each in planners.items()}
        table = {"adequate": _adequate(cases, cost.setting)}
        table |= {name: _over(cases, each, cost.setting) for name, each in planners.items()}
        table["kale_default"] = _over(cases, Kale(), cost.setting)
        table["kale_literal"] = _over(cases, literal(), cost.setting)
        table["horizon"] = _over(cases, Horizon(), cost.setting)
        found |= _figures(table, cost.label)
        fine = [case for case, name in zip(cases, names, strict=True) if name in FINE]
        against = ratios(_over(fine, Horizon(), cost.setting), _over(fine, planners["kale"], cost.setting))
        found[f"horizon_vs_kale_worst_column_fine{cost.label}"] = max(against)
        found[f"horizon_vs_kale_geomean_fine{cost.label}"] = geometric_mean(max(each, FLOOR) for each in against)
    context: dict[str, Any] = {
        "series": list(names), "days": DAYS, "earlier": list(spans[0]), "judged": list(spans[1]),
        "judged_days": sum(case.last - case.first for case in cases) / 1440.0, "theta": repr(T4), "peak_workers": 28,
        "peak_to_trough": 7.65, "most": STOP.most, "step_s": STEP_S, "forecasts": kind, "tuned": tuned,
        "rule_of_tuning": f"fewest worker-hours with violations of {ALLOWED} or less, else fewest violations",
        "paper": PAPER, "restart_s": {cost.label or "stop": cost.setting.restart_s for cost in COSTS},
    }  # fmt: skip
    return found, context


def measured(*, quick: bool) -> Figures:
    """One job after another on the real mesh over the same day: columns of each scheme, as `mesh_SCHEME_COLUMN`.

    `violation_rate` (of the day's seconds, against slo_s), `lag_s2` (sum of lag over seconds), `downtime_s` (standstill
    though something waited, in stretches of 5 s or more), `worker_hours` (those that start up among them) and its share
    of `adequate`'s, `changes`, `trained_share`. Ratios as above (x/0 counts 10, 0/0 counts 1), of sums over rides.
    """
    day, schemes = (QUICK_DAY, QUICK_SCHEMES) if quick else (DAY, SCHEMES | AGAIN)
    with scratch() as folder:
        rides, context = compared(folder, data(), day, schemes)
    table = {name: ride.columns(day.slo_s) for name, ride in rides.items()}
    found: dict[str, float] = {}
    hours = {name: each["worker_s"] / 3600 for name, each in table.items()}
    due = float(context["samples_of_the_day"])
    for name, each in table.items():
        found |= {
            f"mesh_{name}_violation_rate": each["lag_violation_share"],
            f"mesh_{name}_lag_s2": each["accumulated_lag_s2"],
            f"mesh_{name}_lag_max_s": each["max_lag_s"], f"mesh_{name}_downtime_s": each["standstill_s"],
            f"mesh_{name}_worker_hours": hours[name], f"mesh_{name}_changes": float(len(context["decided"][name])),
            f"mesh_{name}_trained_share": each["trained"] / due,
        }  # fmt: skip
        if "adequate" in hours:
            found[f"mesh_{name}_worker_hours_share"] = hours[name] / hours["adequate"]
    compare = ("lag_violation_share", "accumulated_lag_s2", "standstill_s", "worker_s")
    against = [ratio(_of_all(table, "horizon", column), _of_all(table, "kale", column)) for column in compare]
    found["mesh_horizon_vs_kale_worst_column"] = max(against)
    found["mesh_horizon_vs_kale_geomean"] = geometric_mean(max(each, FLOOR) for each in against)
    return found, {"mesh": context | {"timeline": as_lines(rides)}}


def _of_all(table: Mapping[str, Mapping[str, float]], scheme: str, column: str) -> float:
    """The sum over the scheme's rides."""
    return sum(each[column] for name, each in table.items() if name.removesuffix("-2") == scheme)


def forecasts() -> tuple[Forecasting, str]:
    """How planners are told of the future, and its name; the same for all."""
    if os.environ.get("RECMESH_FORECASTS") == "service":
        return by_service, "the forecaster service's model"
    return by_season, "least squares on yesterday, last week and the last hour; quantile .8 from past errors"


def by_service(rates: Floats, per_day: int, first: int, last: int) -> Given:
    """`services.forecaster`'s model, fitted anew each hour on the four weeks before, six hours ahead; between two fits
    the last forecast moves on."""
    from services.forecaster.domain.fitting import Asked
    from services.forecaster.domain.history import History
    from services.forecaster.domain.season import season_for
    from services.forecaster.runtimes.models import predict

    ahead, anew, key = per_day // 4, per_day // 24, uuid.uuid4().hex
    mean, upper, spread = (np.empty((last - first, ahead)) for _ in range(3))
    for origin in range(first, last, anew):
        begin, step_s = max(0, origin - 28 * per_day), 86_400.0 / per_day
        past = rates[begin:origin]
        history = History(past, begin, step_s, season_for(past, step_s=step_s).all)
        told = predict(Asked(key, history, ahead + anew, level=0.6))     # its upper side is quantile .8
        for step in range(origin, min(origin + anew, last)):
            part = slice(step - origin, step - origin + ahead)
            mean[step - first] = np.maximum(told.mean[part], 0.0)
            upper[step - first] = np.maximum(told.high[part], 0.0)
            spread[step - first] = np.maximum(told.high[part] - told.mean[part], 0.0) / 0.8416
    return Given(first, mean, upper, spread)


def _case(name: str, span: tuple[float, float], forecasting: Forecasting) -> Case:
    arriving = loaded(series_named(name, data(), days=DAYS), T4)
    return judged(name, arriving, step_s=STEP_S, share=span, forecasting=forecasting)


def _over(cases: Sequence[Case], planner: StreamPlanner, setting: Setting) -> Columns:
    return total(columns(case.under(planner, setting), slo_s=SLO_S) for case in cases)


def _adequate(cases: Sequence[Case], setting: Setting) -> Columns:
    return total(columns(case.under(adequate(case, setting), setting), slo_s=SLO_S) for case in cases)


def _tuned(grid: Sequence[StreamPlanner], cases: Sequence[Case], setting: Setting) -> StreamPlanner:
    """The fewest worker-hours among those that keep the SLO well enough, else the fewest violations."""

    def rank(planner: StreamPlanner) -> tuple[bool, float]:
        each = _over(cases, planner, setting)
        missed = each.violation_rate > ALLOWED
        return missed, each.violation_rate if missed else each.worker_hours

    return min(grid, key=rank)


def _figures(table: Mapping[str, Columns], label: str) -> dict[str, float]:
    kale, hpa, horizon = table["kale"], table["hpa"], table["horizon"]
    against = ratios(horizon, kale)
    found = {
        f"kale_vs_hpa_lag_reduction{label}": 1.0 - ratios(kale, hpa)[1],
        f"kale_vs_hpa_downtime_reduction{label}": 1.0 - ratios(kale, hpa)[2],
        f"horizon_vs_kale_worst_column{label}": max(against),
        f"horizon_vs_kale_geomean{label}": geometric_mean(max(each, FLOOR) for each in against),
        f"horizon_vs_kale_literal_worst_column{label}": max(ratios(horizon, table["kale_literal"])),
        f"horizon_vs_kale_default_worst_column{label}": max(ratios(horizon, table["kale_default"])),
    }
    parts: Sequence[tuple[str, Callable[[Columns], float]]] = (
        ("violation_rate", lambda each: each.violation_rate), ("lag_min", lambda each: each.lag_minutes),
        ("mean_lag_s", lambda each: each.mean_lag_s), ("downtime_min", lambda each: each.down_minutes),
        ("worker_hours", lambda each: each.worker_hours), ("changes", lambda each: float(each.changes)),
    )  # fmt: skip
    for name, each in table.items():
        found |= {f"{name}_{part}{label}": value(each) for part, value in parts}
    adequate_hours = table["adequate"].worker_hours
    found |= {f"{name}_worker_hours_share{label}": each.worker_hours / adequate_hours for name, each in table.items()}
    return found


def settings() -> Mapping[str, Setting]:
    """Both, by name; `bench surge` uses the same."""
    return {"stop": replace(STOP), "live": replace(LIVE)}
