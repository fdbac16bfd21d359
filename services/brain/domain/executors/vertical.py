"""How large each process of a role should be (Primus, equations 2 and 3): its peak, its trend, a margin.

R' = R_used(peak) + D + R_s, where D is the weighted mean of the differences between N+1 samples of use, of which the
newest weighs most:

    D(R_0 .. R_N) = Σ_{i=1..N} (R_i − R_{i−1}) / ((N − i + 1) · N)

On a line of slope s, D = s·H_N/N, 0.29 of a step for N = 10: it follows jumps and says little of a ramp. So it is no
protection against running out of memory; `oom` is. Memory never goes below the present peak.

Nothing changes for crumbs: a change smaller than R_θ is not made (a share of what is held, and a least amount).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np

GIB = 1 << 30


class Reason(IntEnum):
    """Why a size is what it is, from the best news to the worst."""

    GROW = 10
    SHRINK = 20
    KEEP = 30
    """The change would be smaller than R_θ."""
    PINNED = 40
    FORECAST = 50
    """Memory that is wanted soon forbids less."""
    AT_LIMIT = 60
    UNKNOWN = 70
    """Too few samples."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a user allows for one process; a pin is the same number twice."""

    least: float
    most: float


@dataclass(frozen=True, slots=True)
class Rule:
    """Margins R_s and least changes R_θ of one kind of resource."""

    margin_share: float
    """R_s as a share of the peak."""
    margin_least: float
    least_change_share: float
    """R_θ as a share of what is held."""
    least_change: float
    round_to: float
    window: int = 10
    """N."""


CPU = Rule(margin_share=0.15, margin_least=0.1, least_change_share=0.1, least_change=0.25, round_to=0.1)
"""Cores."""
MEMORY = Rule(
    margin_share=0.2, margin_least=0.125 * GIB, least_change_share=0.1, least_change=0.25 * GIB, round_to=1 << 20
)
"""Bytes."""


@dataclass(frozen=True, slots=True)
class Use:
    """Of the busiest process of a role (a role's processes are alike; parameter servers are skewed, see `oom`)."""

    held: float
    """The size now."""
    samples: tuple[float, ...]
    """Use, oldest first, at equal distances."""
    peak: float = 0.0
    """The most that was used in the whole window, where it is known better than by samples."""


@dataclass(frozen=True, slots=True)
class Sizing:
    """The size that a process should have."""

    size: float
    reason: Reason
    why: str


def trend(samples: Sequence[float]) -> float:
    """D of the newest samples; 0 of fewer than two."""
    steps = len(samples) - 1
    if steps < 1:
        return 0.0
    ages = np.arange(steps, 0, -1)  # N − i + 1
    return float(np.sum(np.diff(np.asarray(samples, dtype=np.float64)) / (ages * steps)))


def sized(use: Use, limits: Limits, rule: Rule, *, floor: float = 0.0, unit: str = "") -> Sizing:
    """Equation 3 with the least adjustment.

    `floor` is what must not be gone below: for memory, the present peak and what `oom` foresees.
    """
    if limits.least == limits.most:
        return Sizing(limits.least, Reason.PINNED, "the user pinned it")
    newest = use.samples[-(rule.window + 1) :]
    if len(newest) < 2:
        return Sizing(use.held, Reason.UNKNOWN, "fewer than two samples of use")
    peak = max(use.peak, *newest)
    step, margin = trend(newest), max(rule.margin_share * peak, rule.margin_least)
    wanted = max(peak + step + margin, floor)
    size = min(max(_rounded_up(wanted, rule.round_to), limits.least), limits.most)
    told = f"peak {peak:,.4g} + trend {step:,.3g} + margin {margin:,.3g}{unit}"
    if floor > peak + step + margin:
        told += f", but {floor:,.4g} is needed"
    if size == use.held and not limits.least <= wanted <= limits.most:
        return Sizing(size, Reason.AT_LIMIT, f"{told}: {limits.least:,.4g} to {limits.most:,.4g} are allowed")
    threshold = max(rule.least_change_share * use.held, rule.least_change)
    if abs(size - use.held) < threshold and limits.least <= use.held <= limits.most and use.held >= floor:
        return Sizing(use.held, Reason.KEEP, f"{told}: a change of less than {threshold:,.3g} is not made")
    if size < use.held:
        return Sizing(size, Reason.FORECAST if size <= floor + rule.round_to else Reason.SHRINK, told)
    return Sizing(size, Reason.GROW, told)


def cpu(use: Use, limits: Limits, rule: Rule = CPU) -> Sizing:
    """Cores of one process."""
    return sized(use, limits, rule, unit=" cores")


def memory(use: Use, limits: Limits, rule: Rule = MEMORY, *, foreseen: float = 0.0) -> Sizing:
    """Bytes of one process: never below the present peak, nor below what is foreseen until it could be changed again.

    A limit of the user below the peak is not obeyed: the process is there, and would be killed.
    """
    peak = max(use.peak, *use.samples) if use.samples else use.peak
    allowed = limits if limits.most >= peak else Limits(limits.least, peak)
    found = sized(use, allowed, rule, floor=max(peak, min(foreseen, allowed.most)), unit=" B")
    if found.reason is Reason.FORECAST and foreseen <= peak:
        return replace(found, reason=Reason.SHRINK)
    return found


def _rounded_up(value: float, step: float) -> float:
    return float(np.ceil(value / step - 1e-9) * step)
