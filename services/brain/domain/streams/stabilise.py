"""KALE's algorithm 1: a segment shorter than τ, changed by at least ρ, takes the larger of its neighbours' values.

Segments are runs of equal counts. They are taken from left to right, in place, over all pairs (the paper's bound skips
the last); the first and the last stay. The running count is the segment that contains now, with the time that it has
been held; it is the first one, so a plan that leaves it for a moment only does not leave it at all.

Two things follow from the letter that nobody wants, and the default form ends them (MATH section 2):

- on a slow descent each segment takes its left neighbour's value, so that [8, 7, 6, 5, 4] becomes [8, 8, 8, 8, 4].
  *Capped*: a value is held over no more than τ of what comes after it: [8, 8, 6, 6, 4].
- a short peak takes its lower neighbours' value, which is planned lag. *Guarded*: only where what then waits, by the
  forecast, is gone within the SLO.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recmesh.plugins.streams import StreamView
from services.brain.domain.streams.lag import outlook

Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Stability:
    """ρ and τ; the plan's step must be shorter than τ, or nothing is ever short."""

    rho: int = 1
    tau_s: float = 600.0
    literal: bool = False
    """To the letter: neither capped nor guarded."""


@dataclass(slots=True)
class _Segment:
    begin: int
    end: int
    count: int
    elapsed_s: float = 0.0
    raised_s: float = 0.0
    """How much of it is there because a lower count was raised to it after a descent."""

    def lasts(self, step_s: float) -> float:
        return self.elapsed_s + (self.end - self.begin) * step_s


def stabilised(workers: Counts, stream: StreamView, rule: Stability) -> Counts:
    """Algorithm 1 over a plan, (steps,) in and out."""
    segments = _segments(workers, stream)
    index = 1
    while index < len(segments) - 1:
        left, own, right = segments[index - 1 : index + 2]
        short = own.lasts(stream.step_s) < rule.tau_s and abs(own.count - left.count) >= rule.rho
        value = max(left.count, right.count)
        if not short or not (rule.literal or _may(segments, index, value, stream, rule)):
            index += 1
            continue
        if value == left.count > own.count:
            left.raised_s += own.lasts(stream.step_s)
        own.count = value
        index = _merged(segments, index)
    return _counts(segments, len(workers))


def _may(segments: list[_Segment], index: int, value: int, stream: StreamView, rule: Stability) -> bool:
    """Whether the mended form lets a segment take a value."""
    left, own, right = segments[index - 1 : index + 2]
    if left.count > own.count > right.count:
        return left.raised_s + own.lasts(stream.step_s) <= rule.tau_s
    if value >= own.count:
        return True
    now = _counts(segments, len(stream.demand))
    lower = now.copy()
    lower[own.begin : own.end] = value
    return _gone_within_slo(stream, now, lower, own.begin)


def _gone_within_slo(stream: StreamView, now: Counts, lower: Counts, begin: int) -> bool:
    """Whether the backlog that the lower plan adds is gone an SLO after it began, at the latest."""
    more = outlook(stream, lower).backlog - outlook(stream, now).backlog > 1e-6
    if not more.any():
        return True
    last = int(np.flatnonzero(more)[-1])
    return last < len(lower) - 1 and (last + 1 - begin) * stream.step_s <= stream.lag_slo_s


def _segments(workers: Counts, stream: StreamView) -> list[_Segment]:
    found: list[_Segment] = []
    allowed = stream.least <= stream.workers <= stream.most
    if len(workers) and workers[0] != stream.workers and stream.since_s > 0 and allowed:
        found.append(_Segment(0, 0, stream.workers, stream.since_s))
    for step, count in enumerate(workers):
        if found and found[-1].count == count:
            found[-1].end = step + 1
        else:
            held_s = stream.since_s if step == 0 and count == stream.workers else 0.0
            found.append(_Segment(step, step + 1, int(count), held_s))
    return found


def _merged(segments: list[_Segment], index: int) -> int:
    """Joins the segment with neighbours of its count; the index of what comes after the last that is settled."""
    own, right = segments[index], segments[index + 1]
    if right.count == own.count:
        own.end = right.end
        del segments[index + 1]
    left = segments[index - 1]
    if left.count == own.count:
        left.end = own.end
        del segments[index]
        return index
    return index + 1


def _counts(segments: list[_Segment], steps: int) -> Counts:
    counts = np.empty(steps, dtype=np.int64)
    for each in segments:
        counts[each.begin : each.end] = each.count
    return counts
