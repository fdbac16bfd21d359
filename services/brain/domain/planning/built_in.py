"""The planners that brain brings along, by name."""

from recmesh.plugins.planning import Planner
from services.brain.domain.planning.fixed import Static, Tuned
from services.brain.domain.planning.pareto_greedy import ParetoGreedy
from services.brain.domain.planning.steps import ElasticScheduler, Optimus

PLANNERS: dict[str, type[Planner]] = {
    planner.name: planner for planner in (ParetoGreedy, Optimus, ElasticScheduler, Static, Tuned)
}
"""For `recmesh.plugins.registry.load(GROUP, name, PLANNERS)`: they need no installed package."""
