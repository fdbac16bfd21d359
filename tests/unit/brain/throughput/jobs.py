"""Jobs whose true speed is known."""

from collections.abc import Iterable

import numpy as np

from recmesh.plugins.planning import Allocation, Floats, Shapes
from services.brain.domain.throughput.forms import DLROVER, PUBLISHED, Form, Rows
from services.brain.domain.throughput.observations import Mode, Observation

Configuration = tuple[int, int, float, float]
"""Workers, PSes, cores per worker, cores per PS."""

VARIED: tuple[Configuration, ...] = (
    (2, 1, 2, 2),
    (4, 1, 4, 2),
    (4, 2, 8, 4),
    (8, 2, 2, 8),
    (8, 4, 8, 8),
    (12, 2, 4, 4),
    (12, 6, 8, 2),
    (16, 4, 2, 4),
    (16, 8, 4, 8),
    (6, 3, 8, 1),
    (10, 1, 2, 8),
    (3, 3, 1, 1),
)


def rows(configurations: Iterable[Configuration], *, batch: float = 1.0, dim: float = 1.0) -> Rows:
    table = np.array(list(configurations), dtype=np.float64)
    return Rows.of(Shapes(*table.T), batch, dim=dim)


def observed(
    configurations: Iterable[Configuration],
    *,
    form: Form = DLROVER,
    coefficients: Floats = PUBLISHED,
    slower: float = 1.0,
    noise: float = 0.0,
    start: float = 0.0,
    hardware: str = "",
    mode: Mode = Mode.ASYNC,
    seed: int = 0,
) -> list[Observation]:
    """What would be measured, one configuration per 100 s; `noise` is the standard deviation of ln Ψ."""
    chosen = list(configurations)
    rate = form.rate(rows(chosen), coefficients) / slower
    rate = rate * np.exp(noise * np.random.default_rng(seed).standard_normal(len(chosen)))
    return [
        Observation(w, p, float(speed), wc, pc, 1.0, start + 100.0 * i, mode, hardware)
        for i, ((w, p, wc, pc), speed) in enumerate(zip(chosen, rate, strict=True))
    ]


def true_rate(allocation: Allocation, *, slower: float = 1.0) -> float:
    row = rows([(allocation.workers, allocation.ps, allocation.worker_cpu, allocation.ps_cpu)])
    return float(DLROVER.rate(row, PUBLISHED)[0]) / slower


def predicted(model: object, allocation: Allocation) -> float:
    rate = model.predict(Shapes.of([allocation])).rate[0]  # type: ignore[attr-defined]  # any Throughput
    return float(rate)
