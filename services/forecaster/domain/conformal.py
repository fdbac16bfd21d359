"""Intervals from errors that were made: no assumption on how they are distributed.

Rolling-origin conformal prediction (Vovk et al. 2005; for series: Xu and Xie 2021), with each side on its own, newer
errors weighing more (Barber et al. 2023), and the level adapted by what came true since (Gibbs and Candès 2021). Few
errors have not seen the far ones: there an interval is at least what Student's t makes of their size.
"""

from bisect import bisect_left, insort

import numpy as np
from scipy.special import stdtrit

from services.forecaster.domain.series import Floats

POWERS = (0.0, 0.5, 1.0)
"""Of the prediction, that errors may grow with: not at all, as counts do, in proportion."""
STEP = 0.005
"""γ of the adaptive level: how far one miss moves it. On the part before the last fifth of the sets of `bench forecast`
.002 to .005 held the level best; from .02 on the level follows chance, and intervals are worse than without."""
LEAST_SIDE = 0.005
"""The adapted share outside on one side stays above this, and below .5 - this."""
LEAST_ERRORS = 8
"""With fewer errors at a lead, those of all leads together serve."""
ADAPTS_FROM = 32
"""Errors at a lead from which on its level is adapted."""
REMEMBERED = 240
"""Newest errors that the level is adapted by: 1/γ, and some."""
ENOUGH = 30.0
"""Errors that are worth so many independent ones speak for themselves."""
MOST_T = 6.0
"""Of Student's t: one error must not ask for hundreds of replicas."""


def scale_of(predicted: Floats, *, power: float, floor: float) -> Floats:
    """What errors are divided by: (prediction + floor)^power."""
    made: Floats = (np.maximum(predicted, 0.0) + floor) ** power
    return made


def weighted_quantile(values: Floats, weights: Floats, share: float, *, alike: float = 1.0) -> float:
    """The smallest value that at least `share` of the weight does not exceed; the largest for shares above that.

    The share is enlarged as one more value at infinity would, which is what makes it conformal; its weight is that of
    `alike` values, as errors of forecasts that overlap are hardly more than one.
    """
    order = np.argsort(values, kind="stable")
    gathered = np.cumsum(weights[order])
    wanted = share * (gathered[-1] + alike * float(weights.mean()))
    found: float = values[order[min(int(np.searchsorted(gathered, wanted - 1e-12)), len(values) - 1)]]
    return float(found)


def offsets(
    predicted: Floats, truth: Floats, weights: Floats, alike: Floats, *, level: float, floor: float
) -> tuple[float, Floats]:
    """(power, (2, leads)): what to add below and above, in units of `scale_of(prediction)`.

    `predicted` and `truth` are (origins, leads), oldest origin first, NaN where nothing came yet; `weights` (origins,);
    `alike` (leads,): how many origins in a row a lead spans. The power is the one whose intervals have the least
    pinball loss on the same errors.
    """
    side = (1 - level) / 2
    best: tuple[float, float, Floats] | None = None
    for power in POWERS:
        scale = scale_of(predicted, power=power, floor=floor)
        errors = (truth - predicted) / scale
        made = _sides(errors, weights, alike, side, adapt=False)
        loss = 0.0
        for place, tau in ((0, side), (1, 1 - side)):
            beyond = (errors - made[place]) * scale
            loss += float(np.nansum(np.where(beyond >= 0, tau * beyond, (tau - 1) * beyond) * weights[:, None]))
        if best is None or loss < best[0] * 0.99:
            best = (loss, power, errors)
    assert best is not None
    return best[1], _sides(best[2], weights, alike, side, adapt=True)


def _sides(errors: Floats, weights: Floats, alike: Floats, side: float, *, adapt: bool) -> Floats:
    made = np.zeros((2, errors.shape[1]))
    every = np.isfinite(errors)
    for column in range(errors.shape[1]):
        known = every[:, column]
        if known.sum() >= LEAST_ERRORS:
            seen, worth = errors[known, column], weights[known]
        else:
            seen = errors[every]
            worth = np.broadcast_to(weights[:, None], errors.shape)[every]
        if not len(seen):
            continue
        low, high = adapted(seen, side) if adapt and known.sum() >= ADAPTS_FROM else (side, side)
        one = max(1.0, float(alike[column]))
        made[0, column] = -weighted_quantile(-seen, worth, 1 - low, alike=one)
        made[1, column] = weighted_quantile(seen, worth, 1 - high, alike=one)
        if adapt:
            more, wide = unseen(seen, worth, side, alike=one)
            made[0, column] -= more * max(0.0, wide + made[0, column])
            made[1, column] += more * max(0.0, wide - made[1, column])
    return made


def unseen(errors: Floats, weights: Floats, side: float, *, alike: float) -> tuple[float, float]:
    """(how much it counts, 1 for a single error and 0 for many; half the width of Student's prediction interval).

    Forecasts that overlap err alike, so that errors are worth Kish's (Σw)²/Σw², over `alike`.
    """
    worth = max(1.0, float(weights.sum()) ** 2 / float((weights**2).sum()) / alike)
    more = max(0.0, 1 - worth / ENOUGH)
    if more == 0:
        return 0.0, 0.0
    size = float(np.sqrt(np.average(errors**2, weights=weights)))
    return more, min(float(stdtrit(worth, 1 - side)), MOST_T) * size * float(np.sqrt(1 + 1 / worth))


def adapted(errors: Floats, side: float) -> tuple[float, float]:
    """The shares to leave out below and above, after each of the newest errors was met with those before it.

    α' = α + γ(α* − [missed]), for each side; errors oldest first.
    """
    begin = max(min(LEAST_ERRORS, len(errors)), len(errors) - REMEMBERED)
    before = sorted(errors[:begin].tolist())
    low = high = side
    for error in errors[begin:].tolist():
        below = bisect_left(before, error) / (len(before) + 1)      # the share of errors before that are below it
        low = min(max(low + STEP * (side - (below < low)), LEAST_SIDE), 0.5 - LEAST_SIDE)
        high = min(max(high + STEP * (side - (1 - below < high)), LEAST_SIDE), 0.5 - LEAST_SIDE)
        insort(before, error)
    return low, high
