"""The policies that `--planner` names."""

from recmesh.plugins.planning import GROUP, Planner
from recmesh.plugins.registry import BrokenPlugin, UnknownPlugin, load, names
from recmesh.runtime.errors import InvalidArgument, Violation
from services.brain.domain.planning.built_in import PLANNERS
from services.brain.domain.warmstart import WarmStart
from services.brain.simulator.costs import Costs
from services.brain.simulator.learning import learn
from services.brain.simulator.policy import Policy

OURS = "pareto-greedy"
ORACLE = "tuned"
"""Sees the truth; every other planner learns."""


def policy_named(name: str, *, costs: Costs, warm: WarmStart | None = None, takes_back: bool = False) -> Policy:
    """A built-in planner, or one of an installed package's entry point `recmesh.planners`; InvalidArgument names all.

    Only `pareto-greedy` begins with brain's first plan, and with what was learned of like jobs: no other knows of them.
    `takes_back` is for it alone, too.
    """
    try:
        planner: Planner = load(GROUP, name, PLANNERS)()
    except UnknownPlugin as error:
        known = ", ".join(names(GROUP, PLANNERS))
        violation = Violation("--planner", f"one of {known}")
        raise InvalidArgument(f"there is no planner {name!r}", violations=[violation]) from error
    except BrokenPlugin as error:
        violation = Violation("--planner", str(error))
        raise InvalidArgument(f"planner {name!r} is installed, and broken", violations=[violation]) from error
    return Policy(
        name,
        planner,
        learn=None if name in ("static", ORACLE) else learn,
        oracle=name == ORACLE,
        warm=warm if name == OURS else None,
        shared=warm is not None and name == OURS,
        takes_back=takes_back and name == OURS,
        costs=costs,
    )
