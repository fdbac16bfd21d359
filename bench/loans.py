"""Units lent from training to serving ahead of promotion peaks, against fixed pools, a reactive loan and hindsight.

On simulated days of public traces; and how many GPUs a peak borrows when HN slices alone move. The planner and its
ledger's states are the product's, the fleet is simulated: one machine has none to lend. And on the real mesh, through a
short day with a promotion (`--mesh`: that alone), where units are fractions of this machine's cores.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bench.autoscale import data
from bench.figures import Result
from bench.mesh import say, scratch
from bench.workloads import promotion
from recmesh.plugins.planning import Floats
from services.brain.domain.loans.packing import Host, Whole, for_slices, for_whole, saved
from services.brain.domain.loans.planning import Rules
from services.brain.simulator.loans.engine import (
    MINUTE_S,
    ByForecast,
    Hindsight,
    Outcome,
    Reactive,
    Rule,
    World,
    fixed,
    simulated,
)
from services.brain.simulator.loans.peaks import Promotions, with_promotions
from services.brain.simulator.online.seasonal import seasonal
from services.brain.simulator.online.series import scaled, series_named

SERIES = ("server", "mongo-01", "mongo-02", "mongo-03", "taxi", "road")
"""With a daily cycle; the last two are half-hourly and hourly, and linear between."""
QUICK_SERIES = ("server", "taxi")
DAYS, JUDGED, QUICK_JUDGED = 60.0, 0.2, 0.05
PEAK_UNITS = 140
"""HNs at a series' peak without promotions: the application of MATH §4."""
PEAK_TO_TROUGH = 4.0
OWN_SHARE = 0.25
"""Of the peak's units, that serving has for itself."""
STEP_MIN = 5
QUANTILE = 0.9
NOISE = 0.02
"""Standard deviation of a minute's requests."""
PER_UNIT = 600.0
WORLD = World(per_unit=PER_UNIT)
RULES = Rules(own=round(PEAK_UNITS * OWN_SHARE), most=4 * PEAK_UNITS, most_draining=24, drain_s=120.0, start_s=180.0)
HOST, WHOLE = Host(cpu=96.0, gpus=8, slices_per_gpu=3), Whole(cpu=48.0)
"""MATH §4: HNs of 2g.20gb, 24 on a node of 8 GPUs; models served whole take 48 cores and a GPU."""
SEED = 20


@dataclass(frozen=True, slots=True)
class Case:
    """A series with promotions, and the part that is judged."""

    name: str
    rates: Floats
    first: int
    last: int
    rule: Rule

    @property
    def needs(self) -> Floats:
        """Units, by judged minute."""
        return WORLD.needs(self.rates[self.first : self.last])


def run(*, quick: bool, mesh: bool = False) -> Result:
    """`share_of_ideal`: unit-hours that training had of what a fixed pool would have kept for serving, against what it
    had with hindsight (which pays for leads and returns, too). `slo_violation_rate`: requests that waited. A fixed pool
    has what the judged peak needs: it is given to know that. `training_gain`: training beyond that beside fixed pools,
    with as many units of its own as the peak takes. `late_returns`: loans that came back after their due time.

    `real_*`, on the mesh: the same, by samples that were trained beside a fixed pool for the peak; `_in_peak`: of the
    peak's requests alone."""
    real, seen = ({}, {}) if quick and not mesh else _real()
    if mesh:
        return Result("loans", real, seen)
    found, context = _simulated(quick=quick)
    left_out = {"left_out": "4 of 6 series, days, and the real mesh"} if quick else {}
    return Result("loans", found | real, context | seen | left_out)


def _simulated(*, quick: bool) -> tuple[dict[str, float], dict[str, Any]]:
    cases = [_case(name, quick=quick) for name in (QUICK_SERIES if quick else SERIES)]
    found: dict[str, float] = {}
    table: dict[str, list[_Row]] = {"": [], "reactive": [], "fixed": [], "fixed_p95": []}
    for number, case in enumerate(cases):
        ideal, peak = _ideal(case), int(case.needs.max())
        common = np.quantile(case.needs, 0.95)
        for scheme, rule, rules in (
            ("", case.rule, RULES), ("reactive", Reactive(RULES, WORLD), RULES),
            ("fixed", _nothing(peak), fixed(RULES, units=peak)),
            ("fixed_p95", _nothing(int(common)), fixed(RULES, units=int(common))),
        ):  # fmt: skip
            rng = np.random.default_rng([SEED, number])
            outcome = simulated(case.rates, rule, rules, WORLD, rng, first=case.first, last=case.last)
            table[scheme].append(_Row(outcome, ideal, peak))
    for scheme, rows in table.items():
        found |= _figures(rows, f"{scheme}_" if scheme else "")
    found |= borrowed([int(case.needs.max()) for case in cases])
    lent = table[""]
    found["loans"] = float(sum(row.outcome.loans for row in lent))
    found["renewals"] = float(sum(row.outcome.renewals for row in lent))
    by_series: Mapping[str, Any] = {
        case.name: _figures([row], "") for case, row in zip(cases, lent, strict=True)
    }
    return found, {
        "series": [case.name for case in cases], "judged_days": sum(case.last - case.first for case in cases) / 1440,
        "peak_units": PEAK_UNITS, "peak_to_trough": PEAK_TO_TROUGH, "own_units": RULES.own, "quantile": QUANTILE,
        "rules": repr(RULES), "world": repr(WORLD), "promotions": repr(Promotions()), "noise": NOISE,
        "forecasts": "least squares on yesterday, last week and the last hour; quantile from past errors",
        "by_series": by_series,
    }  # fmt: skip


