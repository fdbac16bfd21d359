"""How fast messages come in: B of the link, and what a transfer costs besides its bytes.

A sample is the bytes that arrived while something was under way, over that time; single messages say little, as they
share the link with each other. B is the median of the last samples. BBR's maximum (Cardwell et al., 2016) is too high
by some percent, which paces a sender well, and would make every message at the end of a full queue late.

Not every sample tells of the link. One whose time is mostly overhead (the grant's way, threads that wake) is only known
to be faster than that, and ranks above all others; where such are most, B stays. One of small messages says what they
cost, whatever the link could do, so it may raise B and never lowers it, as BBR's samples of a sender that had nothing
to send (`app_limited`). A B that is too high is mended by the next large message; one that is too low would refuse it.
"""

import math
from collections import deque
from dataclasses import dataclass

_SAMPLES = 9
_SETTLED_BYTES = 256 << 10
"""Fewer in a busy time make no sample."""
_WINDOWS = 4
"""A sample in the midst of a busy time ends after so many windows: what was under way at its begin was partly there
already, at most a window of it."""
_HORIZON_S = 30.0
_SMALL_BYTES = 4 << 10
"""What takes so few is all overhead."""
_TELLING_BYTES = 64 << 10
"""Samples of smaller messages (the mean, by bytes) never lower B. At 10 Gbit/s such a one takes 50 µs, less than a
thread takes to wake."""
_BASE_HORIZON_S = 10.0
_LEAST_TELLING = 0.2
"""Share of a sample's time that must be left when overhead is taken off."""
_OVERHEADS = 64
_OVERHEAD_S = 0.001
"""Of a transfer, while no small message has shown it: a round trip within a data centre, and two threads that wake."""


@dataclass(slots=True)
class _Sum:
    """Of what arrived while something was under way."""

    busy_s: float = 0.0
    size_bytes: int = 0
    squares: int = 0
    """Σ bytes²: over `size_bytes` it is the mean message, each weighted by its bytes."""
    begins: int = 0
    """How often nothing had been under way before."""

    def __add__(self, other: "_Sum") -> "_Sum":
        return _Sum(
            self.busy_s + other.busy_s, self.size_bytes + other.size_bytes, self.squares + other.squares,
            self.begins + other.begins,
        )


class Bandwidth:
    """`began` when the first message gets under way, `arrived` with each, `forget` when one never came."""

    def __init__(self, prior: float) -> None:
        """`prior`: bytes per second until something is measured."""
        self._samples: deque[tuple[float, float]] = deque(maxlen=_SAMPLES)
        """When, and bytes per second; infinite: faster than could be told."""
        self.bytes_per_s = prior
        self._since: float | None = None
        self._before, self._now = _Sum(), _Sum()
        """Of this sample: busy times that are over, and the one that is not."""
        self._base: tuple[float, float] = (math.inf, math.inf)
        self._base_until = -math.inf
        self._overheads: deque[tuple[float, float]] = deque(maxlen=_OVERHEADS)
        """When, and how long something was under way that was small and alone."""

    @property
    def base_s(self) -> float:
        """From a grant to the arrival of a message of no size, as lately seen at best; 0 while unknown."""
        base_s = min(self._base)
        return base_s if math.isfinite(base_s) else 0.0

    def expected_s(self, size_bytes: int) -> float:
        """From a grant to the arrival, on a link of its own."""
        return self.base_s + size_bytes / self.bytes_per_s

    def began(self, now: float) -> None:
        """Nothing was under way until now."""
        self._since = now
        self._now.begins += 1

    def arrived(self, now: float, size_bytes: int, *, took_s: float, last: bool, window_bytes: int) -> bool:
        """`took_s` after its grant; `last`: nothing else is under way. True when B was measured anew."""
        if size_bytes <= _SMALL_BYTES:
            self._see_base(now, took_s)
        self._now.size_bytes += size_bytes
        self._now.squares += size_bytes * size_bytes
        if self._since is not None:
            self._now.busy_s += now - self._since
        self._since = None if last else now
        if last:
            self._end_busy_time(now)
        seen = self._before + self._now
        enough = _SETTLED_BYTES if last else max(_SETTLED_BYTES, _WINDOWS * window_bytes)
        if seen.size_bytes < enough:
            return False
        self._before, self._now = _Sum(), _Sum()
        return self._judge(now, seen)

    def forget(self, now: float, *, last: bool) -> None:
        """A message never came: the time since the last one came says nothing of the link."""
        self._since = None if last else now
        if last:
            self._before, self._now = self._before + self._now, _Sum()

    def _end_busy_time(self, now: float) -> None:
        ended, self._now = self._now, _Sum()
        if ended.begins and ended.size_bytes <= _SMALL_BYTES:
            self._overheads.append((now, ended.busy_s))      # it is what is to be taken off others
        else:
            self._before += ended

    def _judge(self, now: float, seen: _Sum) -> bool:
        if seen.squares < _TELLING_BYTES * seen.size_bytes:
            least = seen.size_bytes / seen.busy_s if seen.busy_s > 0 else math.inf
            if not self.bytes_per_s < least < math.inf:
                return False
            self._see_rate(now, least)
            return True
        left_s = seen.busy_s - seen.begins * self._overhead_s(now)
        if left_s <= _LEAST_TELLING * seen.busy_s:
            self._see_rate(now, math.inf)
            return False
        self._see_rate(now, seen.size_bytes / (seen.busy_s - seen.begins * self.base_s))
        return True

    def _overhead_s(self, now: float) -> float:
        """Of a transfer, in the mean; never below the least that was seen."""
        while self._overheads and self._overheads[0][0] < now - _HORIZON_S:
            self._overheads.popleft()
        if self._overheads:
            return max(self.base_s, sum(taken_s for _, taken_s in self._overheads) / len(self._overheads))
        return self.base_s or _OVERHEAD_S

    def _see_rate(self, now: float, rate: float) -> None:
        self._samples.append((now, rate))
        while self._samples[0][0] < now - _HORIZON_S:
            self._samples.popleft()
        ordered = sorted(rate for _, rate in self._samples)
        if math.isfinite(median := ordered[len(ordered) // 2]):
            self.bytes_per_s = median

    def _see_base(self, now: float, took_s: float) -> None:
        current, before = self._base
        if now >= self._base_until:
            current, before = math.inf, current
            self._base_until = now + _BASE_HORIZON_S
        self._base = (min(current, took_s), before)
