"""Which series dear models are tried for: where a second of CPU is likely to take away the most error."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

GAIN, SECONDS = 0.05, 20.0
"""Share of the error that dear models are expected to take away before they were ever tried for a series, and what
that costs."""
FADE_S = 86_400.0
"""Half-life of what was found out: series change."""
AHEAD_FADES = 0.999
"""What one ask leaves of the largest horizon: by half in 700 asks."""
SLACK = 0.1
LEAST_GAIN = 0.02
"""Share of the error below which the cheap models stay: they follow a change sooner."""


@dataclass(frozen=True, slots=True)
class Worth:
    """What is known of a series, as far as it decides."""

    key: str
    traffic: float
    """Mean rate: an error of a tenth is worse on a series that is ten times as high."""
    error: float
    """WAPE of its cheap models."""
    asked: int = 1
    """Forecasts since it was last refined: nobody profits from those that nobody asks for."""
    gain: float = GAIN
    """Share of the error taken away when last tried."""
    seconds: float = SECONDS
    tried_at: float = 0.0
    """Unix seconds; 0: never."""
    ahead: float = 0.0
    """Steps after the history's end that were asked for lately, at most."""

    def per_second(self, now: float) -> float:
        """Error that is expected to be taken away, in events per second, for each second of CPU.

        What a trial found fades towards what is expected of an unknown series.
        """
        known = 0.5 ** ((now - self.tried_at) / FADE_S) if self.tried_at else 0.0
        gain = known * max(0.0, self.gain) + (1 - known) * GAIN
        return self.traffic * self.error * gain * self.asked / max(self.seconds, 1e-3)

    def was_asked(self, *, traffic: float, error: float, ahead: int) -> "Worth":
        """Once more, so many steps ahead of the history. Far ones are forgotten slowly: who asked will again."""
        far = max(float(ahead), self.ahead * AHEAD_FADES)
        return replace(self, traffic=traffic, error=error, asked=self.asked + 1, ahead=far)

    @property
    def horizon(self) -> int:
        """Steps that models are tried for: what was asked, and some more for rates that come late."""
        return math.ceil(self.ahead * (1 + SLACK)) + 1

    def found(self, gain: float, seconds: float, now: float) -> "Worth":
        """After a trial."""
        return replace(self, gain=gain, seconds=seconds, tried_at=now, asked=0)


def next_to_refine(known: Iterable[Worth], *, now: float) -> Worth | None:
    """The series that pays most; none when nothing does."""
    paying = [each for each in known if each.per_second(now) > 0]
    return max(paying, key=lambda each: (each.per_second(now), each.key), default=None)
