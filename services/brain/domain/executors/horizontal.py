"""How many data executors a job needs (Primus, equation 1): their buffers tell.

The signal is L = w · (buffer fill, share of CPU that is *idle*, memory), each from 0 to 1. Full buffers mean that
executors wait for trainers (fewer will do); empty ones that trainers wait for executors. CPU enters as idle share: a
positive weight on CPU *use* would cancel the signal, because starved executors have empty buffers and busy cores. By
default only the buffer counts.

Outside the band (L_lo, L_hi) a strategy acts, then nothing does for a cooldown, longer on the way down; and a count
that was too small is not gone back to for a while, whatever the buffers of one more show. One strategy at a time:
those that are valid now are sorted by what the history says of them, and the best is tried; one whose last tries
changed nothing steps back for the others. More executors that make the job no faster are taken back.
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
    NO_USE = 45
    """More did not make the job faster: it does not wait for want of executors."""
    STARVED_BEFORE = 55
    """One fewer did not suffice lately."""
    AT_LIMIT = 60
    NO_STRATEGY = 70
    """None that is valid has helped before."""


@dataclass(frozen=True, slots=True)
class Signal:
    """Means over the executors of the window just ended, from 0 to 1 but for the speed."""

    buffer_fill: float
    cpu_idle: float = 0.0
    memory: float = 0.0
    samples_per_s: float = 0.0
    """Of the job; 0: not known."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Weights, band and pace. An executor needs time to show in the buffers."""

    weights: tuple[float, float, float] = (1.0, 0.0, 0.0)
    low: float = 0.3
    high: float = 0.8
    cooldown_s: float = 300.0
    """After a change, before one to fewer."""
    grow_after_s: float = 30.0
    """After a change, before one to more: who starves loses more than who idles."""
    most_growth: float = 2.0
    """A count is multiplied by no more than this, and divided by no more."""
    enough: float = 0.05
    """A try that moved L by less towards the band did not help, nor did one whose job became no faster by this share:
    buffers stay empty until there are enough executors, and each of them helps."""
    give_up: int = 2
    """Tries in a row that did not help, after which a strategy is not valid for `rest_s`."""
    rest_s: float = 3600.0
    worth: float = 0.2
    """Of the speed that as many more executors would bring, at best, a change must bring so much, or it is undone."""
    retry_s: float = 600.0
    """After that, before more are tried again."""


@dataclass(frozen=True, slots=True)
class Tried:
    """What a strategy did before, and what came of it."""

    at: float
    strategy: str
    level_before: float
    level_after: float | None
    """None: not measured yet."""
    count: int = 0
    """Executors before it."""
    wanted: int = 0
    """Executors after it."""
    rate_before: float = 0.0
    rate_after: float = 0.0
    """Samples per second; 0: not known."""


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
    if rule.low <= seen <= rule.high:
        return Verdict(count, Reason.IN_BAND, told)
    pause_s = rule.grow_after_s if seen < rule.low else rule.cooldown_s
    if executors.history and now - executors.history[-1].at < pause_s:
        left_s = pause_s - (now - executors.history[-1].at)
        return Verdict(count, Reason.COOLING, f"{told}; {left_s:.0f} s of cooldown are left")
    too_few = _starved(executors.history, now, rule)
    if seen < rule.low:
        if found := _no_use(executors, now, rule):
            return found
    elif executors.least < count <= too_few + 1:
        return Verdict(count, Reason.STARVED_BEFORE, f"{told}; {too_few} did not suffice lately")
    wanted = {
        name: _bounded(
            strategy(count, seen, rule), executors, rule, above=too_few if seen > rule.high else 0,
            upto=_enough(executors, now, rule) if seen < rule.low else executors.most,
        )
        for name, strategy in (STRATEGIES if strategies is None else strategies).items()
    }
    grows = seen < rule.low
    moving = {name: target for name, target in wanted.items() if target != count and (target > count) == grows}
    if not moving:
        return Verdict(count, Reason.AT_LIMIT, f"{told}; from {executors.least} to {executors.most} are allowed")
    history = [each for each in executors.history if (each.level_before < rule.low) == (seen < rule.low)]
    valid = [name for name in moving if not _resting(history, name, now, rule)]
    if not valid:
        return Verdict(count, Reason.NO_STRATEGY, f"{told}; none of {', '.join(sorted(moving))} has helped lately")
    chosen = max(valid, key=lambda name: _effect(history, name, rule))
    reason = Reason.STARVED if seen < rule.low else Reason.IDLE
    return Verdict(moving[chosen], reason, f"{told}: {chosen} from {count} to {moving[chosen]}", chosen)


def _no_use(executors: Executors, now: float, rule: Rule) -> Verdict | None:
    """Growth that brought nothing is undone, and not tried again from there for a while: what workers wait for is
    something else, the store that all executors read from, say."""
    history, count = executors.history, executors.count
    last = history[-1] if history else None
    if last is not None and last.wanted == count > last.count >= executors.least and _was_no_use(last, rule):
        return Verdict(last.count, Reason.NO_USE, f"{count} executors bring no more than {last.count}", "undo")
    if any(each.count == count and _was_no_use(each, rule) and now - each.at < rule.retry_s for each in history):
        return Verdict(count, Reason.NO_USE, f"more than {count} executors brought nothing a while ago")
    return None


def _was_no_use(each: Tried, rule: Rule) -> bool:
    """It was growth, and neither buffers nor speed became better for it."""
    if each.wanted <= each.count or each.level_after is None or each.rate_before <= 0 or each.rate_after <= 0:
        return False
    best = each.wanted / each.count - 1.0
    faster = each.rate_after / each.rate_before - 1.0
    return each.level_after - each.level_before < rule.enough and faster < rule.worth * best


def _starved(history: Sequence[Tried], now: float, rule: Rule) -> int:
    """The most executors that were too few lately; 0: none were."""
    return max((
        each.count for each in history
        if each.level_before < rule.low and now - each.at < rule.rest_s
        and each.wanted > each.count and not _was_no_use(each, rule)
    ), default=0)


def _enough(executors: Executors, now: float, rule: Rule) -> int:
    """The fewest executors above the present count that were more than enough lately; as many as are allowed where
    none were."""
    return min((
        each.count for each in executors.history
        if each.level_before > rule.high and each.count > executors.count and now - each.at < rule.rest_s
    ), default=executors.most)


def _bounded(target: int, executors: Executors, rule: Rule, *, above: int, upto: int) -> int:
    slowest = max(1, math.ceil(executors.count / rule.most_growth))
    fastest = max(executors.count + 1, math.floor(executors.count * rule.most_growth))
    return min(max(target, slowest, executors.least, above + 1), fastest, upto, executors.most)


def _gains(history: Sequence[Tried], name: str, rule: Rule) -> list[float]:
    """What each measured try brought, oldest first."""
    return [
        _gain(each, each.level_after, rule)
        for each in history
        if each.strategy == name and each.level_after is not None
    ]


def _gain(each: Tried, level_after: float, rule: Rule) -> float:
    """How much nearer to the band it came, or how much faster the job became. Fewer that starve nobody help, too."""
    nearer = _outside(each.level_before, rule) - _outside(level_after, rule)
    if each.level_before > rule.high and level_after >= rule.low:
        return max(nearer, rule.enough)
    known = each.rate_before > 0 and each.rate_after > 0
    return max(nearer, each.rate_after / each.rate_before - 1.0 if known else 0.0)


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
