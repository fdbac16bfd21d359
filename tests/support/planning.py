"""Jobs and clusters for planners, and throughput that is known."""

from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

from recmesh.plugins.planning import (
    Allocation,
    Bounds,
    ClusterView,
    JobView,
    Overheads,
    Prediction,
    Resources,
    Shapes,
)

GIB = 1 << 30


@dataclass(frozen=True)
class Paper:
    """Ψ = w·m/T with the coefficients that the DLRover-RM paper prints (MATH §1), of samples per second."""

    batch: float = 512.0
    grad: float = 3.48
    upd: float = 2.36
    sync: float = 0.68
    emb: float = 2.45
    constant: float = 2.45
    log_sd: float = 0.02
    known: Bounds | None = None
    """Where it was measured; None: everywhere."""

    def predict(self, shapes: Shapes) -> Prediction:
        w, p = shapes.workers, shapes.ps
        seconds = (
            self.grad / shapes.worker_cpu
            + self.upd * w / (p * shapes.ps_cpu)
            + self.sync * w / p
            + self.emb / p
            + self.constant
        )
        rate = self.batch * w / seconds
        return Prediction(rate, np.full(len(rate), self.log_sd))

    def doubt(self, allocation: Allocation) -> str:
        return "" if self.known is None or self.known.hold(allocation) else "nothing like it was measured"


WIDE = Bounds(workers=(1, 30), ps=(1, 15), worker_cpu=(1.0, 8.0), ps_cpu=(1.0, 8.0))
"""28,800 allocations."""
SMALL = Bounds(workers=(1, 6), ps=(1, 4), worker_cpu=(1.0, 4.0), ps_cpu=(1.0, 4.0))


def job(name: str = "job", now: Allocation | None = None, **rest: object) -> JobView:
    """A running job of a million samples."""
    settings: dict[str, object] = {"throughput": Paper(), "remaining": 1e6, "bounds": SMALL, **rest}
    return JobView(name, now or Allocation(2, 1, 2.0, 2.0), **settings)  # type: ignore[arg-type]  # by name, as given


def cluster(cpu: float = 64.0, **rest: object) -> ClusterView:
    """With plenty of memory."""
    return ClusterView(0.0, Resources(cpu, 1024.0 * GIB), **rest)  # type: ignore[arg-type]  # by name, as given


@dataclass(frozen=True)
class Flat:
    """The same speed whatever a job has."""

    rate: float = 100.0
    log_sd: float = 0.02
    doubts: str = field(default="")

    def predict(self, shapes: Shapes) -> Prediction:
        return Prediction(np.full(len(shapes), self.rate), np.full(len(shapes), self.log_sd))

    def doubt(self, allocation: Allocation) -> str:
        return self.doubts


# ---- for hypothesis


def _range(draw: st.DrawFn, most: int) -> tuple[int, int]:
    low = draw(st.integers(1, most))
    return low, draw(st.integers(low, most))


@st.composite
def bounds(draw: st.DrawFn) -> Bounds:
    """Small enough to be enumerated, with pins among them."""
    worker_cpu, ps_cpu = _range(draw, 4), _range(draw, 4)
    return Bounds(
        _range(draw, 8),
        _range(draw, 5),
        (float(worker_cpu[0]), float(worker_cpu[1])),
        (ps_cpu[0] / 2, ps_cpu[1] / 2),
    )


@st.composite
def models(draw: st.DrawFn) -> Paper | None:
    """Any coefficients, more or less sure, measured everywhere or in a corner; or none at all."""
    if draw(st.integers(0, 4)) == 0:
        return None
    coefficient = st.sampled_from((0.0, 0.1, 1.0, 5.0))
    known = draw(st.sampled_from((None, Bounds((1, 3), (1, 2), (1.0, 2.0), (0.5, 1.0)))))
    return Paper(
        512.0,
        draw(coefficient),
        draw(coefficient),
        draw(coefficient),
        draw(coefficient),
        draw(st.sampled_from((0.5, 2.0))),
        draw(st.sampled_from((0.01, 0.2, 1.0))),
        known,
    )


@st.composite
def jobs(draw: st.DrawFn, number: int) -> JobView:
    """Running or queued, within its limits or not, with and without deadline, memory and accelerators."""
    memory = draw(st.sampled_from((0, 2 * GIB)))
    gpus = draw(st.sampled_from((0.0, 0.0, 1.0)))
    now = Allocation(
        draw(st.integers(1, 8)),
        draw(st.integers(1, 5)),
        draw(st.sampled_from((1.0, 1.5, 2.0, 4.0))),
        draw(st.sampled_from((0.5, 1.0, 2.0))),
        memory,
        memory,
        gpus,
        "t4" if gpus else "",
    )
    return JobView(
        f"job-{number:03}",
        now,
        draw(bounds()),
        draw(models()),
        draw(st.sampled_from((0.0, 50.0, 400.0))),
        draw(st.sampled_from((0.0, 1e4, 1e6, 1e9))),
        draw(st.sampled_from((None, None, 50.0, 5e3, 1e6))),
        draw(st.sampled_from(("", "ann", "bob"))),
        draw(st.sampled_from((0, 0, 5))),
        draw(st.sampled_from((Overheads(), Overheads(60.0, 300.0, 30.0)))),
        draw(st.booleans()),
        now,
    )


@st.composite
def views(draw: st.DrawFn) -> tuple[list[JobView], ClusterView]:
    """Some jobs, and a cluster that may be empty, full, or overdrawn."""
    listed = [draw(jobs(number)) for number in range(draw(st.integers(0, 6)))]
    room = st.sampled_from((-4.0, 0.0, 3.0, 10.0, 50.0, 1000.0))
    quota = Resources(draw(room), draw(room) * GIB, {"t4": draw(room)})
    return listed, ClusterView(
        0.0,
        Resources(draw(room), draw(room) * GIB, {"t4": draw(room)}),
        quotas={"ann": quota} if draw(st.booleans()) else {},
        rho=draw(st.sampled_from((-2.5, 0.0, 2.5))),
    )
