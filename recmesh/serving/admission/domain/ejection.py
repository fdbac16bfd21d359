"""Which HNs are left alone for a while: those that fail in a row, and those far slower than their peers.

An HN that is ejected comes back after `base_s` · 2ⁿ, n counting its ejections until it did well for as long as it was
away. Never more than `most_share` of all are out, and never all: when most are bad it is not they who are at fault.
"""

import statistics
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum

_SAMPLES = 32


class Cause(IntEnum):
    """Why an HN is left alone."""

    FAILURES = 10
    """So many in a row."""
    SLOW = 20
    """Its median is a multiple of its peers'."""


@dataclass(frozen=True, slots=True)
class Rules:
    """When, and for how long."""

    failures: int = 5
    slow_factor: float = 3.0
    slow_least_s: float = 0.002
    """A median below it is never called slow, whatever its peers do."""
    slow_samples: int = 16
    """Fewer answers tell nothing."""
    base_s: float = 1.0
    longest_s: float = 60.0
    most_share: float = 0.5


@dataclass(slots=True)
class _Node:
    failures: int = 0
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=_SAMPLES))
    ejections: int = 0
    out_until: float = float("-inf")
    good_since: float = float("-inf")


class Ejection:
    """Of the HNs of one model."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._nodes: dict[str, _Node] = {}

    def update(self, names: Iterable[str]) -> None:
        """These HNs there are; others are forgotten."""
        self._nodes = {name: self._nodes.get(name) or _Node() for name in names}

    def out(self, now: float) -> frozenset[str]:
        """Who is left alone now."""
        return frozenset(name for name, node in self._nodes.items() if node.out_until > now)

    def failed(self, name: str, now: float) -> Cause | None:
        """It did not answer, or with an error of its own (a refusal is none); the cause where it is ejected."""
        node = self._nodes.get(name)
        if node is None:
            return None
        node.failures += 1
        node.good_since = now
        if node.failures < self._rules.failures:
            return None
        return self._eject(node, now, Cause.FAILURES)

    def answered(self, name: str, seconds: float, now: float) -> Cause | None:
        """It answered after so long; the cause where it is ejected."""
        node = self._nodes.get(name)
        if node is None:
            return None
        node.failures = 0
        node.seconds.append(seconds)
        is_slow = self._is_slow(node, now)
        if is_slow:
            node.good_since = now
        if node.ejections and now - node.good_since > self._away_s(node.ejections):
            node.ejections, node.good_since = node.ejections - 1, now
        if is_slow and len(node.seconds) >= self._rules.slow_samples:
            return self._eject(node, now, Cause.SLOW)
        return None

    def _is_slow(self, node: _Node, now: float) -> bool:
        """Few answers since its return tell that it does not do well yet, if not enough to eject it for."""
        rules = self._rules
        if node.seconds[-1] < rules.slow_least_s:
            return False
        peers = [
            statistics.median(each.seconds) for each in self._nodes.values()
            if each is not node and each.out_until <= now and len(each.seconds) >= rules.slow_samples
        ]
        median_s = statistics.median(node.seconds)
        return bool(peers) and median_s > max(rules.slow_least_s, rules.slow_factor * statistics.median(peers))

    def _eject(self, node: _Node, now: float, cause: Cause) -> Cause | None:
        count = len(self._nodes)
        most = min(count - 1, int(self._rules.most_share * count))
        if node.out_until > now or len(self.out(now)) >= most:
            return None
        node.ejections += 1
        node.out_until = node.good_since = now + self._away_s(node.ejections)
        node.failures = 0
        node.seconds.clear()
        return cause

    def _away_s(self, ejections: int) -> float:
        return min(self._rules.longest_s, self._rules.base_s * 2.0 ** min(ejections - 1, 32))
