"""The policies that `--planner` names."""

from recmesh.plugins.planning import GROUP, Planner
from recmesh.plugins.registry import load
from services.brain.domain.planning.built_in import PLANNERS
from services.brain.domain.warmstart import WarmStart
from services.brain.simulator.costs import Costs
from services.brain.simulator.learning import learn
from services.brain.simulator.policy import Policy

ORACLE = "tuned"
"""Sees the truth; every other planner learns."""


def policy_named(name: str, *, costs: Costs, warm: WarmStart | None = None) -> Policy:
    """A built-in planner or one of an installed package's entry point `recmesh.planners`; NotFound names what there is.

    Only `pareto-greedy` begins with brain's first plan: none of the others has one of its own.
    """
    planner: Planner = load(GROUP, name, PLANNERS)()
    return Policy(
        name,
        planner,
        learn=None if name in ("static", ORACLE) else learn,
        oracle=name == ORACLE,
        warm=warm if name == "pareto-greedy" else None,
        costs=costs,
    )
