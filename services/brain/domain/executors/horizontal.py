"""How many data executors a job needs (Primus, equation 1): their buffers tell.

The signal is L = w · (buffer fill, share of CPU that is *idle*, memory), each from 0 to 1. Full buffers mean that
executors wait for trainers (fewer will do); empty ones that trainers wait for executors. CPU enters as idle share: a
positive weight on CPU *use* would cancel the signal, because starved executors have empty buffers and busy cores. By
default only the buffer counts.

Outside the band (L_lo, L_hi) a strategy acts, then nothing does for a cooldown. One strategy at a time: those that are
valid now are sorted by what the history says of them, and the best is tried; one whose last tries changed nothing
steps back for the others.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum


class Reason(IntEnum):
    """Why the count is what it is, from the best news to the worst."""

    STARVED = 10
    """Trainers wait: more executors."""
    IDLE = 20
    """Executors wait: fewer."""
    IN_BAND = 30
    COOLING = 40
    UNKNOWN = 50
    """Nothing was measured yet."""
    AT_LIMIT = 60
    NO_STRATEGY = 70
    """None that is valid has helped before."""


@dataclass(frozen=True, slots=True)
class Signal:
    """Means over the executors of the window just ended, each from 0 to 1."""

    buffer_fill: float
    cpu_idle: float = 0.0
    memory: float = 0.0


@dataclass(frozen=True, slots=True)
class Rule:
    """Weights, band and pace. Decisions are minutes apart: an executor needs time to show in the buffers."""

    weights: tuple[float, float, float] = (1.0, 0.0, 0.0)
    low: float = 0.3
    high: float = 0.8
    cooldown_s: float = 300.0
    most_growth: float = 2.0
    """A count is multiplied by no more than this, and divided by no more."""
    enough: float = 0.05
    """A try that moved L by less towards the band did not help."""
    give_up: int = 2
    """Tries in a row that did not help, after which a strategy is not valid for `rest_s`."""
    rest_s: float = 3600.0


@dataclass(frozen=True, slots=True)
class Tried:
    """What a strategy did before, and what came of it."""

    at: float
    strategy: str
    level_before: float
    level_after: float | None
    """None: not measured yet."""


@dataclass(frozen=True, slots=True)
class Executors:
    """A job's executors at the moment of deciding."""

    count: int
    least: int = 1
    most: int = 64
    signal: Signal | None = None
    history: tuple[Tried, ...] = ()
    """Oldest first."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How many there should be, and why."""

    count: int
    reason: Reason
    why: str
    strategy: str = ""


Strategy = Callable[[int, float, Rule], int]
"""(count, level, rule) → count wanted; the same count where the strategy has nothing to say."""


def by_one(count: int, level: float, rule: Rule) -> int:
    """The smallest step."""
    return count + 1 if level < rule.low else count - 1 if level > rule.high else count


def proportional(count: int, level: float, rule: Rule) -> int:
    """As far as the level is from the middle of the band."""
    middle = (rule.low + rule.high) / 2
    if level < rule.low:
        return math.ceil(count * (1 + (middle - level) / middle))
    if level > rule.high:
        return math.floor(count * (1 - (level - middle) / (1 - middle) / 2))
    return count


def doubling(count: int, level: float, rule: Rule) -> int:
    """Out of starvation at once; says nothing on the way down."""
    return count * 2 if level < rule.low / 2 else count


STRATEGIES: dict[str, Strategy] = {"proportional": proportional, "by-one": by_one, "doubling": doubling}
"""In the order in which they are tried while nothing is known of them."""


def level(signal: Signal, rule: Rule) -> float:
    """L = w · (buffer fill, idle CPU, memory) / Σ w, from 0 (starved) to 1 (idle).

    Raises:
        ValueError: the weights do not sum to more than 0, or one is negative.
    """
    total = sum(rule.weights)
    if total <= 0 or min(rule.weights) < 0:
        raise ValueError(f"weights of buffer fill, idle CPU and memory must be 0 or more and not all 0: {rule.weights}")
    parts = zip(rule.weights, (signal.buffer_fill, signal.cpu_idle, signal.memory), strict=True)
    return sum(weight * part for weight, part in parts) / total


def decide(executors: Executors, now: float, rule: Rule, strategies: dict[str, Strategy] | None = None) -> Verdict:
    """One decision: measure, validate, sort, take the best."""
    count = executors.count
    if executors.signal is None:
        return Verdict(count, Reason.UNKNOWN, "no executor has reported its buffer yet")
    seen = level(executors.signal, rule)
    told = f"L = {seen:.2f}, band {rule.low:g} to {rule.high:g}"
    if executors.history and now - executors.history[-1].at < rule.cooldown_s:
        left_s = rule.cooldown_s - (now - executors.history[-1].at)
        return Verdict(count, Reason.COOLING, f"{told}; {left_s:.0f} s of cooldown are left")
    if rule.low <= seen <= rule.high:
        return Verdict(count, Reason.IN_BAND, told)
    wanted = {
        name: _bounded(strategy(count, seen, rule), executors, rule)
        for name, strategy in (STRATEGIES if strategies is None else strategies).items()
    }
    moving = {name: target for name, target in wanted.items() if target != count}
    if not moving:
        return Verdict(count, Reason.AT_LIMIT, f"{told}; from {executors.least} to {executors.most} are allowed")
    valid = [name for name in moving if not _resting(executors.history, name, now, rule)]
    if not valid:
        return Verdict(count, Reason.NO_STRATEGY, f"{told}; none of {', '.join(sorted(moving))} has helped lately")
    chosen = max(valid, key=lambda name: _effect(executors.history, name, rule))
    reason = Reason.STARVED if seen < rule.low else Reason.IDLE
    return Verdict(moving[chosen], reason, f"{told}: {chosen} from {count} to {moving[chosen]}", chosen)


def _bounded(target: int, executors: Executors, rule: Rule) -> int:
    slowest = max(1, math.ceil(executors.count / rule.most_growth))
    fastest = max(executors.count + 1, math.floor(executors.count * rule.most_growth))
    return min(max(target, slowest, executors.least), fastest, executors.most)


def _gains(history: Sequence[Tried], name: str, rule: Rule) -> list[float]:
    """How much nearer to the band each measured try came, oldest first."""
    return [
        _outside(each.level_before, rule) - _outside(each.level_after, rule)
        for each in history
        if each.strategy == name and each.level_after is not None
    ]


def _outside(seen: float, rule: Rule) -> float:
    return max(rule.low - seen, seen - rule.high, 0.0)


def _effect(history: Sequence[Tried], name: str, rule: Rule) -> float:
    """Mean gain of the last five tries; one never tried counts as one that just helps, so that it gets its turn."""
    gains = _gains(history, name, rule)[-5:]
    return sum(gains) / len(gains) if gains else rule.enough


def _resting(history: Sequence[Tried], name: str, now: float, rule: Rule) -> bool:
    gains = _gains(history, name, rule)
    if len(gains) < rule.give_up or any(gain >= rule.enough for gain in gains[-rule.give_up :]):
        return False
    last = max(each.at for each in history if each.strategy == name)
    return now - last < rule.rest_s
