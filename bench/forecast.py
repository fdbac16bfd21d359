"""Errors and intervals of forecasts of real traffic, beside persistence, day- and week-naive on the same origins."""

import asyncio
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import psutil

from bench.criteo import DataMissing
from bench.figures import Result
from bench.mesh import say
from bench.workloads.traffic import Traffic, m4_hourly, sets
from recmesh.plugins.forecasting import Forecaster, Ints, SeriesView, Unfit
from recmesh.runtime.clock import system_clock
from services.forecaster.app import App
from services.forecaster.domain.conformal import LEAST_ERRORS, offsets, scale_of
from services.forecaster.domain.fitting import Asked
from services.forecaster.domain.forecast import Ask, Forecast, wape
from services.forecaster.domain.history import History, leads_for
from services.forecaster.domain.season import season_for
from services.forecaster.domain.series import Floats, Point
from services.forecaster.domain.unusual import weights_of
from services.forecaster.runtimes import models
from services.forecaster.runtimes.pool import ModelPool
from services.forecaster.store import SqlStore

HORIZONS_S = (600.0, 1800.0, 3600.0)
LEVEL = 0.8
TRAIN = 0.8
ORIGINS, M4_ORIGINS, QUICK_ORIGINS = 150, 24, 24
QUICK_M4 = 12
LEARNED_FROM = 20
NAIVE = ("persistence", "day-naive", "week-naive")
TIMED_SERIES = 60
ASKED_ROWS, ASKS = 100_000, 20


@dataclass
class Scores:
    """Of one set: what was said at each origin and lead, and what came."""

    leads: list[int]
    truth: Floats
    chosen: Floats
    low: Floats
    high: Floats
    others: dict[str, Floats] = field(default_factory=dict)
    covered: dict[str, list[float]] = field(default_factory=dict)
    """Of single models."""
    answered: Counter[str] = field(default_factory=Counter)
    drifts: Counter[str] = field(default_factory=Counter)

    @staticmethod
    def empty(leads: list[int], truth: Floats) -> "Scores":
        return Scores(leads, truth, np.empty(truth.shape), np.empty(truth.shape), np.empty(truth.shape))

    def wapes(self, said: Floats) -> list[float]:
        """By lead, over what was observed."""
        seen = np.isfinite(self.truth)
        return [wape(self.truth[seen[:, at], at], said[seen[:, at], at]) for at in range(len(self.leads))]

    def covered_alone(self, said: Floats, origins: Ints, *, floor: float) -> list[float]:
        """By lead: the share inside intervals by the forecaster's own rule from what this model got wrong before,
        at earlier origins whose truth had come. The first `LEARNED_FROM` origins are only learned from."""
        inside: list[list[bool]] = [[] for _ in self.leads]
        spacing = max(1.0, float(np.median(np.diff(origins))))
        for row in range(LEARNED_FROM, len(origins)):
            for at, lead in enumerate(self.leads):
                came = (origins[:row] + lead <= origins[row]) & np.isfinite(self.truth[:row, at])
                if came.sum() < LEAST_ERRORS or not np.isfinite(self.truth[row, at]):
                    continue
                rows = np.flatnonzero(came)
                power, sides = offsets(
                    said[rows, at : at + 1], self.truth[rows, at : at + 1], 0.5 ** (1 - rows / rows[-1]),
                    np.array([lead / spacing]), level=LEVEL, floor=floor,
                )  # fmt: skip
                scale = float(scale_of(said[row, at : at + 1], power=power, floor=floor)[0])
                low, high = said[row, at] + scale * sides[0, 0], said[row, at] + scale * sides[1, 0]
                inside[at].append(bool(low <= self.truth[row, at] <= high))
        return [statistics.mean(each) if each else float("nan") for each in inside]

    def coverage(self) -> list[float]:
        inside = (self.truth >= self.low) & (self.truth <= self.high)
        return [float(inside[np.isfinite(self.truth[:, at]), at].mean()) for at in range(len(self.leads))]


