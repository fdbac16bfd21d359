"""How busy processes are, from two looks at what each says of itself since its start."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Sample:
    """What one process says."""

    at: float
    busy_s: float
    """In which it computed, since its models were loaded."""
    answered: int
    waiting: int
    """Requests that wait for it or in it."""

    @classmethod
    def of(cls, told: Mapping[str, Any], *, at: float, waiting: int) -> Self:
        """From the answer to `ping`: numbers of the process, or of each of its models."""
        return cls(
            at, _sum(told.get("busy_s", 0.0)), int(_sum(told.get("answered", 0))),
            waiting + int(_sum(told.get("queued", 0))),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Load:
    """Of all processes of one kind, over some seconds."""

    replicas: int
    busy: float = 0.0
    """Mean share of their time in which they computed, 0 to 1. A process whose models run side by side counts as 1."""
    answered_per_s: float = 0.0
    """Where some did not say, or are new, as much for each of them as for the others: `busy` is of all in that way."""
    waiting: float = 0.0
    """Requests that wait, at the end of the time."""
    start_s: float = 0.0
    """From the start of a process until it took requests."""
    window_s: float = 0.0
    """0: nothing is known yet."""


def load_between(
    before: Mapping[int, Sample], now: Mapping[int, Sample], *, replicas: int, start_s: float
) -> Load:
    """By process. Those not there at the first look, or that lost a model meanwhile, are taken to be as the others.

    Else busy time (mean times replicas) over answers would be too much for one request.
    """
    busy_s = answered = weight_s = 0.0
    longest_s, measured = 0.0, 0
    for pid, sample in now.items():
        first = before.get(pid)
        if first is None or sample.busy_s < first.busy_s or sample.answered < first.answered:
            continue
        passed_s = sample.at - first.at
        weight_s, measured = weight_s + passed_s, measured + 1
        longest_s = max(longest_s, passed_s)
        busy_s += min(passed_s, sample.busy_s - first.busy_s)
        answered += sample.answered - first.answered
    waiting = sum(sample.waiting for sample in now.values())
    if weight_s <= 0:
        return Load(replicas, waiting=waiting, start_s=start_s)
    answered_per_s = answered / longest_s * max(1.0, replicas / measured)
    return Load(replicas, busy_s / weight_s, answered_per_s, waiting, start_s, longest_s)


def _sum(value: Any) -> float:
    return float(sum(value.values())) if isinstance(value, Mapping) else float(value)
