"""The rolling-origin test: what models that learned from the first part of a history would have said on the rest."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from recmesh.plugins.forecasting import Fitted, Forecaster, Ints, SeriesView, Unfit
from services.forecaster.domain.history import History, truth_at
from services.forecaster.domain.selection import Backtest, Choice, choose
from services.forecaster.domain.series import Bools, Floats
from services.forecaster.domain.unusual import weights_of

ORIGINS = 240
"""Of the backtest, at most."""
TESTED = 0.2
"""Share of the history that is tested on."""
FEW = 24
"""Values that a short history is tested on, or half of it: a fifth of 20 are four errors, which make no interval."""
SHORT_SEASONS = 28
"""Histories of fewer (shortest) seasons are tested a second time, on the part before: intervals from errors of two days
would know two days."""


@dataclass(frozen=True, slots=True)
class Tested:
    """What a backtest chose, and how wrong that was."""

    choice: Choice
    fitted: Mapping[str, Fitted]
    """On the part before the test."""
    origins: Ints
    said: Floats
    newest: float
    newest_cheap: float
    """The same for what would have been chosen without dear models."""
    failed: Mapping[str, str]


def origins_for(count: int, *, seasons: Sequence[int], horizon: int, missing: Bools | None = None) -> Ints:
    """Where the rolling-origin test cuts a history: over the last fifth of what was observed, and at least one
    (shortest) season, one horizon or FEW values where half of that is left to learn from; oldest first.

    Always after an observed value, as the history itself ends: what fills a gap leans on what came after it. None for
    a single value.
    """
    seen = np.arange(count) if missing is None else np.flatnonzero(~missing)
    cuts = seen[seen < count - 1] + 1
    if not len(cuts):
        return np.zeros(0, dtype=np.int64)
    season = seasons[0] if seasons else 1
    fifth, half = (count - int(seen[-max(1, part)]) for part in (round(TESTED * len(seen)), len(seen) // 2))
    few = min(FEW, half)
    span = max(fifth, few, min(season, count - season - 2), min(horizon, count // 3), 2)
    first = max(count - min(span, half), 1)
    if seasons:
        first = max(first, min(season + 2, count - 1))
    tested = cuts[cuts >= first]
    if not len(tested):
        tested = cuts[-1:]
    return tested[np.linspace(0, len(tested) - 1, min(ORIGINS, len(tested))).astype(np.int64)]


def view_of(history: History, count: int, leads: tuple[int, ...], seconds: float) -> SeriesView:
    """The first `count` values."""
    missing = None if history.missing is None else history.missing[:count]
    weights = weights_of(history.values[:count], missing, day=history.seasons[0] if history.seasons else 0)
    seasons = tuple(each for each in history.seasons if each < count)
    return SeriesView(history.values[:count], history.step_s, seasons, leads, weights, seconds)


def tested(
    history: History, leads: tuple[int, ...], forecasters: Sequence[Forecaster], rng: np.random.Generator,
    seconds: float, squared: bool,
) -> Tested:  # fmt: skip
    """Let all models learn from the first part of a history, predict the rest, and choose. `squared`: as `choose`."""
    count = len(history.values)
    origins = origins_for(count, seasons=history.seasons, horizon=leads[-1], missing=history.missing)
    known = np.cumsum(history.observed)
    first = int(origins[0]) if len(origins) else count
    failed: dict[str, str] = {}
    said, fitted = _said(view_of(history, first, leads, seconds), history.values, origins, forecasters, rng, failed)
    season, newer = history.seasons[0] if history.seasons else 0, len(origins)
    former = origins - (count - first)
    former = former[former >= max(2 * season, 1)]
    former = former[history.observed[former - 1] & (known[former - 1] >= known[-1] // 3)]
    if season and count < SHORT_SEASONS * season and len(former):
        cheap = [each for each in forecasters if not each.dear]
        before, _ = _said(view_of(history, int(former[0]), leads, seconds), history.values, former, cheap, rng, failed)
        middle = np.median(np.stack(list(before.values())), axis=0)  # for those that had too little to learn from
        said = {name: np.concatenate([before.get(name, middle), made]) for name, made in said.items()}
        origins = np.concatenate([former, origins])
    age = (count - origins) / max(1, count - first)
    truth = truth_at(history, origins + history.start, leads)
    dear = {each.name for each in forecasters if each.dear and each.name in said}
    # dear models are fitted once: before its part of the history they have said nothing to be judged by
    judged = slice(-newer if dear and newer else None, None)
    told = {name: made[judged] for name, made in said.items()}
    choice = choose(Backtest(truth[judged], told, 0.5 ** age[judged], leads), step_s=history.step_s, squared=squared)
    without = choice
    if dear:
        cheap_told = {name: made for name, made in told.items() if name not in dear}
        backtest = Backtest(truth[judged], cheap_told, 0.5 ** age[judged], leads)
        without = choose(backtest, step_s=history.step_s, squared=squared)

    def loss(of: Choice) -> float:
        """On the newest half."""
        wrong = np.abs(_mixed(of, said) - truth)[-max(1, newer // 2) :]
        return float(np.nanmean(wrong)) if np.isfinite(wrong).any() else 0.0

    both = loss(choice), loss(without)
    keep = [at for at, total in enumerate(choice.weights.sum(axis=1)) if total > 0]
    choice = Choice(tuple(choice.names[at] for at in keep), choice.weights[keep], choice.wape)
    return Tested(choice, fitted, origins, _mixed(choice, said), *both, failed)


def _mixed(choice: Choice, said: Mapping[str, Floats]) -> Floats:
    """(origins, leads)"""
    made: Floats = np.einsum("ml,mol->ol", choice.weights, np.stack([said[name] for name in choice.names]))
    return made


def _said(
    view: SeriesView, values: Floats, origins: Ints, forecasters: Sequence[Forecaster], rng: np.random.Generator,
    failed: dict[str, str],
) -> tuple[dict[str, Floats], dict[str, Fitted]]:  # fmt: skip
    """By model, predictions (origins, leads) and what was fitted to the view; those that the history does not suffice
    for are left out."""
    said: dict[str, Floats] = {}
    learned: dict[str, Fitted] = {}
    wanted = (len(origins), len(view.leads))
    for each in forecasters:
        try:
            fitted = each.fit(view, rng)
            made = rolled(fitted, values, origins, np.array(view.leads)) if len(origins) else np.zeros(wanted)
            said[each.name], learned[each.name] = made, fitted
        except Unfit:
            continue
        except Exception as error:  # a model of somebody else's must not cost the forecast
            failed[each.name] = told_of(error)
    return said, learned


def rolled(fitted: Fitted, values: Floats, origins: Ints, leads: Ints) -> Floats:
    """What a model says, from 0 up; ValueError when that is no forecast, and whatever it raises itself."""
    made = fitted.rolling(values, origins, leads)
    if made.shape != (len(origins), len(leads)) or not np.isfinite(made).all():
        raise ValueError(f"it answered with shape {made.shape}, or with values that are not finite")
    floored: Floats = np.maximum(made, 0.0)
    return floored


def told_of(error: Exception) -> str:
    """In a note."""
    return f"{type(error).__name__}: {error}"
