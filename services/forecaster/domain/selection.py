"""Which models answer, and with what weight: by how wrong they were on the history's last part, for each horizon."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from recmesh.plugins.forecasting import Ints
from services.forecaster.domain.series import Floats

BUCKETS_S = (0.0, 1800.0, 3600.0, 86_400.0)
"""Upper ends of the horizons that choose on their own: the next step, half an hour, an hour, a day, all beyond."""
CONTENDERS = 4
"""Best models of a bucket that may be combined."""
HOPELESS = 2.5
"""Times the best model's error, above which a model is not combined."""
LEAST_ORIGINS = 12
"""With fewer, the best single model answers: weights would be fitted to chance."""
WORTH = 0.005
"""Relative gain from which on a combination replaces the best single model."""


@dataclass(frozen=True, slots=True)
class Backtest:
    """What came and what the models had said, at `origins` (rows) and `leads` (columns); NaN where nothing came yet."""

    truth: Floats
    """(origins, leads)"""
    said: Mapping[str, Floats]
    """By model, each (origins, leads)."""
    weights: Floats
    """What each origin counts, (origins,)."""
    leads: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """Weights of models, and how wrong each was."""

    names: tuple[str, ...]
    """All that answered, in the order of the weights' rows."""
    weights: Floats
    """(models, leads); every column sums to 1."""
    wape: Mapping[str, Floats]
    """Of each model by lead, (leads,)."""

    @property
    def used(self) -> list[str]:
        """Models with any weight, the heaviest first."""
        total = self.weights.sum(axis=1)
        return [self.names[at] for at in np.argsort(-total, kind="stable") if total[at] > 0]


def bucket_of(lead: int, step_s: float) -> int:
    """Which horizon a lead belongs to."""
    if lead == 1:
        return 0
    ahead_s = lead * step_s
    return next((at for at, end_s in enumerate(BUCKETS_S) if at and ahead_s <= end_s + 1e-6), len(BUCKETS_S))


def choose(backtest: Backtest, *, step_s: float, squared: bool = False) -> Choice:
    """For each bucket of leads: the best model, or a convex combination where that was better.

    Candidates are the best single model, weights inverse to squared errors (Bates and Granger 1969), and least-squares
    stacking (Breiman 1996); each is made from the first half of the origins and judged on the second. Errors are
    absolute; `squared` is for series that are mostly zero, where the absolute error's best answer is always zero.
    """
    names = tuple(backtest.said)
    table = np.stack([backtest.said[name] for name in names])
    weights = np.zeros((len(names), len(backtest.leads)))
    groups: dict[int, list[int]] = {}
    for column, lead in enumerate(backtest.leads):
        if np.isfinite(backtest.truth[:, column]).any():
            groups.setdefault(bucket_of(lead, step_s), []).append(column)
    last = np.zeros(len(names))
    last[0] = 1.0
    for bucket in range(len(BUCKETS_S) + 1):
        columns = [at for at, lead in enumerate(backtest.leads) if bucket_of(lead, step_s) == bucket]
        if bucket in groups:
            last = _weights(table[:, :, groups[bucket]], backtest.truth[:, groups[bucket]], backtest.weights, squared)
        weights[:, columns] = last[:, None]
    return Choice(names, weights, {name: _wapes(backtest, name) for name in names})


def _wapes(backtest: Backtest, name: str) -> Floats:
    worth = backtest.weights[:, None] * np.isfinite(backtest.truth)
    truth = np.nan_to_num(backtest.truth)
    total = (worth * np.abs(truth)).sum(axis=0)
    wrong = (worth * np.abs(truth - backtest.said[name])).sum(axis=0)
    return np.where(total > 0, wrong / np.where(total > 0, total, 1.0), np.where(wrong > 0, 1.0, 0.0))


def _weights(said: Floats, truth: Floats, worth: Floats, squared: bool) -> Floats:
    """(models,), for said (models, origins, leads) and truth (origins, leads)."""
    known = np.isfinite(truth)
    rows = known.any(axis=1)
    order = np.flatnonzero(rows)
    every = _Rows.of(said, truth, worth, order)
    losses = every.losses(squared)
    single: Floats = np.eye(len(said))[int(np.argmin(losses))]
    if len(order) < LEAST_ORIGINS or len(said) == 1:
        return single
    former, latter = (_Rows.of(said, truth, worth, half) for half in np.array_split(order, 2))
    if not (former.worth.sum() > 0 and latter.worth.sum() > 0):
        return single
    makers: tuple[Callable[[_Rows, bool], Floats], ...] = (_best, _inverse, _stacked)
    judged = [latter.loss(maker(former, squared), squared) for maker in makers]
    best = int(np.argmin(judged))
    if judged[best] > judged[0] * (1 - WORTH):
        return single
    return makers[best](every, squared)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Flat pairs of what was said and what came."""

    said: Floats
    """(models, pairs)"""
    truth: Floats
    worth: Floats

    @staticmethod
    def of(said: Floats, truth: Floats, worth: Floats, at: Ints) -> "_Rows":
        known = np.isfinite(truth[at])
        spread = np.broadcast_to(worth[at][:, None], known.shape)
        return _Rows(said[:, at][:, known], truth[at][known], spread[known])

    def losses(self, squared: bool) -> Floats:
        """Of each model."""
        wrong = np.abs(self.said - self.truth)
        found: Floats = ((wrong**2 if squared else wrong) * self.worth).sum(axis=1)
        return found

    def loss(self, weights: Floats, squared: bool) -> float:
        wrong = np.abs(weights @ self.said - self.truth)
        return float(((wrong**2 if squared else wrong) * self.worth).sum())


def _best(rows: _Rows, squared: bool) -> Floats:
    made = np.zeros(len(rows.said))
    made[int(np.argmin(rows.losses(squared)))] = 1.0
    return made


def _contenders(rows: _Rows, squared: bool) -> list[int]:
    losses = rows.losses(squared)
    best = np.argsort(losses, kind="stable")[:CONTENDERS]
    return [int(at) for at in best if losses[at] <= HOPELESS * losses[best[0]] + 1e-12]


def _inverse(rows: _Rows, squared: bool) -> Floats:
    made, losses = np.zeros(len(rows.said)), rows.losses(squared)
    for at in _contenders(rows, squared):
        made[at] = 1.0 / (losses[at] + 1e-12) ** (1 if squared else 2)
    made /= made.sum()
    return made


def _stacked(rows: _Rows, squared: bool) -> Floats:
    """Least squares under weights from 0 up that sum to 1; weighted towards absolute errors where those count."""
    best = _contenders(rows, squared)
    wrong = np.abs(rows.said[best[0]] - rows.truth)
    share = rows.worth if squared else rows.worth / np.maximum(wrong, 0.3 * float(np.median(wrong)) + 1e-12)
    root = np.sqrt(share / (share.mean() + 1e-300))
    scale = float(np.abs(rows.truth).mean()) + 1e-12
    matrix = (rows.said[best] * root / scale).T
    total = 100.0 * np.sqrt(len(root))  # weight of the row that says: they sum to 1
    found, _ = nnls(np.vstack([matrix, np.full(len(best), total)]), np.append(rows.truth * root / scale, total))
    made = np.zeros(len(rows.said))
    if found.sum() <= 0:
        return _best(rows, squared)
    made[best] = found / found.sum()
    return made
