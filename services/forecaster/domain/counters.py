"""Rates from counters that only rise, and start again from 0 when what counts is restarted."""

import math
from collections.abc import Sequence

import numpy as np

from services.forecaster.domain.series import Point, snapped


def rates_of_counter(samples: Sequence[Point], *, step_s: float, max_gap_s: float = math.inf) -> list[Point]:
    """Mean rate of every step that the samples cover wholly, ascending.

    As Prometheus' `increase` does it, a value below the one before is a restart from 0: what it shows was counted
    since. What was counted between two samples is spread evenly between them, so that samples need not fall on steps.
    Steps that touch a pause between samples of more than `max_gap_s` are left out: nobody knows when it was counted.
    Of samples of one moment the last holds. Fewer than two samples give no rate.
    """
    by_moment = {sample.at: sample.value for sample in samples}
    moments = np.array(sorted(by_moment))
    if len(moments) < 2:
        return []
    shown = np.array([by_moment[at] for at in moments.tolist()])
    risen = np.diff(shown)
    counted = np.concatenate([[0.0], np.cumsum(np.where(risen < 0, shown[1:], risen))])
    first = math.ceil(moments[0] / step_s - 1e-9)
    last = math.floor(moments[-1] / step_s + 1e-9)
    bounds = np.arange(first, last + 1) * step_s
    if len(bounds) < 2:
        return []
    rates = np.diff(np.interp(bounds, moments, counted)) / step_s
    known = np.ones(len(rates), dtype=np.bool_)
    for index in np.flatnonzero(np.diff(moments) > max_gap_s):
        known &= (bounds[1:] <= moments[index] + 1e-9) | (bounds[:-1] >= moments[index + 1] - 1e-9)
    return [
        Point(snapped(at, step_s), max(0.0, float(rate)))
        for at, rate, is_known in zip(bounds[:-1], rates, known, strict=True)
        if is_known
    ]
