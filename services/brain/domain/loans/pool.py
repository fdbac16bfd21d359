"""The pool that loans go to: its rules, what serving tells of its needs, what jobs tell of themselves."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from recmesh.plugins.planning import Resources
from services.brain.domain.loans.interference import Tolerance
from services.brain.domain.loans.lenders import Lender
from services.brain.domain.loans.planning import Outlook, Rules


@dataclass(frozen=True, slots=True)
class Pool:
    """What may be lent, and how."""

    rules: Rules
    unit: Resources
    """Room of one HN."""
    step_s: float = 5.0
    tolerance: Tolerance = field(default_factory=Tolerance)


@dataclass(frozen=True, slots=True)
class Served:
    """What a model's gateway has told: of its HNs."""

    at: float
    replicas: int
    needs: tuple[int, ...]
    step_s: float
    measured: int
    """By what comes now."""
    latency_s: float = 0.0
    node: str = ""
    window_s: float = 10.0
    """It tells so often."""
    is_known: bool = True
    """False: what a request takes is not known, and `measured` is what there is."""
    pods: bool = False
    """What a cluster tells to be free is without its HNs."""


@dataclass(frozen=True, slots=True)
class LendAsk:
    """An elastic job, as it tells itself."""

    lender: Lender
    settled: bool
    """No worker beyond its plan is there any more."""


@dataclass(frozen=True, slots=True)
class Owed:
    """What a job is to do without."""

    workers: int
    why: str
    again_s: float


@dataclass(frozen=True, slots=True)
class Standing:
    """Of the pool, for people."""

    own: int
    most: int
    used: int
    needed: int
    why: str


def kept_back(held: int, rules: Rules, served: Iterable[Served]) -> int:
    """Of so many units that training has given up, those that a cluster may tell to be free though they are not: HNs
    that are pods count in what it tells, and serving's own room they take first."""
    told = list(served)
    beyond = max(0, sum(each.replicas for each in told) - rules.own)
    return max(0, held - min(beyond, sum(each.replicas for each in told if each.pods)))


def outlook(served: Iterable[Served]) -> Outlook:
    """The sum over models, on the finest step of any."""
    told = list(served)
    if not told:
        return Outlook((), 60.0)
    step_s = min(each.step_s for each in told)
    length = max((math.ceil(len(each.needs) * each.step_s / step_s) for each in told), default=0)
    needs = [0] * length
    for each in told:
        for place in range(length):
            at = int(place * step_s // each.step_s)
            last = each.needs[-1] if each.needs else each.measured
            needs[place] += each.needs[at] if at < len(each.needs) else last
    return Outlook(needs, step_s, sum(each.measured for each in told), all(each.is_known for each in told))
