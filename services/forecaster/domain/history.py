"""A series up to now, and what is asked of it: steps ahead, and what came."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from recmesh.plugins.forecasting import Ints
from services.forecaster.domain.selection import BUCKETS_S
from services.forecaster.domain.series import Bools, Floats
from services.forecaster.domain.unusual import Shift

COMPARABLE = 0.1
"""Share of the observed values that have another one a lead later."""


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
    """Which values were not observed on this step, but filled in; none: all were."""

    @property
    def observed(self) -> Bools:
        """Which values were, (n,)."""
        return np.ones(len(self.values), dtype=np.bool_) if self.missing is None else ~self.missing

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


def comparable_lead(history: History) -> int:
    """The nearest lead at which what is said is often met by something observed: 1, unless values come on some of the
    steps only."""
    seen, leads = history.observed, (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
    often = COMPARABLE * int(seen.sum())
    return next((lead for lead in leads if lead < len(seen) and (seen[lead:] & seen[:-lead]).sum() > often), 1)


def truth_at(history: History, origins: Ints, leads: Sequence[int]) -> Floats:
    """What came, (origins, leads); NaN where it has not come yet, or was not observed. Origins from the epoch."""
    index = origins[:, None] + np.array(leads)[None, :] - 1 - history.start
    inside = (index >= 0) & (index < len(history.values))
    safe = np.clip(index, 0, len(history.values) - 1)
    if history.missing is not None:
        inside &= ~history.missing[safe]
    return np.where(inside, history.values[safe], np.nan)
