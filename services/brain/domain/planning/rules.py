"""Thresholds of the `pareto-greedy` planner."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rules:
    """From when on a change is worth its trouble, and how far predictions are trusted. Shares are of what a job has.

    With ε of the cluster's view: a job grows for more than ε, and for more than ε times the share of cost that it adds;
    it gives back what costs it at most ε times the share of cost that it saves. So neither undoes the other, and
    a series of releases ends where the curve of throughput over cost is steeper than ε.
    """

    least_free_gain: float = 0.02
    """Of throughput, where it costs no more: fits move by that much from one profile to the next."""
    least_saving: float = 0.1
    """Of cost, for a release."""
    noise: float = 0.5
    """Standard deviations of a prediction's logarithm by which a gain must stand out."""
    uncertain_log_sd: float = 0.35
    """From here on a prediction is a guess: wrong by a factor of 1.4 one time in three."""
    least_start: float = 0.25
    """Of the speed that was asked for, with which a queued job may begin when there is no room for more."""
    learning: float = 0.05
    """Of the time that a job still runs, for which it may be at a size that is tried to learn."""
    learning_room: float = 0.1
    """Of the free cores, that a step to learn may take."""
    candidates: int = 12
    """Of one job, spread evenly over the gain."""
    exact_up_to: int = 100_000
    """Allocations that are all looked at; beyond, a search chooses which."""
    population: int = 100
    generations: int = 40
    """Of that search: 4,000 allocations, .998 or more of the exact hypervolume."""
