"""Forms of step time: sums of known terms with unknown coefficients ≥ 0.

T is the time in which every worker does one step of m samples, so that Ψ = w·m/T whatever the mode. λw and λp are the
cores of one worker and of one PS. KALE writes its forms as f(w, p) = M/T with M = w·m samples in one synchronous step.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

import numpy as np

from recmesh.plugins.planning import Floats, Shapes


@dataclass(frozen=True)
class Rows:
    """Configurations as columns of shape (n,), and what of a job enters its step time."""

    workers: Floats
    ps: Floats
    worker_cpu: Floats
    ps_cpu: Floats
    batch: Floats
    """m: samples of one step of one worker, in any unit that is kept."""
    dim: float = 1.0
    """D of eq. 5."""

    @classmethod
    def of(cls, shapes: Shapes, batch: Floats | float, *, dim: float = 1.0) -> "Rows":
        """The same shapes, with the batch that a worker has in each."""
        batches = np.broadcast_to(np.asarray(batch, dtype=np.float64), shapes.workers.shape)
        return cls(shapes.workers, shapes.ps, shapes.worker_cpu, shapes.ps_cpu, batches, dim)

    def __len__(self) -> int:
        return len(self.workers)

    @cached_property
    def terms(self) -> dict[str, Floats]:
        """Every term that was asked for so far; filled by `term`."""
        return {}

    def term(self, name: str) -> Floats:
        """One column, computed once: forms share most of theirs."""
        found = self.terms.get(name)
        if found is None:
            found = self.terms[name] = TERMS[name](self)
        return found


TERMS: Mapping[str, Callable[[Rows], Floats]] = MappingProxyType(
    {
        "constant": lambda x: np.ones(len(x)),
        "gradient": lambda x: x.batch / x.worker_cpu,
        "samples": lambda x: x.batch * 1.0,
        "update": lambda x: x.workers / (x.ps * x.ps_cpu),
        "sync": lambda x: x.workers / x.ps,
        "lookup": lambda x: x.batch * x.dim / x.ps,
        "ps overhead": lambda x: 1.0 / x.ps,
        "ps count": lambda x: x.ps * 1.0,
        "worker count": lambda x: x.workers * 1.0,
        "last worker": lambda x: np.log(x.workers),
        "1/w": lambda x: 1.0 / x.workers,
        "1/w²": lambda x: 1.0 / x.workers**2,
        "1/(w·p)": lambda x: 1.0 / (x.workers * x.ps),
    }
)


@dataclass(frozen=True, slots=True)
class Form:
    """T = Σ θ_k·x_k with θ ≥ 0."""

    name: str
    terms: tuple[str, ...]
    source: str

    def columns(self, rows: Rows) -> Floats:
        """x, of shape (n, terms)."""
        return np.stack([rows.term(name) for name in self.terms], axis=1)

    def step_s(self, rows: Rows, coefficients: Floats) -> Floats:
        """T."""
        total: Floats = self.columns(rows) @ coefficients
        return total

    def rate(self, rows: Rows, coefficients: Floats) -> Floats:
        """Ψ = w·m/T, samples per second."""
        return rows.workers * rows.batch / self.step_s(rows, coefficients)


DLROVER = Form("dlrover", ("gradient", "update", "sync", "lookup", "constant"), "DLRover-RM, eq. 1-6")
"""α_grad·m/λw + α_upd·w/(p·λp) + α_sync·(M/p)/(B/w) + α_emb·m·D/p + β, with M/B = 1 inside α_sync."""

PUBLISHED = np.array([3.48, 2.36, 0.68, 2.45, 2.45])
"""DLRover-RM's coefficients in the order of `DLROVER`; m counts in 512 samples, M/B = 1."""

KALE_SYNC = Form(
    "kale sync", ("constant", "1/w", "ps overhead", "sync", "1/(w·p)", "ps count", "worker count"), "KALE, eq. 5"
)
"""θ0 + θ1/w + θ2/p + θ3·w/p + θ4/(w·p) + θ5·p + θ6·w, of a batch M that all workers share."""

KALE_SYNC_RATIO = Form("kale sync, fixed w/p", ("constant", "1/w", "1/w²", "worker count"), "KALE, eq. 6")
"""θ0 + θ1/w + θ2/w² + θ3·w where w = r·p."""

KALE_ASYNC = Form("kale async", ("constant", "ps overhead", "ps count", "worker count"), "KALE, eq. 8")
"""θ0 + θ1/p + θ2·p + θ3·w, of a batch m per worker."""

KALE_ASYNC_RATIO = Form("kale async, fixed w/p", ("constant", "1/w", "worker count"), "KALE, eq. 9")
"""θ0 + θ1/w + θ2·w where w = r·p."""

BARRIER = Form(
    "barrier",
    ("gradient", "samples", "update", "sync", "lookup", "ps overhead", "last worker", "constant"),
    "DLRover-RM with a barrier",
)
"""DLRover's terms, a part of the computation that cores do not speed up, and θ·ln w: a synchronous step lasts until the
last of w workers, and the greatest of w exponential delays grows as ln w (Ernest's log term is the same)."""

CONTENTION = Form(
    "contention",
    ("gradient", "samples", "update", "sync", "lookup", "ps overhead", "worker count", "constant"),
    "DLRover-RM with KALE's term in w",
)
"""As `BARRIER`, with what grows with every worker whatever the PSes: one network, one coordinator."""


def at_fixed_ratio(coefficients: Floats, ratio: float) -> Floats:
    """`KALE_SYNC`'s coefficients as those of `KALE_SYNC_RATIO`, where w = ratio·p (MATH: eq. 5 → eq. 6)."""
    constant, w1, p1, wp, w1p1, p, w = coefficients
    return np.array([constant + ratio * wp, w1 + ratio * p1, ratio * w1p1, p / ratio + w])
