"""Forgetting: where the speed of the same thing has changed, what came before is of another cluster.

A change at one moment multiplies every step time by a factor from then on. For every moment the likelihood of the
residuals with such a factor is compared with that without any.
"""

from collections.abc import Sequence

import numpy as np

from recmesh.plugins.planning import Floats
from services.brain.domain.throughput.fit import rmsle_fit
from services.brain.domain.throughput.forms import CONTENTION, Rows
from services.brain.domain.throughput.observations import Observation
from services.brain.domain.throughput.residual import matern

LEAST_AFTER = 2
"""One odd observation is an odd observation; two are a new level."""
LEAST_LOG_ODDS = 6.0
"""A change is believed at e^6 = 400 to 1: over all moments of a job's life a lesser one is found by chance."""
LEAST_CHANGE = 0.15
"""Smaller changes of ln T are left to the noise."""

_NOISES = (0.03, 0.06, 0.12, 0.24)
_SIZE, _LENGTH = 0.2, 0.5
"""Of the misfit of the form: short, so that a change shows itself between like configurations rather than in a form
that fits the far ones badly."""
_FACTOR_SD = 0.7


def current(observations: Sequence[Observation], rows: Rows, inputs: Floats) -> int:
    """How many of the oldest observations (in order of time) are of a former regime; 0 when nothing has changed."""
    first = 0
    while True:
        later = _change(observations[first:], rows, inputs[first:], first)
        if not later:
            return first
        first += later


def _change(observations: Sequence[Observation], rows: Rows, inputs: Floats, first: int) -> int:
    n = len(observations)
    if n < LEAST_AFTER + 2:
        return 0
    columns = CONTENTION.columns(rows)[first:]
    step_s = np.array([each.step_s for each in observations])
    coefficients = rmsle_fit(columns, step_s, rounds=3)
    used = coefficients > 0
    fitted = columns @ coefficients
    shares = columns[:, used] * coefficients[used] / fitted[:, None]
    residual = np.log(step_s / fitted)
    smooth = _SIZE**2 * matern(inputs, inputs, np.full((1, inputs.shape[1]), _LENGTH))[0] + shares @ shares.T
    steps = np.tri(n, dtype=np.float64)[:, 1 : n - LEAST_AFTER + 1].T  # row c: from observation c + 1 on
    # Of each size of the noise (first axis), ln of the likelihood without a change, and what one at each moment adds.
    covariance = smooth + np.array(_NOISES)[:, None, None] ** 2 * np.eye(n)
    inverse = np.linalg.inv(covariance)
    without = -0.5 * (inverse @ residual @ residual + np.linalg.slogdet(covariance)[1])
    along = steps @ inverse
    known = (along * steps).sum(axis=2) + _FACTOR_SD**-2
    pull = along @ residual
    gain = 0.5 * pull**2 / known - 0.5 * np.log(known * _FACTOR_SD**2)
    best = np.unravel_index(np.argmax(without[:, None] + gain), gain.shape)
    factor = float(pull[best] / known[best])
    odds = float((without[:, None] + gain)[best] - without.max())
    return int(best[1]) + 1 if odds > LEAST_LOG_ODDS and abs(factor) > LEAST_CHANGE else 0