def _real() -> tuple[dict[str, float], dict[str, Any]]:
    """Each scheme through the same day, one after another; requests as the first one was measured to bear."""
    days: dict[str, promotion.Day] = {}
    with scratch() as folder:
        for name, scheme in promotion.SCHEMES.items():
            say(f"{name}:")
            per_s = next(iter(days.values())).per_s if days else None
            day = days[name] = promotion.lived(folder, scheme, per_s)
            say(f"  {day.trained:,} samples, {day.late_share():.1%} of requests late, {day.unit_s:,.0f} unit s lent")
    found: dict[str, float] = {}
    begin, end = promotion.QUIET_S, promotion.QUIET_S + promotion.PEAK_S
    for name, day in days.items():
        prefix = "real_" if name == "forecast" else f"real_{name}_"
        late = sum(bool(loan.get("late")) for loan in day.ledger)
        found |= {
            f"{prefix}training_gain": day.trained / days["fixed"].trained - 1.0,
            f"{prefix}slo_violation_rate": day.late_share(),
            f"{prefix}slo_violation_rate_in_peak": day.late_share(begin, end),
            f"{prefix}late_returns": float(late), f"{prefix}loans": float(len(day.ledger)),
            f"{prefix}lent_unit_s": day.unit_s, f"{prefix}samples": float(day.trained),
            f"{prefix}rollbacks": float(day.rolled_back),
        }  # fmt: skip
    return found, {
        "real_requests_per_s": next(iter(days.values())).per_s, "real_slo_s": promotion.SLO_S,
        "real_day_s": (promotion.QUIET_S, promotion.PEAK_S, promotion.AFTER_S), "real_rules": dict(promotion.LOANS),
        "real_seen": {name: day.lines() for name, day in days.items()},
        "real_seen_is": "seconds, units lent, HNs, workers, samples",
        "real_loans": {name: day.ledger for name, day in days.items()},
        "real_scaled": {name: day.scaled for name, day in days.items()},
    }  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Row:
    outcome: Outcome
    ideal: Floats
    peak: int
    """What a fixed pool has."""


def _figures(rows: list[_Row], prefix: str) -> dict[str, float]:
    given = sum(float(np.sum(row.peak - np.array(row.outcome.held))) for row in rows)
    could = sum(float(np.sum(row.peak - row.ideal)) for row in rows)
    own = sum(row.peak * len(row.outcome.held) for row in rows)
    # What changes cost: each stops all of training's units for that long.
    lost = sum(row.outcome.changes * WORLD.resize_s / MINUTE_S for row in rows)
    return {
        f"{prefix}share_of_ideal": given / could,
        f"{prefix}slo_violation_rate": sum(row.outcome.violated for row in rows)
        / sum(row.outcome.requests for row in rows),
        f"{prefix}training_gain": (given - lost) / own,
        f"{prefix}late_returns": float(sum(row.outcome.late for row in rows)),
    }


def borrowed(peaks: list[int]) -> dict[str, float]:
    """GPUs that a peak borrows beyond serving's own units: HN slices against whole models, each on its own nodes."""
    units = [max(0, peak - RULES.own) for peak in peaks]
    slices = sum(for_slices(each, HOST) for each in units) * HOST.gpus
    whole = sum(for_whole(each, HOST, WHOLE) for each in units) * HOST.gpus
    return {
        "borrowed_gpus_reduction": 1.0 - slices / whole if whole else 0.0,
        "borrowed_gpus_reduction_of_paper_inputs": saved(140, HOST, WHOLE),
    }


def _case(name: str, *, quick: bool) -> Case:
    rng = np.random.default_rng([SEED, *name.encode()])
    raw = scaled(
        series_named(name, data(), days=DAYS), peak=PEAK_UNITS * PER_UNIT * WORLD.target, ratio=PEAK_TO_TROUGH
    )
    rates = with_promotions(raw, Promotions(), rng)
    rates = rates[: len(rates) // 1440 * 1440] * rng.normal(1.0, NOISE, len(rates) // 1440 * 1440).clip(0.5)
    steps = rates.reshape(-1, STEP_MIN).mean(axis=1)
    per_day = 1440 // STEP_MIN
    first = round(len(steps) * (1 - JUDGED)) // per_day * per_day
    last = min(len(steps), first + max(per_day, round(len(steps) * (QUICK_JUDGED if quick else JUDGED))))
    made = seasonal(steps, per_day=per_day, first=first, last=last, ahead=per_day // 4, quantile=QUANTILE)
    rule = ByForecast(made, STEP_MIN, RULES, WORLD)
    return Case(name, rates, first * STEP_MIN, last * STEP_MIN, rule)


def _ideal(case: Case) -> Floats:
    return Hindsight(case.rates, RULES, WORLD).held(case.first, case.last)


def _nothing(units: int) -> Rule:
    """Nobody lends."""
    return Reactive(replace(RULES, own=units, most=0), WORLD)
