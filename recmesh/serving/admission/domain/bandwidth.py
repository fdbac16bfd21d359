"""How fast messages come in: B of the link, and what a transfer costs besides its bytes.

A sample is the bytes that arrived while something was under way, over that time; single messages say little, as they
share the link with each other. B is a high quantile of the last samples: delays of any kind only make samples
smaller, as in BBR's maximum (Cardwell et al., 2016), while one sample that is too large by chance does no harm.
"""

import math
from collections import deque

_SAMPLES = 16
_QUANTILE = 0.75
_SETTLED_BYTES = 256 << 10
"""Fewer in a busy time make no sample."""
_WINDOWS = 8
"""A sample in the midst of a busy time ends after so many windows: what was under way at its begin was partly there
already, at most a window of it."""
_HORIZON_S = 30.0
_SMALL_BYTES = 4 << 10
_BASE_HORIZON_S = 10.0
_LEAST_TELLING = 0.2
"""Samples whose time is mostly latency are left out."""


class Bandwidth:
    """`began` when the first message gets under way, `arrived` with each, `forget` when one never came."""

    def __init__(self, prior: float) -> None:
        """`prior`: bytes per second until something is measured."""
        self._samples: deque[tuple[float, float]] = deque(maxlen=_SAMPLES)
        self.bytes_per_s = prior
        self._since: float | None = None
        self._busy_s, self._bytes, self._times = 0.0, 0, 0
        self._base: tuple[float, float] = (math.inf, math.inf)
        self._base_until = -math.inf

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
        self._times += 1

    def arrived(self, now: float, size_bytes: int, *, took_s: float, last: bool, window_bytes: int) -> bool:
        """`took_s` after its grant; `last`: nothing else is under way. True when B was measured anew."""
        if size_bytes <= _SMALL_BYTES:
            self._see_base(now, took_s)
        self._bytes += size_bytes
        if self._since is not None:
            self._busy_s += now - self._since
        self._since = None if last else now
        enough = _SETTLED_BYTES if last else max(_SETTLED_BYTES, _WINDOWS * window_bytes)
        if self._bytes < enough:
            return False
        sending_s = self._busy_s - self._times * self.base_s
        telling = sending_s > _LEAST_TELLING * self._busy_s
        if telling:
            self._see_rate(now, self._bytes / sending_s)
        self._busy_s, self._bytes, self._times = 0.0, 0, 0
        return telling

    def forget(self, now: float, *, last: bool) -> None:
        """A message never came: the time that was waited for it says nothing of the link."""
        self._busy_s, self._bytes, self._times = 0.0, 0, 0
        self._since = None if last else now

    def _see_rate(self, now: float, rate: float) -> None:
        self._samples.append((now, rate))
        while self._samples[0][0] < now - _HORIZON_S:
            self._samples.popleft()
        ordered = sorted(rate for _, rate in self._samples)
        self.bytes_per_s = ordered[min(len(ordered) - 1, int(_QUANTILE * len(ordered)))]

    def _see_base(self, now: float, took_s: float) -> None:
        current, before = self._base
        if now >= self._base_until:
            current, before = math.inf, current
            self._base_until = now + _BASE_HORIZON_S
        self._base = (min(current, took_s), before)
