"""From a history to models that are fitted, chosen and judged; and from those to a forecast.

`fit` tests all models on the last part of the history, chooses for each horizon and fits the chosen to all of it.
`advance` takes notice of what has come since, and says whether the series is still the same. `speak` predicts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from recmesh.plugins.forecasting import Fitted, Forecaster, Ints, SeriesView, Unfit
from services.forecaster.domain.conformal import offsets, scale_of
from services.forecaster.domain.drift import Drift, likeness_of, verdict
from services.forecaster.domain.forecast import Predicted, wape
from services.forecaster.domain.selection import BUCKETS_S, Backtest, Choice, bucket_of, choose
from services.forecaster.domain.series import Bools, Floats
from services.forecaster.domain.unusual import Shift, level_shift, weights_of

ORIGINS = 240
"""Of the backtest, at most."""
TESTED = 0.2
"""Share of the history that is tested on."""
SHORT_SEASONS = 28
"""Histories of fewer (shortest) seasons are tested a second time, on the part before: intervals from errors of two days
would know two days."""
KEPT_ROWS = 720
"""Origins whose errors make the intervals, at most."""
AT_ONCE = 48
"""New origins that are looked at when many values came since the last forecast."""
STALE, STALE_DEAR = 0.1, 0.3
STALE_SEASONS = 7
"""Growth of the history after which everything is chosen anew: a share, and (shortest) seasons; the less of the two."""
MOSTLY_ZERO = 0.5
"""Share of zeros from which on a series is judged by squared errors."""
DRIFT_TOLD = 96
"""Steps for which a drift is told where there is no season; else for the longest season."""
RECENT_SEASONS = 4
"""What is left of the history after a drift, in its shortest season."""


@dataclass(frozen=True, slots=True)
class History:
    """A series up to now."""

    values: Floats
    start: int
    """The step, counted from the epoch, of the first value: histories of a series grow at one end and shrink at the
    other."""
    step_s: float
    seasons: tuple[int, ...] = ()
    missing: Bools | None = None

    @property
    def end(self) -> int:
        """The step after the last value."""
        return self.start + len(self.values)

    def since(self, step: int) -> "History":
        """Without what lies before a step."""
        at = min(max(0, step - self.start), len(self.values) - 1)
        missing = None if self.missing is None else self.missing[at:]
        return replace(self, values=self.values[at:], start=self.start + at, missing=missing)

    def levelled(self, shift: Shift | None) -> "History":
        """What lies before a shift, brought to the level after it. The shift's step is counted from the epoch."""
        if shift is None:
            return self
        values = self.values.copy()
        values[: max(0, shift.at - self.start)] *= shift.factor
        return replace(self, values=values)


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


@dataclass(frozen=True, slots=True)
class Refined:
    """What dear models brought."""

    gain: float
    """Share of the backtest's error that they took away; 0 or less: none."""
    seconds: float
    """CPU time of the trial."""
    kept: Kept | None
    """Models to answer from now on; none: the cheap ones do as well."""


def leads_for(horizon: int, step_s: float) -> tuple[int, ...]:
    """Leads that are fitted and tested: 1, 2, 3, 4, 6, 8, 12, ... and the ends of the buckets, up to the horizon or the
    next of them, so that forecasts of nearly the same length share their models."""
    made, power = {1}, 1
    while max(made) < horizon:
        made |= {power * 2, power * 3}
        power *= 2
    top = min(lead for lead in made if lead >= horizon)
    ends = {round(end_s / step_s) for end_s in BUCKETS_S if end_s >= step_s}
    return tuple(sorted(lead for lead in made | ends if lead <= top))


