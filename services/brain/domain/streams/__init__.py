"""Planners of online training: from a forecast of demand to workers per step. All answer the same interface."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from recmesh.plugins.streams import StreamPlanner
from services.brain.domain.streams.autopilot import Autopilot
from services.brain.domain.streams.horizon import Horizon
from services.brain.domain.streams.hpa import Hpa
from services.brain.domain.streams.kale import Kale, literal
from services.brain.domain.streams.madu import Madu

STREAM_PLANNERS: Mapping[str, Callable[[], StreamPlanner]] = MappingProxyType(
    {
        "horizon": Horizon,
        "kale": Kale,
        "kale-literal": literal,
        "hpa": Hpa,
        "autopilot": Autopilot,
        "madu": Madu,
    }
)
"""Those that come with recmesh, by name; pyproject.toml lists the same as entry points."""
