"""Throughput models from 12 configurations of DL2's measured parameter-server jobs, beside other systems'.

For each model, draws of 12 configurations with at most 11 workers and 11 PSes train every system alike; the rest, up
to 23 of each, tests it. Errors are pooled over draws. Regret is the measured speed of the configuration that a model
thinks fastest, over that of the fastest.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.dl2 import F64, Table, load
from bench.figures import Result
from bench.peers.throughput import PEERS, READINGS, Model
from recmesh.plugins.planning import Shapes
from services.brain.domain.throughput.learn import learn
from services.brain.domain.throughput.learned import Learned
from services.brain.domain.throughput.observations import Mode, Observation

Numbers = NDArray[np.intp]
"""Of rows."""

TRAIN = 12
LARGEST = 11
DRAWS, QUICK_DRAWS = 50, 8
FOCUS = "dssm"
"""The one recommendation model of the eight."""
OURS = "recmesh"


@dataclass(frozen=True, slots=True)
class Scores:
    """Of one system on one model: over all draws."""

    errors: F64
    """|predicted/measured − 1| of every test row."""
    regrets: F64
    """One per draw."""

    @property
    def median(self) -> float:
        return float(np.median(self.errors))

    @property
    def p90(self) -> float:
        return float(np.quantile(self.errors, 0.9))

    @property
    def regret(self) -> float:
        return float(np.median(self.regrets))


def ours(table: Table, train: Numbers) -> Learned:
    """What brain learns of these rows; they were measured in no known order."""
    modes = {"dist_sync": Mode.SYNC, "dist_async": Mode.ASYNC}
    found = learn(
        [
            Observation(
                int(table.workers[i]),
                int(table.ps[i]),
                float(table.rate[i]),
                batch=float(table.batch / table.workers[i]),
                mode=modes[table.mode],
            )
            for i in train
        ],
        now=0.0,
        shared_batch=True,
    )
    if not isinstance(found, Learned):
        raise RuntimeError(f"{table.model}: {found.reason}")
    return found


def shapes(workers: F64, ps: F64) -> Shapes:
    """Cores were the same everywhere."""
    return Shapes(workers, ps, np.ones_like(workers), np.ones_like(ps))


def draws(table: Table, many: int) -> list[Numbers]:
    """Row numbers to train on; the same for every system."""
    small = np.flatnonzero((table.workers <= LARGEST) & (table.ps <= LARGEST))
    return [np.random.default_rng([seed, len(table)]).choice(small, TRAIN, replace=False) for seed in range(many)]


def fitted(table: Table, train: Numbers) -> Mapping[str, Model]:
    """Every system on these rows."""
    model = ours(table, train)
    seen = table.workers[train], table.ps[train], table.rate[train]
    return {OURS: lambda w, p: model.predict(shapes(w, p)).rate, **{name: fit(*seen) for name, fit in PEERS.items()}}


def scored(table: Table, trains: Sequence[Numbers]) -> dict[str, Scores]:
    """Every system on the same draws."""
    errors: dict[str, list[F64]] = {}
    regrets: dict[str, list[float]] = {}
    for train in trains:
        test = np.setdiff1d(np.arange(len(table)), train)
        for name, model in fitted(table, train).items():
            predicted = model(table.workers, table.ps)
            errors.setdefault(name, []).append(np.abs(predicted[test] / table.rate[test] - 1))
            regrets.setdefault(name, []).append(float(table.rate[np.argmax(predicted)] / table.rate.max()))
    return {name: Scores(np.concatenate(errors[name]), np.array(regrets[name])) for name in errors}


def left_out(table: Table) -> dict[str, float]:
    """Median error of each row, predicted from all others."""
    errors: dict[str, list[float]] = {}
    for i in range(len(table)):
        rest = np.delete(np.arange(len(table)), i)
        for name, model in fitted(table, rest).items():
            predicted = model(table.workers[i : i + 1], table.ps[i : i + 1])[0]
            errors.setdefault(name, []).append(abs(predicted / table.rate[i] - 1))
    return {name: float(np.median(each)) for name, each in errors.items()}


def within_two_sd(table: Table, trains: Sequence[Numbers]) -> float:
    """Share of test rows whose speed lies within two of the standard deviations that brain gave: 0.95 is right."""
    inside = []
    for train in trains:
        test = np.setdiff1d(np.arange(len(table)), train)
        told = ours(table, train).predict(shapes(table.workers[test], table.ps[test]))
        inside.append(np.abs(np.log(table.rate[test] / told.rate)) <= 2 * told.log_sd)
    return float(np.concatenate(inside).mean())


def fit_ms(table: Table, trains: Sequence[Numbers]) -> float:
    """Median CPU time of one fit."""
    took = []
    for train in trains:
        started = time.process_time()
        ours(table, train)
        took.append(1e3 * (time.process_time() - started))
    return float(np.median(took))


def run(*, quick: bool) -> Result:
    """All figures; the medians of each model and system are in the context."""
    tables = {table.model: table for table in load()}
    many = QUICK_DRAWS if quick else DRAWS
    trains = {model: draws(table, many) for model, table in tables.items()}
    scores = {model: scored(table, trains[model]) for model, table in tables.items()}
    focus, alone = scores[FOCUS], left_out(tables[FOCUS])
    figures = {
        "median_ape_dssm": focus[OURS].median,
        "p90_ape_dssm": focus[OURS].p90,
        "regret_dssm": focus[OURS].regret,
        "median_ape_loo_dssm": alone[OURS],
        "median_ape_all": _mean(scores, OURS, lambda each: each.median),
        "p90_ape_all": _mean(scores, OURS, lambda each: each.p90),
        "regret_all": _mean(scores, OURS, lambda each: each.regret),
        **{f"wins_vs_{peer}": _wins(scores, readings) for peer, readings in READINGS.items()},
        "within_two_sd_dssm": within_two_sd(tables[FOCUS], trains[FOCUS]),
        "within_two_sd_all": float(np.mean([within_two_sd(t, trains[model]) for model, t in tables.items()])),
        "fit_ms": fit_ms(tables[FOCUS], trains[FOCUS]),
    }
    for name in PEERS:
        figures |= {
            f"median_ape_dssm_{name}": focus[name].median,
            f"p90_ape_dssm_{name}": focus[name].p90,
            f"regret_dssm_{name}": focus[name].regret,
            f"median_ape_loo_dssm_{name}": alone[name],
            f"median_ape_all_{name}": _mean(scores, name, lambda each: each.median),
            f"regret_all_{name}": _mean(scores, name, lambda each: each.regret),
        }
    medians = {model: {name: round(each.median, 4) for name, each in by.items()} for model, by in scores.items()}
    regrets = {model: {name: round(each.regret, 3) for name, each in by.items()} for model, by in scores.items()}
    context = {
        "draws": many,
        "train": TRAIN,
        "largest": LARGEST,
        "rows": {name: len(table) for name, table in tables.items()},
        "median_ape": medians,
        "regret": regrets,
    }
    return Result("fit", figures, context)


def _mean(scores: Mapping[str, Mapping[str, Scores]], name: str, of: Callable[[Scores], float]) -> float:
    return float(np.mean([of(each[name]) for each in scores.values()]))


def _wins(scores: Mapping[str, Mapping[str, Scores]], readings: Sequence[str]) -> float:
    """Share of models with a lower median error than every reading of the peer."""
    won = [each[OURS].median < min(each[name].median for name in readings) for each in scores.values()]
    return float(np.mean(won))
