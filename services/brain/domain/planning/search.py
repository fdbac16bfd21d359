"""NSGA-II over (w, p, λw, λp), for limits that allow too many allocations to look at all (DLRover-RM, §4.2)."""

from collections.abc import Callable

import numpy as np
from pymoo.algorithms.moo.nsga2 import NSGA2
from pymoo.core.problem import Problem
from pymoo.operators.crossover.sbx import SBX
from pymoo.operators.mutation.pm import PM
from pymoo.operators.repair.rounding import RoundingRepair
from pymoo.optimize import minimize

from recmesh.plugins.planning import Floats, JobView
from services.brain.domain.planning.grid import Axes, Grid, Index, picked, position
from services.brain.domain.planning.rules import Rules
from services.brain.domain.planning.survey import Mask, Survey


def searched(
    job: JobView,
    of: Axes,
    look: Callable[[Grid], Survey],
    usable: Callable[[Survey], Mask],
    rng: np.random.Generator,
    rules: Rules,
) -> Survey:
    """Every allocation that the search looked at, once; the front is among them.

    It starts from the job's last front, from what it has and from the corners of its limits; the rest of the first
    generation is drawn at random.
    """
    problem = _Problem(of, look, usable)
    algorithm = NSGA2(
        pop_size=rules.population,
        sampling=_first(job, of, rng, rules.population),
        crossover=SBX(prob=0.9, eta=5, vtype=float, repair=RoundingRepair()),
        mutation=PM(eta=10, vtype=float, repair=RoundingRepair()),
        eliminate_duplicates=True,
    )
    minimize(problem, algorithm, ("n_gen", rules.generations), seed=int(rng.integers(1 << 31)))
    visited = np.unique(np.concatenate(problem.visited), axis=0)
    return look(picked(of, visited))


def _first(job: JobView, of: Axes, rng: np.random.Generator, many: int) -> Index:
    known = [position(of, allocation) for allocation in (job.now, *job.front)][:many]
    ends = np.array(of.lengths) - 1
    corners = np.stack(np.meshgrid(*[(0, end) for end in ends], indexing="ij"), axis=-1).reshape(-1, 4)
    random = rng.integers(0, ends + 1, size=(many, 4))
    rows = np.concatenate([np.array(known), corners, random])[:many]
    return np.asarray(rows, dtype=np.int64)


class _Problem(Problem):  # type: ignore[misc]  # pymoo ships no types
    """Minimise (RC, −TG) over positions on the axes; what can't be used is infeasible."""

    def __init__(self, of: Axes, look: Callable[[Grid], Survey], usable: Callable[[Survey], Mask]) -> None:
        ends = np.array(of.lengths) - 1
        super().__init__(n_var=4, n_obj=2, n_ieq_constr=1, xl=np.zeros(4), xu=ends, vtype=int)
        self._of, self._look, self._usable = of, look, usable
        self.visited: list[Index] = []

    def _evaluate(self, x: Index, out: dict[str, Floats], *_: object, **__: object) -> None:
        index = np.asarray(np.round(x), dtype=np.int64)
        self.visited.append(index)
        seen = self._look(picked(self._of, index))
        out["F"] = np.column_stack([seen.cost, -seen.gain])
        out["G"] = np.where(self._usable(seen), -1.0, 1.0)[:, None]
