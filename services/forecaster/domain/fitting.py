"""From a history to models that are fitted, chosen and judged; and from those to a forecast.

`fit` tests all models on the last part of the history, chooses for each horizon and fits the chosen to all of it.
`advance` takes notice of what has come since, and says whether the series is still the same. `speak` predicts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from recmesh.plugins.forecasting import Fitted, Forecaster, Ints
from services.forecaster.domain.backtest import rolled, tested, told_of, view_of
from services.forecaster.domain.conformal import LEAST_ERRORS, offsets, scale_of
from services.forecaster.domain.drift import Drift, likeness_of, verdict
from services.forecaster.domain.empirical import MOSTLY_ZERO, errors_for, guessed, is_sporadic, of_values
from services.forecaster.domain.forecast import Predicted, wape
from services.forecaster.domain.history import History, comparable_lead, leads_for, truth_at
from services.forecaster.domain.selection import Choice, bucket_of
from services.forecaster.domain.series import Floats
from services.forecaster.domain.unusual import Shift, level_shift

KEPT_ROWS = 720
"""Origins whose errors make the intervals, at most."""
AT_ONCE = 48
"""New origins that are looked at when many values came since the last forecast."""
STALE, STALE_DEAR = 0.1, 0.3
STALE_SEASONS = 7
"""Growth of the history after which everything is chosen anew: a share, and (shortest) seasons; the less of the two."""
DRIFT_TOLD = 96
"""Steps for which a drift is told where there is no season; else for the longest season."""
RECENT_SEASONS = 4
"""What is left of the history after a drift, in its shortest season."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A forecast that is wanted."""

    key: str
    """What its models are kept by: a series, its step and its seasons."""
    history: History
    horizon: int
    level: float = 0.8


@dataclass(frozen=True, slots=True)
class Kept:
    """What is known of a series' models, from one forecast to the next."""

    step_s: float
    seasons: tuple[int, ...]
    leads: tuple[int, ...]
    start: int
    fitted_at: int
    """The history's end when the models were fitted."""
    models: Mapping[str, Fitted]
    choice: Choice
    """Of `models`, in their order."""
    origins: Ints
    """Steps from the epoch at which something was said, ascending: the backtest's, then those since."""
    said: Floats
    """(origins, leads)"""
    shift: Shift | None = None
    drift: Drift = Drift.NONE
    """What made them be chosen anew."""
    dear: bool = False
    """Dear models were tried too."""
    loss: float = 0.0
    """Mean error of the choice on the newest half of the backtest."""
    cheap_loss: float = 0.0
    """The same for what would have been chosen without dear models."""
    failed: Mapping[str, str] = field(default_factory=dict)
    """Models that broke, and how."""
    broken: frozenset[str] = frozenset()
    """Of the chosen ones, those that broke after they had been chosen: choose anew without them."""


@dataclass(frozen=True, slots=True)
class Refined:
    """What dear models brought."""

    gain: float
    """Share of the backtest's error that they took away; 0 or less: none."""
    seconds: float
    """CPU time of the trial."""
    kept: Kept | None
    """Models to answer from now on; none: the cheap ones do as well."""


