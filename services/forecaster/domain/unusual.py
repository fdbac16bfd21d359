"""Days that are unlike their kind, and moments from which on the level is another. No calendar is needed for either."""

from dataclasses import dataclass

import numpy as np

from services.forecaster.domain.series import Bools, Floats

HOLIDAY_WEIGHT = 0.2
"""Of a day that is unlike the others: it is learned from, but does not lead."""
UNUSUAL_Z = 6.0
"""Robust deviations (of median absolute ones) from which on a day is unusual."""
NEIGHBOURS = 3
"""Days of the same kind before and after that a day is compared with."""
NEWEST_DAYS = 400
PARTS_OF_DAY = 4
CRITICAL_SUM = 1.8
"""Of the scaled CUSUM; 1.63 is the 1 % point of the Kolmogorov distribution that it has without a shift."""
LEAST_SHIFT = 0.15
"""Smaller changes of the logarithm are the models' to follow."""
SIGMAS = 3.0


def weights_of(values: Floats, missing: Bools | None, *, day: int) -> Floats:
    """What each value is worth to learn from, (n,): 0 where it was filled in, 0.2 on unusual days, else 1.

    A day is compared with the three days before and after it of the same weekday (with less than five weeks: of any).
    `day` is in steps; below 2: no days are told apart.
    """
    weights = np.ones(len(values))
    days = len(values) // day if day >= 2 else 0
    if days >= 10:
        stride = 7 if days >= 35 else 1
        days = min(days, NEWEST_DAYS)
        table = values[len(values) - days * day :].reshape(days, day)  # days end where the history ends
        apart = np.empty(days)
        for at in range(days):
            near = [at + stride * away for away in range(-NEIGHBOURS, NEIGHBOURS + 1) if away]
            usual = np.median(table[[each for each in near if 0 <= each < days]], axis=0)
            apart[at] = np.abs(table[at] - usual).sum() / max(float(usual.sum()), 1e-12)
        middle = float(np.median(apart))
        scale = 1.4826 * float(np.median(np.abs(apart - middle))) + 0.1 * middle + 1e-12
        unusual = (apart - middle) / scale > UNUSUAL_Z
        weights[len(values) - days * day :] = np.repeat(np.where(unusual, HOLIDAY_WEIGHT, 1.0), day)
    if missing is not None:
        weights[missing] = 0.0
    return weights


@dataclass(frozen=True, slots=True)
class Shift:
    """From step `at` on, values are `factor` times what they were."""

    at: int
    factor: float


def level_shift(values: Floats, *, day: int) -> Shift | None:
    """The one abrupt and lasting change of level in a history of days, if there is one.

    CUSUM (Page 1954; as a test against one change: Ploberger and Krämer 1992) over logarithms of quarter-day means
    without their daily (from three weeks on weekly) pattern. It must be large beside the noise, happen within a day,
    and last; two days at the end of a short history may be a weekend.
    """
    part = day // PARTS_OF_DAY
    parts = len(values) // part if part else 0
    if parts < 4 * PARTS_OF_DAY or not (values > 0).any():
        return None
    blocks = values[len(values) - parts * part :].reshape(parts, part).mean(axis=1)
    logs = np.log(blocks + 0.01 * float(blocks.mean()))
    week = parts >= 21 * PARTS_OF_DAY
    period = 7 * PARTS_OF_DAY if week else PARTS_OF_DAY
    level = logs - _pattern(logs, period)
    noise = 1.4826 * float(np.median(np.abs(np.diff(level)))) / np.sqrt(2) + 1e-9
    sums = np.cumsum(level - level.mean())
    after = (3 if not week else 2) * PARTS_OF_DAY
    before = 2 * PARTS_OF_DAY
    if parts < before + after:
        return None
    turn = before + int(np.argmax(np.abs(sums[before - 1 : parts - after])))
    change = float(np.median(level[turn:]) - np.median(level[:turn]))
    jump = float(np.median(level[turn : turn + PARTS_OF_DAY]) - np.median(level[turn - PARTS_OF_DAY : turn]))
    rest = np.concatenate([level[:turn] - np.median(level[:turn]), level[turn:] - np.median(level[turn:])])
    spread = 1.4826 * float(np.median(np.abs(rest)))
    if np.abs(sums).max() / (max(noise, spread) * np.sqrt(parts)) < CRITICAL_SUM:
        return None
    if abs(change) < max(LEAST_SHIFT, SIGMAS * max(noise, spread)) or jump * np.sign(change) < 0.5 * abs(change):
        return None
    return Shift(len(values) - (parts - turn) * part, float(np.exp(change)))


def _pattern(logs: Floats, period: int) -> Floats:
    """The repeating part, (n,), from differences to each period's own mean, so that a shift is not taken for it."""
    whole = len(logs) // period
    table = logs[len(logs) - whole * period :].reshape(whole, period)
    shape = np.median(table - np.median(table, axis=1, keepdims=True), axis=0)
    return np.tile(shape, whole + 1)[-len(logs) :]  # both end where the history ends
