"""How many slots go over at once, and how long training may wait for them: learned from the handoffs before."""

from dataclasses import dataclass, replace

LEAST_SHARE = 1 / 16
"""Of the most slots: below it a handoff costs its calls alone, and smaller ones only cost more of them."""
LONGEST = 4.0
"""Times the usual limit that training waits at most."""
EASY_SHARE = 0.5
"""Of the limit: a handoff that took less may be followed by a larger one."""


@dataclass(frozen=True, slots=True)
class Handoff:
    """The next one."""

    most: int
    """Slots."""
    usual_s: float
    """How long training may wait where all is well."""
    slots: int
    freeze_s: float

    @staticmethod
    def first(most: int, freeze_s: float) -> "Handoff":
        """Nothing is known yet."""
        return Handoff(most, freeze_s, most, freeze_s)

    def failed(self, slots: int) -> "Handoff":
        """One of so many was not done in time.

        Fewer slots help where rows take the time; where calls to a starved server do, only patience helps.
        """
        least = max(1, int(self.most * LEAST_SHARE))
        return replace(
            self, slots=min(self.slots, max(least, slots // 2)), freeze_s=min(2 * self.freeze_s, LONGEST * self.usual_s)
        )

    def done(self, pause_s: float) -> "Handoff":
        """One has gone over; training waited so long."""
        slots = min(2 * self.slots, self.most) if pause_s < EASY_SHARE * self.freeze_s else self.slots
        return replace(self, slots=slots, freeze_s=max(self.usual_s, min(self.freeze_s, 4.0 * pause_s)))
