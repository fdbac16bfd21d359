"""DLRover-RM's own throughput with its published coefficients: a truth that has the form of a planner.

T = α_grad·m/λw + α_upd·w/(p·λp) + α_sync·(M/p)/(B/w) + α_emb·m·D/p + β,  Ψ = w·m/T  (eq. 1-6)

The published coefficients carry no units: m = 1 stands for 512 samples, M/B = 1, and T is read in seconds. Planners
that fit this form find it exactly, so compare planners on a measured truth, and take this one to look at how sizes in
cores, which no table has, are chosen.
"""

import numpy as np

from recmesh.plugins.planning import Allocation, Bounds, Floats, Shapes
from services.brain.simulator.job import ModelFacts
from services.brain.simulator.truth import Use, memory_used

GRAD, UPD, EMB, SYNC, BETA = 3.48, 2.36, 2.45, 0.68, 2.45
BATCH = 512
GIB = 1 << 30


class PaperTruth:
    """Models `d1` to `d4`: an embedding dimension of 1 to 4 units."""

    name = "paper"
    models: tuple[str, ...] = ("d1", "d2", "d4")

    def facts(self, model: str) -> ModelFacts:
        """Sizes in cores are free from 1 to 16."""
        return ModelFacts(
            model, BATCH, Bounds((1, 32), (1, 16), (1.0, 16.0), (1.0, 16.0)), worker_cpu=8.0, ps_cpu=8.0,
            worker_memory_bytes=4 * GIB, ps_state_bytes=12.0 * GIB, sync=False, dense_parameters=1_000_000, tables=26,
            dim=16 * _dim(model),
        )  # fmt: skip

    def rates(self, model: str, shapes: Shapes) -> Floats:
        """Ψ times 512 samples."""
        step = (
            GRAD / shapes.worker_cpu
            + UPD * shapes.workers / (shapes.ps * shapes.ps_cpu)
            + SYNC * shapes.workers / shapes.ps
            + EMB * _dim(model) / shapes.ps
            + BETA
        )
        rates: Floats = BATCH * shapes.workers / step
        return rates

    def use(self, model: str, allocation: Allocation) -> Use:
        """A worker's cores are busy while it computes, a server's while it updates or looks up."""
        shapes = Shapes.of([allocation])
        step = BATCH * allocation.workers / float(self.rates(model, shapes)[0])
        computing = GRAD / allocation.worker_cpu / step
        updating = UPD * allocation.workers / (allocation.ps * allocation.ps_cpu) / step
        looking_up = EMB * _dim(model) / allocation.ps / step
        cpu = allocation.workers * allocation.worker_cpu * min(1.0, computing + 0.2)
        cpu += allocation.ps * allocation.ps_cpu * min(1.0, updating + looking_up)
        return Use(float(np.float64(cpu)), memory_used(self.facts(model), allocation))


def _dim(model: str) -> int:
    return int(model.removeprefix("d"))
