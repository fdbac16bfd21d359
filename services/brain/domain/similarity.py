"""How alike two jobs are (MATH §1): s = Σ ω_f·s_f / Σ ω_f, s_f = [equal] or exp(−|ln a/b|)."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from services.brain.domain.model import Job

_Feature = Callable[[Job], str | int]

FEATURES: Mapping[str, tuple[float, _Feature]] = {
    "model": (2.0, lambda job: job.model),
    "framework": (0.5, lambda job: job.framework),
    "owner": (0.5, lambda job: job.owner),
    "dense parameters": (1.0, lambda job: job.dense_parameters),
    "tables": (1.0, lambda job: job.tables),
    "dimension": (1.0, lambda job: job.dim),
    "batch size": (1.0, lambda job: job.batch_size),
    "data": (1.5, lambda job: job.data_rows * max(1, job.epochs)),
}
"""Weight and value of each feature. The model's kind and the amount of work weigh most: they decide the
load per sample and how long a wrong plan costs. All are a choice; none was fitted."""


@dataclass(frozen=True, slots=True)
class Likeness:
    """How alike, from 0 to 1, and what it comes from."""

    score: float
    why: str


def feature_score(a: str | int, b: str | int) -> float | None:
    """1 for equal, less for different; None when a side is unknown, so that it says nothing."""
    if not a or not b:
        return None
    if isinstance(a, str) or isinstance(b, str):
        return 1.0 if a == b else 0.0
    return math.exp(-abs(math.log(a / b)))


def score(job: Job, past: Job) -> float:
    """`likeness(job, past).score`, without its words: thousands are looked through for the few that are told."""
    total = weights = 0.0
    for weight, value in FEATURES.values():
        alike = feature_score(value(job), value(past))
        if alike is not None:
            total += weight * alike
            weights += weight
    return total / weights if weights else 0.0


def likeness(job: Job, past: Job) -> Likeness:
    """Over the features that both jobs tell; 0 when there is none."""
    total = weights = 0.0
    same: list[str] = []
    notes: list[str] = []
    for name, (weight, value) in FEATURES.items():
        mine, theirs = value(job), value(past)
        score = feature_score(mine, theirs)
        if score is None:
            continue
        total += weight * score
        weights += weight
        if score > 0.999:
            same.append(name)
        elif isinstance(mine, str) or isinstance(theirs, str):
            notes.append(f"other {name} ({theirs})")
        else:
            times = mine / theirs
            notes.append(f"{times:,.0f}× its {name}" if times >= 1000 else f"{times:.3g}× its {name}")
    if not weights:
        return Likeness(0.0, "nothing to compare")
    why = "; ".join(([f"same {', '.join(same)}"] if same else []) + notes)
    return Likeness(total / weights, why)
