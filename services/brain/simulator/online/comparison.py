"""A series made ready for comparison: scaled, forecast, cut into an earlier and a judged part."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from recmesh.plugins.planning import Floats
from recmesh.plugins.streams import StreamPlanner
from recmesh.runtime.errors import InvalidArgument, Violation
from services.brain.simulator.online.engine import MINUTE_S, Adequate, Course, Setting, replay
from services.brain.simulator.online.forecasts import Forecasts
from services.brain.simulator.online.seasonal import seasonal
from services.brain.simulator.online.series import scaled
from services.brain.simulator.online.truths import Theta, needing

DAY_S = 86_400.0
PEAK_WORKERS = 28
PEAK_TO_TROUGH = 7.65
"""Both of KALE's experiment: 28 GPUs, and its traffic."""

Forecasting = Callable[[Floats, int, int, int], Forecasts]
"""(rates per step, steps per day, first, last) -> forecasts made at each step from first up to but not last."""


def by_season(rates: Floats, per_day: int, first: int, last: int) -> Forecasts:
    """The small forecaster of this package, six hours ahead."""
    return seasonal(rates, per_day=per_day, first=first, last=last, ahead=max(per_day // 4, 1))


@dataclass(frozen=True, slots=True)
class Case:
    """Arrivals per minute with forecasts for the judged minutes, `first` to `last` (not included)."""

    name: str
    arriving: Floats
    forecasts: Forecasts
    first: int
    last: int

    def under(
        self, planner: StreamPlanner, setting: Setting, *, seed: int = 0, tell: Callable[[int], None] = lambda _: None
    ) -> Course:
        """One replay; `tell` hears how many minutes of it are done."""
        return replay(
            self.arriving, self.forecasts, planner, setting, first=self.first, last=self.last, seed=seed, tell=tell
        )


def loaded(values: Floats, theta: Theta, *, peak_workers: int = PEAK_WORKERS, ratio: float = PEAK_TO_TROUGH) -> Floats:
    """A series scaled so that its peak needs so many workers, and is `ratio` times its trough."""
    return scaled(values, peak=needing(theta, peak_workers), ratio=ratio)


def judged(
    name: str, arriving: Floats, *, step_s: float, share: tuple[float, float], forecasting: Forecasting = by_season
) -> Case:
    """The part of a series between two shares of its length; forecasts learn from what comes before it alone.

    InvalidArgument where too little comes before.
    """
    per_step = round(step_s / MINUTE_S)
    rates = arriving[: len(arriving) // per_step * per_step].reshape(-1, per_step).mean(axis=1)
    first, last = (round(len(rates) * part) for part in share)
    try:
        forecasts = forecasting(rates, round(DAY_S / step_s), first, last)
    except ValueError as error:
        raise InvalidArgument(f"{name} is too short", violations=[Violation("--online", str(error))]) from error
    return Case(name, arriving, forecasts, first * per_step, last * per_step)


def burst(case: Case, *, at: int, minutes: int, times: float) -> Case:
    """The same with arrivals multiplied for a while, of which the forecasts know nothing, then or later."""
    raised = case.arriving.copy()
    raised[at : at + minutes] *= times
    return replace(case, arriving=raised)


def adequate(case: Case, setting: Setting) -> Adequate:
    """The count that the highest minute of the whole series needs."""
    counts = np.arange(setting.least, setting.most + 1)
    enough = setting.rates(counts.astype(np.float64)) > float(case.arriving.max())
    return Adequate(int(counts[int(np.argmax(enough))]) if enough.any() else setting.most)
