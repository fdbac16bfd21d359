"""Which job lends a unit, and how many of its workers that takes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from recmesh.plugins.planning import Resources


@dataclass(frozen=True, slots=True)
class Lender:
    """An elastic job, as it told itself last."""

    job_id: str
    priority: int
    workers: int
    """That it is planned to have now, without what it has lent."""
    least: int
    """Workers that it may not have fewer of."""
    worker: Resources
    """What one holds."""
    lent: int = 0
    """Workers that it does without already."""
    deadline: float = 0.0
    """0: none."""
    nodes: tuple[str, ...] = ()
    """Of its workers."""


def workers_for(units: int, worker: Resources, unit: Resources) -> int:
    """How many workers must leave so that so many units have room; 0 units: none.

    ValueError where workers hold nothing of what a unit needs.
    """
    shares = [(unit.cpu, worker.cpu)]
    # A worker without a limit of memory gives up what it uses, which is not known: then cores and GPUs tell.
    shares += [(unit.memory_bytes, worker.memory_bytes)] if worker.memory_bytes > 0 else []
    shares += [(many, worker.gpus.get(kind, 0.0)) for kind, many in unit.gpus.items()]
    wanted = [(needs, has) for needs, has in shares if needs > 0]
    if any(has <= 0 for _, has in wanted):
        raise ValueError("the job's workers hold nothing of what a unit needs")
    return max([math.ceil(units * needs / has - 1e-9) for needs, has in wanted], default=units)


def units_of(lender: Lender, unit: Resources, has_lent: int) -> int:
    """How many units it could lend besides the `has_lent` that it lends."""
    spare = lender.workers + lender.lent - lender.least
    units = has_lent
    try:
        while workers_for(units + 1, lender.worker, unit) <= spare and units < has_lent + lender.workers * 64:
            units += 1
    except ValueError:
        return 0
    return max(0, units - has_lent)


def chosen(
    lenders: Sequence[Lender], unit: Resources, lent: dict[str, int], count: int
) -> list[str]:
    """Lenders of `count` units, one by one; fewer where there are no more.

    Jobs of low priority first, then those without a deadline, then the one that has the most to give: none is shrunk
    to its least while another has plenty.
    """
    left = {each.job_id: units_of(each, unit, lent.get(each.job_id, 0)) for each in lenders}
    found: list[str] = []
    for _ in range(count):
        ready = [each for each in lenders if left[each.job_id] > 0]
        if not ready:
            break
        best = min(ready, key=lambda each: (each.priority, each.deadline > 0, -left[each.job_id], each.job_id))
        found.append(best.job_id)
        left[best.job_id] -= 1
    return found