def run(*, quick: bool) -> Result:
    """Every set that repeats itself daily or weekly, and the M4 hourly series as one more."""
    try:
        known = [each for each in sets() if each.repeats]
        many = m4_hourly()
    except DataMissing as missing:
        say(str(missing))
        return Result("forecast", {}, {"missing": str(missing)})
    origins = QUICK_ORIGINS if quick else ORIGINS
    table: dict[str, dict[str, object]] = {}
    ratios: list[float] = []
    covered: list[float] = []
    gains: list[float] = []
    spent: dict[str, list[float]] = {}
    for each in known:
        scores, gain = asyncio.run(_asked(each, origins, refine=not quick))
        gains.append(gain)
        for model in _alone(quick):
            _score_alone(each, scores, model, origins, spent)
        table[each.name] = row = _row(each, scores)
        ratios += row["ratio"]  # type: ignore[arg-type]  # a list of floats
        covered += row["coverage"]  # type: ignore[arg-type]
        say(f"{each.name}: ratio {row['ratio']}, coverage {row['coverage']}, {row['answered']}")
    many = _sample(many, QUICK_M4) if quick else many
    m4 = asyncio.run(_many(many, 4 if quick else M4_ORIGINS))
    table["m4-hourly"] = m4
    ratios += m4["ratio"]  # type: ignore[arg-type]
    covered += m4["coverage"]  # type: ignore[arg-type]
    say(f"m4-hourly: {m4}")
    rates = _series_per_cpu_hour(_sample(many, TIMED_SERIES))
    figures = {
        "wape_ratio_vs_best_naive_median": statistics.median(ratios),
        "wape_ratio_vs_best_naive_worst": max(ratios),
        "coverage_80": statistics.mean(covered), "coverage_80_median": statistics.median(covered),
        "coverage_80_least": min(covered), "coverage_80_most": max(covered),
        "sets_within_75_85": sum(0.75 <= each <= 0.85 for each in covered) / len(covered),
        **({} if quick else {"dear_gain_median": statistics.median(gains)}),
        **rates,
        **asyncio.run(_asks()),
        **{f"fit_cpu_s_{name.replace('-', '_')}": statistics.median(times) for name, times in spent.items()},
    }  # fmt: skip
    return Result("forecast", figures, {
        "sets": table, "pairs": len(ratios), "origins": origins, "m4_series": len(many), "train": TRAIN, "level": LEVEL,
        "protocol": "rolling origins over the last 20 %; chosen = the forecaster's model process asked at every origin "
        "with the values before it, choosing anew as it does in service; single models are fitted once to the first "
        "80 % and then only shown what came; hourly and half-hourly sets: the nearest step, each lead once",
        "m4": "mean over series of each series' WAPE, one pair of the median",
        "quick": "no dear models, 24 origins, 12 series of M4" if quick else "",
    })  # fmt: skip


def _alone(quick: bool) -> list[Forecaster]:
    made = [make() for make in models.BUILT_IN.values()]
    return [each for each in made if not (quick and each.dear)]


def _leads(traffic: Traffic) -> list[int]:
    return sorted({max(1, round(horizon_s / traffic.step_s)) for horizon_s in HORIZONS_S})


def _origins(traffic: Traffic, count: int) -> Ints:
    first, last = round(TRAIN * len(traffic.values)), len(traffic.values) - _leads(traffic)[-1]
    cuts = np.arange(first, last + 1)
    cuts = cuts[~traffic.missing[cuts - 1]]      # what fills a gap leans on what came after it
    return cuts[np.unique(np.linspace(0, len(cuts) - 1, count).astype(np.int64))]


def _history(traffic: Traffic, count: int) -> History:
    values = traffic.values[:count]
    seasons = season_for(values, step_s=traffic.step_s).all
    return History(values, 0, traffic.step_s, seasons, traffic.missing[:count])


async def _asked(traffic: Traffic, count: int, *, refine: bool) -> tuple[Scores, float]:
    """The forecaster's own model process, asked at every origin."""
    leads, origins = _leads(traffic), _origins(traffic, count)
    index = origins[:, None] + np.array(leads)[None, :] - 1
    truth = np.where(traffic.missing[index], np.nan, traffic.values[index])
    scores = Scores.empty(leads, truth)
    pool = ModelPool(timeout_s=600.0, refine_timeout_s=3600.0)
    await pool.start()
    try:
        gain = 0.0
        for row, origin in enumerate(origins.tolist()):
            asked = Asked(traffic.name, _history(traffic, origin), leads[-1], LEVEL)
            if refine and row == 0:
                await pool.predict(asked)
                gain = (await pool.refine(asked)).gain
            told = await pool.predict(asked)
            place = np.array(leads) - 1
            scores.chosen[row], scores.low[row], scores.high[row] = told.mean[place], told.low[place], told.high[place]
            scores.answered[told.model] += 1
            scores.drifts[told.drift] += 1
    finally:
        await pool.stop()
    return scores, gain


def _score_alone(
    traffic: Traffic, scores: Scores, model: Forecaster, count: int, spent: dict[str, list[float]]
) -> None:
    origins = _origins(traffic, count)
    past = _history(traffic, int(origins[0]))
    day = past.seasons[0] if past.seasons else 0
    view = SeriesView(
        past.values, traffic.step_s, past.seasons, leads_for(scores.leads[-1], traffic.step_s),
        weights_of(past.values, past.missing, day=day),
    )  # fmt: skip
    began = time.process_time()
    try:
        fitted = model.fit(view, np.random.default_rng(0))
    except Unfit:
        return
    spent.setdefault(model.name, []).append(time.process_time() - began)
    said = scores.others[model.name] = fitted.rolling(traffic.values, origins, np.array(scores.leads))
    known = past.values if past.missing is None else past.values[~past.missing]
    floor = 0.05 * float(known.mean()) + 1e-12      # as the forecaster has it
    scores.covered[model.name] = scores.covered_alone(said, origins, floor=floor)


