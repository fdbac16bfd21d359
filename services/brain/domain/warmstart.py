"""First plans from similar past jobs (DLRover-RM, algorithm 1, as MATH §1 makes it exact).

Ã_1 = A_1;  Ã_i = μ·A_i + (1−μ)·Ã_{i−1},  i = 1..k from the least to the most similar
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from services.brain.domain.model import History, Job, RolePlan, Similar
from services.brain.domain.similarity import likeness, score

SUCCEEDED = "Succeeded"


@dataclass(frozen=True, slots=True)
class WarmStart:
    """k most similar jobs, weight μ of the newer (more similar) one, and the least likeness s_min."""

    k: int = 5
    mu: float = 0.5
    s_min: float = 0.5


def smoothed(values: Sequence[float], *, mu: float) -> float:
    """Ã_k of values that are ordered from the least to the most similar job."""
    result = values[0]
    for value in values[1:]:
        result = mu * value + (1 - mu) * result
    return result


def most_similar(job: Job, past: Sequence[History], rule: WarmStart) -> list[tuple[Similar, History]]:
    """At most k successful jobs with a plan, least similar first; of equals the newest last."""
    found = []
    for history in past:
        if history.outcome != SUCCEEDED or not history.final_plan or history.job.job_id == job.job_id:
            continue
        alike = score(job, history.job)
        if alike >= rule.s_min:
            found.append((alike, history.ended, history.job.job_id, history))
    found.sort(key=lambda item: item[:3])
    return [
        (Similar(job_id, alike, likeness(job, history.job).why), history)
        for alike, _, job_id, history in found[-rule.k :]
    ]


def blended(chosen: Sequence[History], role: str, rule: WarmStart) -> RolePlan | None:
    """The role's plan from those of the chosen jobs that had it; None when none had.

    Counts go to the nearest (halves up), CPU to the nearest tenth, memory up to a whole MiB.
    """
    plans = [plan for history in chosen for plan in history.final_plan if plan.role == role]
    if not plans:
        return None

    def blend(value: Callable[[RolePlan], float]) -> float:
        return smoothed([value(plan) for plan in plans], mu=rule.mu)

    return RolePlan(
        role=role,
        replicas=nearest(blend(lambda plan: plan.replicas)),
        cpu=max(0.1, round(blend(lambda plan: plan.cpu), 1)),
        memory_bytes=math.ceil(blend(lambda plan: plan.memory_bytes) / MIB) * MIB,
    )


MIB = 1 << 20


def nearest(value: float) -> int:
    """Halves go up: 13.5 is 14, also where Python's round would choose the even one."""
    return math.floor(value + 0.5)
