"""What a candidate is worth to the cluster: RE·WG (DLRover-RM, eq. 12-14, as MATH §1 mends them)."""

import numpy as np

from recmesh.plugins.planning import Candidate, Floats, JobView
from services.brain.domain.planning.survey import predicted_rate

EPSILON_S = 1e-6
"""Keeps a job that is about to end from weighing infinitely."""


def log_weight(remaining_s: Floats, rho: float) -> Floats:
    """ln WG = −ρ·ln(remaining_samples/Ψ + ε), Ψ after the plan. Its logarithm, as WG itself leaves the doubles."""
    weight: Floats = -rho * np.log(remaining_s + EPSILON_S)
    return weight


def base_rate(job: JobView) -> float:
    """Ψ_now, by which gains are normalised so that models compare; of a queued job Ψ as asked for; 0: unknown."""
    if job.rate > 0.0 and not job.queued:
        return job.rate
    return predicted_rate(job, job.now) if job.throughput is not None else 0.0


def relative_gain(job: JobView, candidate: Candidate, base: float) -> float:
    """TG/Ψ_now; by workers where nothing is known of its speed."""
    if base > 0.0:
        return candidate.gain / base
    return candidate.gain / candidate.rate if candidate.rate > 0.0 else candidate.allocation.workers / job.now.workers


def remaining_s(job: JobView, candidate: Candidate, base: float, horizon_s: float) -> float:
    """Until its end with the candidate; the horizon where nothing is known of its speed."""
    rate = candidate.rate or base
    return job.remaining / rate if rate > 0.0 else horizon_s
