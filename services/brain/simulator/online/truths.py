"""How fast the simulated job is at each count of workers: KALE's equation 6 with named coefficients."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from recmesh.plugins.planning import Floats
from recmesh.runtime.errors import InvalidArgument, Violation

BATCH = 16_384.0
"""M: samples of one synchronous step, whatever the count."""


@dataclass(frozen=True, slots=True)
class Theta:
    """f(w) = M·(θ0 + θ1/w + θ2/w² + θ3·w)⁻¹, samples per second."""

    name: str
    constant: float
    per_worker: float
    per_square: float
    worker: float
    batch: float = BATCH

    def __call__(self, workers: Floats) -> Floats:
        """Shape (n,) in and out."""
        step_s = self.constant + self.per_worker / workers + self.per_square / workers**2 + self.worker * workers
        made: Floats = self.batch / step_s
        return made


A10 = Theta("a10", 0.00035, 2.5726, 0.9824, 0.02786)
"""Published. Its maximum is at 10 workers, so no load needs more."""

_T4_SLOWER = BATCH / 13_266.34 / (0.00035 + 2.5726 / 10 + 0.9824 / 100)
T4 = Theta("t4", 0.00035 * _T4_SLOWER, 2.5726 * _T4_SLOWER, 0.9824 * _T4_SLOWER, 0.0)
"""Published are that it has no term in w, so that more workers are always faster, and f(10) = 13,266.34. Its
coefficients are not: they are the A10's, slower by one factor."""

THETAS: Mapping[str, Theta] = MappingProxyType({each.name: each for each in (T4, A10)})


def theta_named(text: str) -> Theta:
    """`t4`, `a10`, or four coefficients with commas between; InvalidArgument says what was not understood."""
    if text in THETAS:
        return THETAS[text]
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    if len(values) != 4 or min(values) < 0 or not any(values) or not np.isfinite(values).all():
        reason = f"{text!r} is none of {', '.join(THETAS)}, nor four numbers from 0 like 0.00035,2.57,0.98,0.028"
        raise InvalidArgument("the speed is not understood", violations=[Violation("--theta", reason)])
    return Theta(text, *values)


def needing(rates: Theta, workers: int) -> float:
    """A load that needs just so many workers: between what one fewer and that many train, samples per second.

    InvalidArgument where f has its maximum before that count.
    """
    fewer, enough = rates(np.array([max(workers - 1.0, 0.5), float(workers)]))
    if enough <= float(np.max(rates(np.arange(1.0, workers)), initial=0.0)):
        best = int(np.argmax(rates(np.arange(1.0, workers + 1)))) + 1
        reason = f"{rates.name} is fastest with {best} workers: no load needs {workers}"
        raise InvalidArgument("no load needs so many workers", violations=[Violation("--peak-workers", reason)])
    return float(fewer + enough) / 2