def _row(traffic: Traffic, scores: Scores) -> dict[str, object]:
    minutes = [lead * traffic.step_s / 60 for lead in scores.leads]
    errors = {name: scores.wapes(said) for name, said in scores.others.items()}
    chosen = scores.wapes(scores.chosen)
    best = [min(errors[name][at] for name in NAIVE if name in errors) for at in range(len(minutes))]
    return {
        "minutes": minutes, "wape_chosen": _short(chosen),
        "ratio": [round(mine / theirs, 3) for mine, theirs in zip(chosen, best, strict=True)],
        "coverage": _short(scores.coverage()), "wape": {name: _short(each) for name, each in errors.items()},
        "coverage_alone": {name: _short(each) for name, each in scores.covered.items()},
        "answered": scores.answered.most_common(2), "drifts": dict(scores.drifts),
    }  # fmt: skip


async def _many(series: Sequence[Traffic], count: int) -> dict[str, object]:
    """One row for all: means over series."""
    errors: dict[str, list[float]] = {}
    covered = []
    for each in series:
        scores, _ = await _asked_here(each, count)
        naive = {name: models.BUILT_IN[name]() for name in NAIVE}
        for name, model in naive.items():
            _score_alone(each, scores, model, count, {})
            errors.setdefault(name, []).append(scores.wapes(scores.others[name])[0])
        errors.setdefault("chosen", []).append(scores.wapes(scores.chosen)[0])
        covered.append(scores.coverage()[0])
    means = {name: statistics.mean(each) for name, each in errors.items()}
    return {
        "minutes": [60.0], "wape_chosen": [round(means["chosen"], 4)],
        "ratio": [round(means["chosen"] / min(means[name] for name in NAIVE), 3)],
        "coverage": [round(statistics.mean(covered), 4)],
        "wape": {name: [round(each, 4)] for name, each in means.items() if name != "chosen"},
        "series": len(series),
    }  # fmt: skip


async def _asked_here(traffic: Traffic, count: int) -> tuple[Scores, float]:
    """As `_asked`, in this process: what the pool runs, without a process for each of hundreds of series."""
    leads, origins = _leads(traffic), _origins(traffic, count)
    index = origins[:, None] + np.array(leads)[None, :] - 1
    scores = Scores.empty(leads, traffic.values[index])
    for row, origin in enumerate(origins.tolist()):
        told = models.predict(Asked(traffic.name, _history(traffic, origin), leads[-1], LEVEL))
        place = np.array(leads) - 1
        scores.chosen[row], scores.low[row], scores.high[row] = told.mean[place], told.low[place], told.high[place]
    return scores, 0.0


def _series_per_cpu_hour(series: Sequence[Traffic]) -> dict[str, float]:
    """How many series one core forecasts in an hour: chosen anew each time, and by models that are kept."""
    fresh, kept = [], []
    for each in series:
        asked = Asked(f"{each.name} timed", _history(each, len(each.values) - 1), 1, LEVEL)
        again = replace(asked, history=_history(each, len(each.values)))
        began = time.process_time()
        models.predict(asked)
        between = time.process_time()
        models.predict(again)
        fresh.append(between - began)
        kept.append(time.process_time() - between)
    return {
        "series_per_cpu_hour": 3600 / statistics.mean(kept),
        "series_per_cpu_hour_chosen_anew": 3600 / statistics.mean(fresh),
        "choose_cpu_s": statistics.mean(fresh), "predict_cpu_s": statistics.mean(kept),
    }  # fmt: skip


async def _asks() -> dict[str, float]:
    """What an ask of a long series costs the service and its model process, from the store to the answer."""
    with tempfile.TemporaryDirectory() as folder:
        store = SqlStore(f"sqlite:///{folder}/forecaster.sqlite")
        store.open()
        place = np.arange(ASKED_ROWS)
        values = 100 + 50 * np.sin(2 * np.pi * place / 8640) + np.random.default_rng(0).normal(0, 5, ASKED_ROWS)
        points = [Point(10.0 * at, float(value)) for at, value in enumerate(values)]
        store.put("asked", 10.0, points[:-ASKS])

        async def told(_: Forecast) -> None:
            return None

        pool = ModelPool(timeout_s=600.0)
        app = App(store, pool, clock=system_clock, updated=told)
        await pool.start()
        try:
            await app.forecast(Ask("asked", horizon=60))
            began, took = _family_cpu_s(), []
            for point in points[-ASKS:]:
                await app.observe("asked", 10.0, [point])
                asked = time.perf_counter()
                await app.forecast(Ask("asked", horizon=60))
                took.append(time.perf_counter() - asked)
            spent_s = _family_cpu_s() - began
        finally:
            await pool.stop()
            store.close()
    return {
        "ask_cpu_ms": 1000 * spent_s / ASKS, "asks_per_cpu_s": ASKS / spent_s, "ask_ms": 1000 * statistics.median(took)
    }


def _family_cpu_s() -> float:
    me = psutil.Process()
    return sum(sum(each.cpu_times()[:2]) for each in (me, *me.children(recursive=True)))


def _sample(series: Sequence[Traffic], count: int) -> list[Traffic]:
    """Evenly spread over the list."""
    return [series[at] for at in np.unique(np.linspace(0, len(series) - 1, count).astype(int))]


def _short(values: Sequence[float]) -> list[float]:
    return [round(value, 4) for value in values]