def origins_for(count: int, *, seasons: Sequence[int], horizon: int) -> Ints:
    """Where the rolling-origin test cuts a history: over its last fifth, and at least one (shortest) season or horizon
    where half of the history is left to learn from; oldest first. None for a single value."""
    season = seasons[0] if seasons else 1
    span = max(round(TESTED * count), min(season, count - season - 2), min(horizon, count // 3), 2)
    first = max(count - min(span, count // 2), 1)
    if seasons:
        first = max(first, min(season + 2, count - 1))
    if first > count - 1:
        return np.zeros(0, dtype=np.int64)
    return np.unique(np.linspace(first, count - 1, min(ORIGINS, count - first)).astype(np.int64))


def fit(
    history: History, *, horizon: int, forecasters: Sequence[Forecaster], rng: np.random.Generator,
    seconds: float = 60.0, drift: Drift = Drift.NONE,
) -> Kept:  # fmt: skip
    """Test, choose, and fit the chosen to all there is.

    A history with a lasting shift of its level is tried as it is and with its older part brought to the new level, and
    after a `drift` also without its older part; what was less wrong on the newest origins is taken.
    """
    leads = leads_for(horizon, history.step_s)
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
    judged = [_tested(each, leads, forecasters, rng, seconds, squared) for each, _ in tries]
    best = min(range(len(tries)), key=lambda at: judged[at].newest)
    tested, (used, its_shift) = judged[best], tries[best]
    view = _view(used, len(used.values), leads, seconds)
    by_name = {each.name: each for each in forecasters}
    models = {name: _learned(by_name[name], view, rng) or tested.fitted[name] for name in tested.choice.names}
    return Kept(
        step_s=history.step_s, seasons=history.seasons, leads=leads, start=used.start, fitted_at=used.end,
        models=models, choice=tested.choice, origins=used.start + tested.origins, said=tested.said,
        shift=its_shift, drift=drift,
        dear=any(each.dear for each in forecasters), loss=tested.newest, cheap_loss=tested.newest_cheap,
        failed=tested.failed,
    )  # fmt: skip


def _learned(forecaster: Forecaster, view: SeriesView, rng: np.random.Generator) -> Fitted | None:
    """None where it breaks on the whole history: then what was tested on its first part goes on."""
    try:
        return forecaster.fit(view, rng)
    except Exception:  # somebody else's model; it answered in the test
        return None


@dataclass(frozen=True, slots=True)
class _Tested:
    choice: Choice
    fitted: Mapping[str, Fitted]
    """On the part before the test."""
    origins: Ints
    said: Floats
    newest: float
    newest_cheap: float
    """The same for what would have been chosen without dear models."""
    failed: Mapping[str, str]


def _with_seasons(history: History) -> History:
    return replace(history, seasons=tuple(each for each in history.seasons if 2 * each <= len(history.values)))


def _view(history: History, count: int, leads: tuple[int, ...], seconds: float) -> SeriesView:
    """The first `count` values."""
    missing = None if history.missing is None else history.missing[:count]
    weights = weights_of(history.values[:count], missing, day=history.seasons[0] if history.seasons else 0)
    seasons = tuple(each for each in history.seasons if each < count)
    return SeriesView(history.values[:count], history.step_s, seasons, leads, weights, seconds)


def _tested(
    history: History, leads: tuple[int, ...], forecasters: Sequence[Forecaster], rng: np.random.Generator,
    seconds: float, squared: bool,
) -> _Tested:  # fmt: skip
    count = len(history.values)
    origins = origins_for(count, seasons=history.seasons, horizon=leads[-1])
    first = int(origins[0]) if len(origins) else count
    failed: dict[str, str] = {}
    said, fitted = _said(_view(history, first, leads, seconds), history.values, origins, forecasters, rng, failed)
    season, newer = history.seasons[0] if history.seasons else 0, len(origins)
    former = origins - (count - first)
    former = former[former >= max(2 * season, count // 3)]
    if season and count < SHORT_SEASONS * season and len(former):
        cheap = [each for each in forecasters if not each.dear]
        before, _ = _said(_view(history, int(former[0]), leads, seconds), history.values, former, cheap, rng, failed)
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
    return _Tested(choice, fitted, origins, _mixed(choice, said), *both, failed)


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
            made = fitted.rolling(values, origins, np.array(view.leads)) if len(origins) else np.zeros(wanted)
            if made.shape != wanted or not np.isfinite(made).all():
                raise ValueError(f"it answered with shape {made.shape}, or with values that are not finite")
            said[each.name], learned[each.name] = np.maximum(made, 0.0), fitted
        except Unfit:
            continue
        except Exception as error:  # a model of somebody else's must not cost the forecast
            failed[each.name] = f"{type(error).__name__}: {error}"
    return said, learned


def truth_at(history: History, origins: Ints, leads: Sequence[int]) -> Floats:
    """What came, (origins, leads); NaN where it has not come yet, or was not observed. Origins from the epoch."""
    index = origins[:, None] + np.array(leads)[None, :] - 1 - history.start
    inside = (index >= 0) & (index < len(history.values))
    safe = np.clip(index, 0, len(history.values) - 1)
    if history.missing is not None:
        inside &= ~history.missing[safe]
    return np.where(inside, history.values[safe], np.nan)


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


def _combined(kept: Kept, history: History, origins: Ints, leads: Ints) -> Floats:
    """What the chosen models say together; origins from the epoch. (origins, leads)"""
    buckets = np.array([bucket_of(lead, kept.step_s) for lead in kept.leads])
    column = np.clip(np.searchsorted(np.array(kept.leads), leads), 0, len(kept.leads) - 1)
    for at, lead in enumerate(leads.tolist()):  # of its own bucket, where that has a tested lead
        own = np.flatnonzero(buckets == bucket_of(lead, kept.step_s))
        if len(own):
            column[at] = own[np.argmin(np.abs(np.array(kept.leads)[own] - lead))]
    total = np.zeros((len(origins), len(leads)))
    for row, name in enumerate(kept.choice.names):
        share = kept.choice.weights[row][column]
        wanted = np.flatnonzero(share > 0)
        if len(wanted):
            made = kept.models[name].rolling(history.values, origins - history.start, leads[wanted])
            total[:, wanted] += share[wanted] * np.maximum(made, 0.0)
    return total


def advance(kept: Kept, history: History) -> Kept:
    """With what the models say now, and would have said since the last forecast."""
    shown = _aligned(kept, history)
    last = int(kept.origins[-1]) if len(kept.origins) else kept.fitted_at - 1
    apart = max(1, int(np.median(np.diff(kept.origins)))) if len(kept.origins) > 1 else 1
    fresh = np.arange(max(last + apart, shown.start + 1), shown.end + 1, apart)
    if not len(fresh):
        return kept
    if len(fresh) > AT_ONCE:
        fresh = fresh[np.linspace(0, len(fresh) - 1, AT_ONCE).astype(np.int64)]
    said, rows = _combined(kept, shown, fresh, np.array(kept.leads)), slice(-KEPT_ROWS, None)
    return replace(
        kept, origins=np.concatenate([kept.origins, fresh])[rows], said=np.concatenate([kept.said, said])[rows]
    )


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
    mean = _combined(kept, shown, np.array([shown.end]), ahead)[0]
    truth = truth_at(shown, kept.origins, kept.leads)
    known = shown.values if shown.missing is None else shown.values[~shown.missing]
    floor = 0.05 * float(known.mean()) + 1e-12 if len(known) else 1e-12
    low, high = mean, mean
    if np.isfinite(truth).any():
        span = max(1, int(kept.origins[-1] - kept.origins[0]))
        weights = 0.5 ** ((kept.origins[-1] - kept.origins) / span)
        near = int(np.searchsorted(np.array(kept.leads), horizon)) + 1
        leads = np.array(kept.leads)[:near]
        alike = leads * (len(kept.origins) / span)
        power, sides = offsets(kept.said[:, :near], truth[:, :near], weights, alike, level=level, floor=floor)
        scale = scale_of(mean, power=power, floor=floor)
        low, high = (mean + scale * np.interp(ahead, leads, side) for side in sides)
    asked = np.array(kept.leads) <= max(horizon, 1)
    seen = np.isfinite(truth) & asked[None, :]
    used = kept.choice.used
    told = kept.drift if history.end - kept.fitted_at <= max(kept.seasons, default=DRIFT_TOLD) else Drift.NONE
    return Predicted(
        "+".join(sorted(used)), mean, low, high,
        error=wape(truth[seen], kept.said[seen]), drift=told.value, note=_note(kept, ahead, told),
    )  # fmt: skip


def _note(kept: Kept, ahead: Ints, drift: Drift) -> str:
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
    return "; ".join(notes)
