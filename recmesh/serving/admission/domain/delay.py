"""How long an ask was on its way: what it lost of its deadline in the queue that admission is about.

Clocks of two machines differ by what nobody knows, but the difference between the HN's clock at an ask's arrival and
the CN's at its sending is smallest for asks that met no queue. What is above the smallest one is delay (as in LEDBAT,
RFC 6817).
"""

import math

_HORIZON_S = 30.0
"""The smallest difference is that of the last one to two of these: clocks drift."""


class Delays:
    """By CN."""

    def __init__(self) -> None:
        self._least: dict[str, tuple[float, float, float]] = {}
        """Smallest difference in this horizon and the one before, and when this one ends."""

    def see(self, peer: str, sent_at: float, now: float) -> float:
        """Seconds above the least of this CN's asks; `sent_at` by its clock, `now` by ours."""
        difference = now - sent_at
        current, before, until = self._least.get(peer, (math.inf, math.inf, now + _HORIZON_S))
        if now >= until:
            current, before, until = math.inf, current, now + _HORIZON_S
        current = min(current, difference)
        self._least[peer] = current, before, until
        return difference - min(current, before)

    def forget(self, peer: str) -> None:
        """It is gone."""
        self._least.pop(peer, None)
