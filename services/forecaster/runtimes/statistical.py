"""AutoETS, MSTL and the dynamic optimised theta model, by statsforecast. It takes seconds to import: dear models only.

They know seasons of a few dozen steps. On finer grids a day is taken off first (the median of the same moments, or
MSTL's components from a grid of at most 96 steps a day), and the model follows what is left.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from recmesh.plugins.forecasting import Fitted, Floats, Ints, SeriesView, Unfit

ETS_SEASON = 24
"""The longest season that AutoETS has states for."""
THETA_SEASON = 96
NEWEST = 1_500
"""Values that the smoothing models are fitted to: their memory is shorter."""
STL_STEPS_A_DAY = 96
STL_VALUES = 3_000
"""Of the grid that is decomposed: a second of work."""
THETA_WINDOW = 6
"""Seasons that the theta model looks back on."""
LEAST = 24
_AS_LONG_AS_THE_HISTORY = frozenset({"residuals", "fitted", "actual_residuals", "x", "states"})
"""Parts of a fitted model that its filter makes anew."""


@dataclass(frozen=True)
class Pattern:
    """What repeats, by steps from the first value modulo the season; none: nothing is taken off."""

    parts: tuple[Floats, ...] = ()

    def at(self, index: Ints) -> Floats:
        """Sum of the parts; the shape of `index`."""
        made: Floats = np.zeros(index.shape)
        for part in self.parts:
            made += part[index % len(part)]
        return made

    @staticmethod
    def of(values: Floats, season: int, *, cycles: int = 4) -> "Pattern":
        """Medians of the same moments in the newest cycles, without their level."""
        whole = min(cycles, len(values) // season)
        index = np.arange(len(values) - whole * season, len(values)) % season
        table = np.empty((whole, season))
        table[np.repeat(np.arange(whole), season), index] = values[len(values) - whole * season :]
        shape = np.median(table, axis=0)
        return Pattern((shape - shape.mean(),))


@dataclass(frozen=True)
class _Ets:
    """statsforecast's fitted parameters; states at every moment come from one pass of its filter."""

    model: dict[str, Any]
    pattern: Pattern

    def rolling(self, values: Floats, origins: Ints, leads: Ints) -> Floats:
        from statsforecast.ets import forward_ets

        last = int(origins.max())
        left = np.ascontiguousarray(values[:last] - self.pattern.at(np.arange(last)))
        states = forward_ets(self.model, left)["states"][origins]
        made = ets_mean(states, leads, self.model["components"], int(self.model["m"]), _damping(self.model))
        return made + self.pattern.at(origins[:, None] + leads[None, :] - 1)


def _damping(model: dict[str, Any]) -> float:
    """φ. Parameters are α, β, γ, φ, then first states; those that a form has not are not numbers."""
    return float(model["par"][3]) if str(model["components"])[3] == "D" else 1.0


def ets_mean(states: Floats, leads: Ints, components: str, season: int, damping: float) -> Floats:
    """Point forecasts of an exponential smoothing model, (origins, leads), from its states (origins, level, trend,
    seasonal newest first) (Hyndman et al. 2008, table 2.1)."""
    trend, seasonal = components[1], components[2]
    made = np.repeat(states[:, :1], len(leads), axis=1)
    if trend == "A":
        steps = leads.astype(np.float64) if damping == 1 else damping * (1 - damping**leads) / (1 - damping)
        made = made + states[:, 1:2] * steps[None, :]
    if seasonal != "N":
        first = 1 + (trend != "N")
        phase = states[:, first + season - 1 - (leads - 1) % season]
        made = made * phase if seasonal == "M" else made + phase
    return made


def _fit_ets(left: Floats, season: int, pattern: Pattern) -> Fitted:
    from statsforecast.models import AutoETS

    model = AutoETS(season_length=season) if season > 1 else AutoETS(model="ZZN")
    found = model.fit(np.ascontiguousarray(left)).model_
    return _Ets({key: value for key, value in found.items() if key not in _AS_LONG_AS_THE_HISTORY}, pattern)


def _newest(count: int, seasons: tuple[int, ...], wanted: int) -> int:
    """Where the newest `wanted` values begin, a whole number of seasons from the first."""
    first = max(0, count - wanted)
    return first - first % max(seasons, default=1)


