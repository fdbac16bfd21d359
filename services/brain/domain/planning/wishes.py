"""What of everything that a job could have is worth a change (MATH §1, classes)."""

from dataclasses import dataclass
from enum import Enum, auto

import numpy as np

from recmesh.plugins.planning import ClusterView, JobView
from services.brain.domain.planning.deadline import seconds_left, spare_samples
from services.brain.domain.planning.rules import Rules
from services.brain.domain.planning.survey import Mask, Present, Survey


class Deadline(Enum):
    """How a job stands to its deadline."""

    NONE = auto()
    HELD = auto()
    """It ends in time with what it has."""
    REACHABLE = auto()
    LOST = auto()
    """Nothing that is allowed ends in time."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """Rows that are worth a change, by why, (n,) each, and how its deadline stands."""

    free_gain: Mask
    """(a) faster at no more cost."""
    growth: Mask
    """(b) faster, and worth its cost; for a queued job all that it could begin with."""
    release: Mask
    """(c) cheaper, and hardly slower or still in time."""
    in_time: Mask
    deadline: Deadline

    @property
    def any(self) -> Mask:
        """Whatever is worth a change."""
        return self.free_gain | self.growth | self.release


def wishes(
    job: JobView, cluster: ClusterView, at: Present, seen: Survey, deadline: Deadline, asked_rate: float, rules: Rules
) -> Wishes:
    """By the job's situation: queued, in time, to be saved, or without a deadline (or with one that is lost)."""
    none = np.zeros(len(seen.shapes), dtype=bool)
    in_time = ~none if deadline is Deadline.NONE else _in_time(job, cluster, seen)
    if job.queued:
        enough = seen.rate >= rules.least_start * asked_rate
        return Wishes(none, enough, none, in_time, deadline)
    cheaper = seen.cost <= 0.0
    clearly = np.maximum(rules.least_free_gain * at.rate, rules.noise * at.rate * seen.log_sd)
    free_gain = cheaper & (seen.gain > clearly)
    saves = seen.cost <= -rules.least_saving * at.cost
    if deadline is Deadline.HELD:
        # Just enough is enough: it is not grown, and what its deadline does not need is given back.
        return Wishes(free_gain & in_time, none, saves & in_time, in_time, deadline)
    if deadline is Deadline.REACHABLE:
        return Wishes(free_gain, ~cheaper & (seen.gain > 0.0), none, in_time, deadline)
    rate_per_cost = cluster.epsilon * at.rate / max(at.cost, 1e-12)
    clearly = np.maximum(clearly, cluster.epsilon * at.rate)
    growth = ~cheaper & (seen.gain > np.maximum(clearly, rate_per_cost * seen.cost))
    if deadline is Deadline.LOST:
        return Wishes(free_gain, growth, none, in_time, deadline)
    hardly_slower = (seen.rate * (1.0 + cluster.epsilon) >= at.rate) & (seen.gain >= rate_per_cost * seen.cost)
    return Wishes(free_gain, growth, saves & hardly_slower, in_time, deadline)


def deadline_of(job: JobView, cluster: ClusterView, at: Present, *looked_at: Survey) -> Deadline:
    """Whether it is held, and if not, whether anything that was looked at would hold it, believed or not."""
    if job.deadline is None:
        return Deadline.NONE
    if not job.queued and at.rate * seconds_left(job, cluster.now) >= job.remaining:
        return Deadline.HELD
    reachable = any((_in_time(job, cluster, seen) & seen.allowed).any() for seen in looked_at)
    return Deadline.REACHABLE if reachable else Deadline.LOST


def _in_time(job: JobView, cluster: ClusterView, seen: Survey) -> Mask:
    return spare_samples(job, cluster.now, seen.rate, seen.overhead_s) >= 0.0