def fit(
    history: History, *, horizon: int, forecasters: Sequence[Forecaster], rng: np.random.Generator,
    seconds: float = 60.0, drift: Drift = Drift.NONE,
) -> Kept:  # fmt: skip
    """Test, choose, and fit the chosen to all there is.

    A history with a lasting shift of its level is tried as it is and with its older part brought to the new level, and
    after a `drift` also without its older part; what was less wrong on the newest origins is taken.
    """
    leads = leads_for(max(horizon, comparable_lead(history)), history.step_s)
    day = history.seasons[0] if history.seasons else 0
    tries: list[tuple[History, Shift | None]] = [(history, None)]
    shift = level_shift(history.values, day=day)
    if shift is not None:
        shift = Shift(history.start + shift.at, shift.factor)
        tries.append((history.levelled(shift), shift))
    if drift is not Drift.NONE:
        short = history.since(history.end - max(RECENT_SEASONS * day, 8 * leads[-1], len(history.values) // 4))
        if len(short.values) < len(history.values):
            tries.append((_with_seasons(short), None))
    squared = float((history.values == 0).mean()) > MOSTLY_ZERO
    judged = [tested(each, leads, forecasters, rng, seconds, squared) for each, _ in tries]
    best = min(range(len(tries)), key=lambda at: judged[at].newest)
    found, (used, its_shift) = judged[best], tries[best]
    view = view_of(used, len(used.values), leads, seconds)
    by_name = {each.name: each for each in forecasters}
    models, failed = dict(found.fitted), dict(found.failed)
    for name in found.choice.names:
        try:
            models[name] = by_name[name].fit(view, rng)
        except Exception as error:  # somebody else's model; what was tested on the first part goes on
            failed[name] = f"{told_of(error)} (on all values; it goes by the first of them)"
    models = {name: models[name] for name in found.choice.names}
    return Kept(
        step_s=history.step_s, seasons=history.seasons, leads=leads, start=used.start, fitted_at=used.end,
        models=models, choice=found.choice, origins=used.start + found.origins, said=found.said,
        shift=its_shift, drift=drift,
        dear=any(each.dear for each in forecasters), loss=found.newest, cheap_loss=found.newest_cheap,
        failed=failed,
    )  # fmt: skip


def _with_seasons(history: History) -> History:
    return replace(history, seasons=tuple(each for each in history.seasons if 2 * each <= len(history.values)))


def is_stale(kept: Kept, history: History, *, horizon: int) -> bool:
    """Whether it must be chosen anew: another grid or season, a longer horizon, or many new values."""
    grown = (STALE_DEAR if kept.dear else STALE) * (kept.fitted_at - kept.start) + 1
    if kept.seasons:
        grown = min(grown, STALE_SEASONS * kept.seasons[0])
    return (
        kept.step_s != history.step_s or horizon > kept.leads[-1] or history.end < kept.fitted_at
        or kept.seasons != history.seasons
        or history.end - kept.fitted_at > grown
    )  # fmt: skip


def _aligned(kept: Kept, history: History) -> History:
    """The part that the models may be shown: it starts a whole number of seasons from where they were fitted."""
    season = max(kept.seasons, default=1)
    begin = max(history.start, kept.start)
    begin += -(begin - kept.start) % season
    if begin >= history.end:
        begin = history.start
    return history.since(begin).levelled(kept.shift)


def _combined(kept: Kept, history: History, origins: Ints, leads: Ints) -> tuple[Floats, dict[str, str]]:
    """What the chosen models say together, (origins, leads), and which of them broke, and how; origins from the epoch.

    The others' weights make up for one that broke; where none is left, the last value answers.
    """
    buckets = np.array([bucket_of(lead, kept.step_s) for lead in kept.leads])
    column = np.clip(np.searchsorted(np.array(kept.leads), leads), 0, len(kept.leads) - 1)
    for at, lead in enumerate(leads.tolist()):  # of its own bucket, where that has a tested lead
        own = np.flatnonzero(buckets == bucket_of(lead, kept.step_s))
        if len(own):
            column[at] = own[np.argmin(np.abs(np.array(kept.leads)[own] - lead))]
    total, given = np.zeros((len(origins), len(leads))), np.zeros(len(leads))
    broken: dict[str, str] = {}
    for row, name in enumerate(kept.choice.names):
        share = kept.choice.weights[row][column]
        wanted = np.flatnonzero(share > 0)
        if not len(wanted):
            continue
        try:
            made = rolled(kept.models[name], history.values, origins - history.start, leads[wanted])
        except Exception as error:  # a model of somebody else's must not cost the forecast
            broken[name] = told_of(error)
            continue
        total[:, wanted] += share[wanted] * made
        given[wanted] += share[wanted]
    if broken:
        last = history.values[origins - history.start - 1]
        total = np.where(given > 0, total / np.where(given > 0, given, 1.0), last[:, None])
    return total, broken


def advance(kept: Kept, history: History) -> Kept:
    """With what the models say now, and would have said since the last forecast."""
    shown = _aligned(kept, history)
    last = int(kept.origins[-1]) if len(kept.origins) else kept.fitted_at - 1
    apart = max(1, int(np.median(np.diff(kept.origins)))) if len(kept.origins) > 1 else 1
    fresh = np.arange(max(last + apart, shown.start + 1), shown.end + 1, apart)
    fresh = fresh[shown.observed[fresh - 1 - shown.start]]   # what fills a gap leans on what came after it
    if not len(fresh):
        return kept
    if len(fresh) > AT_ONCE:
        fresh = fresh[np.linspace(0, len(fresh) - 1, AT_ONCE).astype(np.int64)]
    (said, broken), rows = _combined(kept, shown, fresh, np.array(kept.leads)), slice(-KEPT_ROWS, None)
    return replace(
        kept, origins=np.concatenate([kept.origins, fresh])[rows], said=np.concatenate([kept.said, said])[rows],
        failed={**kept.failed, **broken}, broken=kept.broken | broken.keys(),
    )  # fmt: skip


def drift_of(kept: Kept, history: History) -> Drift:
    """By the errors since the models were fitted, at the longest lead within an hour: nearer ones see little of a shift
    before they have followed it. Call `advance` before."""
    shown = _aligned(kept, history)
    within = [at for at, lead in enumerate(kept.leads) if lead * kept.step_s <= 3600.0] or [0]
    errors = truth_at(shown, kept.origins, kept.leads)[:, within[-1]] - kept.said[:, within[-1]]
    known, tested = np.isfinite(errors), kept.origins < kept.fitted_at
    season = kept.seasons[0] if kept.seasons else 1
    now, usual = likeness_of(shown.values[-9 * season :], season)
    since = errors[known & ~tested][-AT_ONCE:]
    return verdict(errors[known & tested], since, likeness=now, likeness_before=usual)


def speak(kept: Kept, history: History, *, horizon: int, level: float) -> Predicted:
    """The next `horizon` values with intervals. Call `advance` before."""
    shown = _aligned(kept, history)
    ahead = np.arange(1, horizon + 1)
    (mean,), broken = _combined(kept, shown, np.array([shown.end]), ahead)
    kept = replace(kept, failed={**kept.failed, **broken}, broken=kept.broken | broken.keys())
    truth = truth_at(shown, kept.origins, kept.leads)
    near = min(int(np.searchsorted(np.array(kept.leads), horizon)) + 1, len(kept.leads))
    known = shown.values if shown.missing is None else shown.values[~shown.missing]
    floor = 0.05 * float(known.mean()) + 1e-12 if len(known) else 1e-12
    low, high = mean, mean
    if np.isfinite(truth).any():
        span = max(1, int(kept.origins[-1] - kept.origins[0]))
        weights = 0.5 ** ((kept.origins[-1] - kept.origins) / span)
        while near < len(kept.leads) and np.isfinite(truth[:, :near]).sum() < LEAST_ERRORS:
            near += 1
        leads = np.array(kept.leads)[:near]
        alike = leads * (len(kept.origins) / span)
        power, sides = offsets(kept.said[:, :near], truth[:, :near], weights, alike, level=level, floor=floor)
        scale = scale_of(mean, power=power, floor=floor)
        low, high = (mean + scale * np.interp(ahead, leads, side) for side in sides)
    if len(known) and float((known == 0).mean()) > MOSTLY_ZERO:
        least = float(known[known > 0].min(initial=np.inf))
        low = np.where(low < least, np.minimum(low, 0.0), low)      # nothing comes between zero and the least there was
    errors = int(np.isfinite(truth).sum(axis=0).max(initial=0))
    notes = []
    sporadic = is_sporadic(shown)
    if sporadic:
        low, high = (np.full(horizon, end) for end in of_values(shown, level=level))
        notes.append("sporadic: the interval is that of the recent values, and the mean may lie outside of it")
    elif errors < errors_for(level):
        wide = guessed(known, mean, kept.step_s, level=level, errors=errors)
        low, high = np.minimum(low, mean - wide), np.maximum(high, mean + wide)
        notes.append(f"the interval is a guess: {errors} of {errors_for(level)} errors that it needs are known")
    asked = np.array(kept.leads) <= max(horizon, 1)
    seen = np.isfinite(truth) & asked[None, :]
    if not seen.any():
        seen = np.isfinite(truth) & (np.arange(len(kept.leads)) < near)
    used = [name for name in kept.choice.used if name not in kept.broken] or ["persistence"]
    told = kept.drift if history.end - kept.fitted_at <= max(kept.seasons, default=DRIFT_TOLD) else Drift.NONE
    return Predicted(
        "+".join(sorted(used)), mean, low, high,
        error=wape(truth[seen], kept.said[seen]), drift=told.value,
        note="; ".join([*notes, *_notes(kept, ahead, told)]), broken=kept.broken, sporadic=sporadic,
    )  # fmt: skip


def _notes(kept: Kept, ahead: Ints, drift: Drift) -> list[str]:
    notes = []
    if len(kept.choice.names) > 1:
        column = [at for at, lead in enumerate(kept.leads) if lead <= len(ahead)]
        shares = kept.choice.weights[:, column].mean(axis=1)
        told = [f"{kept.choice.names[at]} {shares[at]:.0%}" for at in np.argsort(-shares) if shares[at] >= 0.005]
        notes.append("weights " + ", ".join(told))
    if kept.shift is not None:
        notes.append(
            f"the level became {kept.shift.factor:.3g} times as high {kept.fitted_at - kept.shift.at} steps before"
        )
    if drift is not Drift.NONE:
        notes.append(f"drift of the {drift.value}: the models were chosen anew")
    notes += [f"{name} failed: {why}" for name, why in kept.failed.items()]
    return notes
