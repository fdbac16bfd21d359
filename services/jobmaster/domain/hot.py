"""A parameter server that holds the others up: whether there is one, and how many slots it should keep.

Every batch goes to every server, so all have the same number of calls, and a server's time in kernels is its slots'
load times its slowness: popular rows and a throttled CPU look alike, and are answered alike. The slots that it has
too many go to the servers with the least load; nothing is taken from those.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from services.jobmaster.domain.limits import Limits
from services.jobmaster.domain.placement import SLOTS

LEAST_HOT = 0.05
"""A server with less load than this holds nobody up by it, whatever its peers have."""
LEAST_LOAD = 0.001
"""A load below it is taken for this: nearly idle servers are all alike."""
RELIEVED_WHOLLY = 0.05
"""A server that should keep less than this part of an equal share keeps none: every call to it costs, too."""


@dataclass(frozen=True, slots=True)
class Load:
    """What a server has borne over the last window."""

    slots: int
    busy: float
    """Seconds in kernels per second; above 1 where calls overlap."""


@dataclass(frozen=True, slots=True)
class Hot:
    """A server has too many slots."""

    ps: int
    seen: str
    decided: str
    weights: Mapping[int, float]
    """Of all servers, for the placement; an equal share is about 1. Empty: nothing can be moved."""


def judge(loads: Mapping[int, Load], *, waiting: float, limits: Limits) -> Hot | None:
    """The server with the most load, when it is far above its peers and the workers wait; None: all is well.

    `waiting`: the part of a worker's step that its calls to servers take.
    """
    active = {ps: load for ps, load in loads.items() if load.slots}
    if len(loads) < 2 or not active or waiting < limits.hot_wait_share:
        return None
    ps = max(active, key=lambda item: (active[item].busy, -item))
    peers = [max(load.busy, LEAST_LOAD) for other, load in active.items() if other != ps]
    if not peers or active[ps].busy < max(LEAST_HOT, limits.hot_ratio * median(peers)):
        return None
    seen = (
        f"in kernels {100 * active[ps].busy:.0f} % of the time, {active[ps].busy / median(peers):.1f} times its peers'"
        f" median, with {active[ps].slots} slots; workers wait {100 * min(1.0, waiting):.0f} % of a step"
    )
    goal = _spread(active, ps)
    moving = active[ps].slots - round(goal[ps])
    if moving < 1:
        return Hot(ps, seen, "nothing: no slot of it would be better elsewhere", {})
    typical = median(share for other, share in goal.items() if other != ps)
    weights = {other: share / typical for other, share in goal.items()}
    idle = {other: 0.0 for other, load in loads.items() if not load.slots}
    return Hot(ps, seen, f"{moving} of its slots go to other servers", idle | weights)


def _spread(loads: Mapping[int, Load], hot: int) -> dict[int, float]:
    """Slots of each server when the hot one's surplus levels the others up, from the least loaded on."""
    cost = {ps: max(load.busy, LEAST_LOAD) / load.slots for ps, load in loads.items()}

    def shares(level: float) -> dict[int, float]:
        return {ps: level / cost[ps] if ps == hot else max(load.slots, level / cost[ps]) for ps, load in loads.items()}

    low, high = 0.0, max(load.busy for load in loads.values())
    for _ in range(60):
        level = (low + high) / 2
        low, high = (level, high) if sum(shares(level).values()) < SLOTS else (low, level)
    result = shares(high)
    if result[hot] < RELIEVED_WHOLLY * SLOTS / len(loads):
        result[hot] = 0.0
    return result
