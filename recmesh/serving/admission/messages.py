"""What a CN and an HN say to each other about one message before, while and after it is sent.

    CN                                   HN
    Ask ───────────────────────────────►      waits by deadline, or is refused at once
        ◄─────────────────── Grant | Refuse
    (the message itself, by any transport)
    Sent ──────────────────────────────►      only where the HN cannot see arrivals by itself
        ◄──────────────────────────── Done    or Refuse with GRANT_EXPIRED
    Cancel ────────────────────────────►      at any time; also what is granted comes back

`request` is a number that the CN chooses, unique on its link to this HN. Repeating any of them changes nothing.
Times are durations from the moment of sending, as the clocks of two machines differ.
"""

from dataclasses import dataclass
from enum import IntEnum

from recmesh.runtime.errors import ResourceExhausted

MOST_MODEL_BYTES = 256
"""Of a model's name in UTF-8."""
MOST_PRIORITY = 255


class Reason(IntEnum):
    """Why a message may not be sent (any more), from what waiting or another HN mends to what nothing does."""

    QUEUE_FULL = 10
    """As many asks, or bytes, wait as may."""
    PEER_QUEUE_FULL = 20
    """This CN has as many asks waiting as one CN may."""
    DEADLINE_BEHIND_QUEUE = 30
    """Alone it would be in time; behind, or without harm to, what was accepted before it, it is not."""
    SHED_FOR_PRIORITY = 40
    """It was waiting, and made room for a message of higher priority that would be late otherwise."""
    SHED_FOR_FAIRNESS = 50
    """It was waiting, and made room for a model that has had less than its share."""
    LINK_SLOWED = 60
    """It was waiting, and the link or what goes before it took longer than expected: it would be late."""
    WAITED_TOO_LONG = 70
    """It has no deadline, and waited as long as such a message may."""
    GRANT_EXPIRED = 80
    """It was granted, and did not come in time: the window was needed for others."""
    DRAINING = 90
    """This HN takes nothing new."""
    DEADLINE_TOO_SHORT = 100
    """Not even an idle HN could transfer, compute and return it in the time left."""
    TOO_LARGE = 110
    """More bytes than one message may have."""

    @property
    def elsewhere(self) -> bool:
        """True where another HN may have a better answer."""
        return self < Reason.DEADLINE_TOO_SHORT


@dataclass(frozen=True, slots=True)
class Ask:
    """May I send a message of `size_bytes` for this model?"""

    request: int
    model: str
    size_bytes: int
    left_s: float | None = None
    """From now until the CN must have the answer; None: no deadline."""
    return_bytes: int = 0
    """Expected size of the answer."""
    priority: int = 0
    """0 (highest) to 255."""
    at_s: float | None = None
    """The CN's clock, whatever its zero: from its course the HN knows how long an ask was on its way, and counts that
    as a part of `left_s`."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """The answer is not wanted any more."""

    request: int


@dataclass(frozen=True, slots=True)
class Sent:
    """The last byte is at the HN."""

    request: int


@dataclass(frozen=True, slots=True)
class Grant:
    """Send it now."""

    request: int
    expires_s: float
    """What has not arrived by then has no place in the window any more."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """Do not send it, or stop sending it."""

    request: int
    reason: Reason
    short_s: float = 0.0
    """By so much it would be late, for reasons that speak of deadlines."""
    retry_after_s: float = 0.0
    """Before that, asking this HN again is of no use; 0: not known."""


@dataclass(frozen=True, slots=True)
class Done:
    """It has arrived whole; its memory may be used again."""

    request: int


ToHn = Ask | Cancel | Sent
ToCn = Grant | Refuse | Done
Message = ToHn | ToCn


_TEXTS = {
    Reason.QUEUE_FULL: "its queue is full",
    Reason.PEER_QUEUE_FULL: "this node has as many asks waiting as one may",
    Reason.DEADLINE_BEHIND_QUEUE: "behind what was accepted before it, it would be late",
    Reason.SHED_FOR_PRIORITY: "it made room for a message of higher priority",
    Reason.SHED_FOR_FAIRNESS: "it made room for a model that has had less than its share",
    Reason.LINK_SLOWED: "the link was slower than expected, and it would be late now",
    Reason.WAITED_TOO_LONG: "it waited as long as a message without a deadline may",
    Reason.GRANT_EXPIRED: "it was granted, and did not arrive in time",
    Reason.DRAINING: "it takes nothing new",
    Reason.DEADLINE_TOO_SHORT: "the time left is too short even when nothing else is sent",
    Reason.TOO_LARGE: "the message is larger than one may be",
}


class Refused(ResourceExhausted):
    """The HN does not want the message (any more). `ResourceExhausted`, which nobody repeats blindly."""

    def __init__(self, refusal: Refuse) -> None:
        short = f", by {refusal.short_s * 1000:.1f} ms" if refusal.short_s else ""
        super().__init__(
            f"the accelerator node refused the message: {_TEXTS[refusal.reason]}{short}", reason=refusal.reason.name
        )
        self.refusal = refusal