@dataclass(frozen=True)
class AutoEts:
    """Exponential smoothing whose form is chosen by AICc."""

    name: str = "auto-ets"
    dear: bool = True

    def fit(self, view: SeriesView, rng: np.random.Generator) -> Fitted:
        """With the day as season up to 24 steps of it; on finer grids the day's pattern is taken off first."""
        _checked(view)
        day = view.seasons[0] if view.seasons else 1
        first = _newest(len(view.values), view.seasons, NEWEST)
        if 1 < day <= ETS_SEASON:
            return _fit_ets(view.values[first:], day, Pattern())
        pattern = Pattern.of(view.values, day) if day > 1 else Pattern()
        return _fit_ets((view.values - pattern.at(np.arange(len(view.values))))[first:], 1, pattern)


@dataclass(frozen=True)
class Mstl:
    """Decomposition by LOESS into several seasons (Bandara et al. 2021); exponential smoothing of what is left."""

    name: str = "mstl"
    dear: bool = True

    def fit(self, view: SeriesView, rng: np.random.Generator) -> Fitted:
        """Unfit without a season that was seen three times."""
        from statsforecast.mstl import mstl

        _checked(view)
        values, seasons = view.values, view.seasons
        coarse = -(-seasons[0] // STL_STEPS_A_DAY) if seasons else 1
        while seasons and any(season % coarse for season in seasons):
            coarse += 1
        kept = [season for season in seasons if 3 * season <= len(values) and season // coarse >= 2]
        if not kept:
            raise Unfit("no season was seen three times")
        wanted = max(STL_VALUES * coarse, 3 * max(kept))
        first = len(values) - min(wanted, len(values)) // max(kept) * max(kept)
        first -= first % coarse
        count = (len(values) - first) // coarse
        means = values[first : first + count * coarse].reshape(count, coarse).mean(axis=1)
        table = mstl(x=means, period=[season // coarse for season in kept])
        names = ["seasonal"] if len(kept) == 1 else [f"seasonal{season // coarse}" for season in kept]
        pattern = Pattern(tuple(
            _fine(np.asarray(table[name], dtype=np.float64)[-(season // coarse) :], first, count, coarse, season)
            for name, season in zip(names, kept, strict=True)
        ))  # fmt: skip
        newest = _newest(len(values), seasons, NEWEST)
        return _fit_ets((values - pattern.at(np.arange(len(values))))[newest:], 1, pattern)


def _fine(last: Floats, first: int, count: int, coarse: int, season: int) -> Floats:
    """The last cycle of a coarse component, on the fine grid, by steps from the first value modulo the season."""
    cells = len(last)
    begin = first + (count - cells) * coarse  # the fine step at which `last` begins
    middles = (np.arange(-1, cells + 1) + 0.5) * coarse - 0.5
    steps = np.arange(season)
    line = np.interp(steps, middles, np.concatenate([last[-1:], last, last[:1]]))
    made = np.empty(season)
    made[(begin + steps) % season] = line
    return made


@dataclass(frozen=True)
class _Theta:
    model: Any
    pattern: Pattern
    window: int

    def rolling(self, values: Floats, origins: Ints, leads: Ints) -> Floats:
        made = np.empty((len(origins), len(leads)))
        for row, origin in enumerate(origins.tolist()):
            index = np.arange(max(0, origin - self.window), origin)
            left = np.ascontiguousarray(values[index] - self.pattern.at(index))
            if len(left) < LEAST:
                made[row] = left[-1]
                continue
            made[row] = self.model.forward(y=left, h=int(leads.max()))["mean"][leads - 1]
        return made + self.pattern.at(origins[:, None] + leads[None, :] - 1)


@dataclass(frozen=True)
class Theta:
    """Dynamic optimised theta model (Fiorucci et al. 2016)."""

    name: str = "theta"
    dear: bool = True
    options: dict[str, Any] = field(default_factory=lambda: {"decomposition_type": "additive"})

    def fit(self, view: SeriesView, rng: np.random.Generator) -> Fitted:
        """With the day as season up to 96 steps of it; on finer grids the day's pattern is taken off first."""
        from statsforecast.models import DynamicOptimizedTheta

        _checked(view)
        day = view.seasons[0] if view.seasons else 1
        own = day if day <= THETA_SEASON else 1
        pattern = Pattern.of(view.values, day) if day > THETA_SEASON else Pattern()
        index = np.arange(_newest(len(view.values), view.seasons, NEWEST), len(view.values))
        model = DynamicOptimizedTheta(season_length=own, **self.options)
        model.fit(np.ascontiguousarray(view.values[index] - pattern.at(index)))
        return _Theta(model, pattern, max(THETA_WINDOW * own, 120))


def _checked(view: SeriesView) -> None:
    if len(view.values) < LEAST:
        raise Unfit(f"{len(view.values)} values; {LEAST} are needed")
    if float(view.values.std()) <= 1e-9 * float(view.values.mean()) + 1e-300:
        raise Unfit("the history is constant")
