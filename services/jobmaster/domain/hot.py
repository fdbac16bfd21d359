"""A parameter server that holds the others up: whether there is one, and which slots it should keep.

Every batch goes to every server, so all have the same number of calls, and a server's time in kernels is what is asked
of its slots times its slowness: popular rows and a throttled CPU look alike, and are answered alike. The slots that it
has too many, chosen by how much is asked of each, go to the servers with the least load; nothing is taken from those.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import NDArray

from services.jobmaster.domain.limits import Limits
from services.jobmaster.domain.placement import Owners, counts_of

LEAST_HOT = 0.15
"""A server with less load than this holds nobody up by it, whatever its peers have."""
LEAST_LOAD = 0.001
"""A load below it is taken for this: nearly idle servers are all alike."""
RELIEVED_WHOLLY = 0.05
"""A server that should keep less than this part of an equal share keeps none: every call to it costs, too."""
ENOUGH = 0.9
"""Of a surplus: the rest would be many slots that little is asked of."""
LEAST_DEMAND = 0.01
"""Of the mean slot's: what is asked of a slot at least, for nobody knows what will be."""


@dataclass(frozen=True, slots=True)
class Load:
    """What a server has borne over the last window."""

    slots: int
    busy: float
    """Seconds in kernels per second; above 1 where calls overlap."""


@dataclass(frozen=True, slots=True)
class Hot:
    """A server has too much to do."""

    ps: int
    seen: str


@dataclass(frozen=True, slots=True)
class Spread:
    """Where the slots shall be, and in words."""

    goal: Owners
    decided: str


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
    return Hot(ps, (
        f"in kernels {100 * active[ps].busy:.0f} % of the time, {active[ps].busy / median(peers):.1f} times its peers'"
        f" median, with {active[ps].slots} slots; workers wait {100 * min(1.0, waiting):.0f} % of a step"
    ))


def spread(hot: int, loads: Mapping[int, Load], owners: Owners, demand: NDArray[np.uint32]) -> Spread:
    """Takes from the hot server what levels the others up, from the least loaded on; by slot, what is asked most first.

    `demand`: uint32 [SLOTS], rows asked for of late; a server's cost of a row is its load over what was asked of it.
    A slot that alone is more than the surplus stays: elsewhere it would only make another server hot.
    """
    active = {ps: max(load.busy, LEAST_LOAD) for ps, load in loads.items() if load.slots}
    asked = np.maximum(demand.astype(np.float64), LEAST_DEMAND * max(1.0, float(demand.mean())))
    asked_of = {ps: float(asked[owners == ps].sum()) for ps in active}
    shares = _levelled({ps: busy / asked_of[ps] for ps, busy in active.items()}, asked_of, hot)
    if shares[hot] < RELIEVED_WHOLLY * asked.sum() / len(active):
        shares[hot] = 0.0
    goal, room = owners.copy(), {ps: shares[ps] - asked_of[ps] for ps in active if ps != hot}
    surplus = gone = asked_of[hot] - shares[hot]
    slots = np.flatnonzero(owners == hot)
    for slot in slots[np.argsort(-asked[slots], kind="stable")].tolist():
        if shares[hot] and surplus <= (1 - ENOUGH) * gone:
            break
        if asked[slot] <= surplus or not shares[hot]:
            target = max(room, key=lambda ps: (room[ps], -ps))
            goal[slot] = target
            room[target] -= asked[slot]
            surplus -= asked[slot]
    moving = int((goal != owners).sum())
    if not moving:
        return Spread(goal, "nothing: no slot of it would be better elsewhere")
    part = (gone - surplus) / asked_of[hot]
    return Spread(goal, f"{moving} of its slots, with {100 * part:.0f} % of its rows asked for, go to other servers")


def weights_of(goal: Owners, loads: Mapping[int, Load]) -> dict[int, float]:
    """Slots of each server, relative to the others': what later placements go by. Idle servers stay so."""
    counts = counts_of(goal)
    typical = median(counts.values())
    return {ps: counts.get(ps, 0) / typical for ps in loads}


def _levelled(cost: Mapping[int, float], asked_of: Mapping[int, float], hot: int) -> dict[int, float]:
    """What should be asked of each server, so that all are as busy as the hot one but those that are busier."""

    def shares(level: float) -> dict[int, float]:
        return {ps: level / cost[ps] if ps == hot else max(asked_of[ps], level / cost[ps]) for ps in cost}

    total = sum(asked_of.values())
    low, high = 0.0, max(asked_of[ps] * cost[ps] for ps in cost)
    for _ in range(60):
        level = (low + high) / 2
        low, high = (level, high) if sum(shares(level).values()) < total else (low, level)
    return shares(high)
