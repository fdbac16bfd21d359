"""The ledger of loans: each is one unit, on one way at a time. The table of its states is the only one there is."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType


class State(StrEnum):
    """Of a loan."""

    PLANNED = "planned"
    """Its lender has not heard of it yet."""
    DRAINING = "draining"
    """Its lender gives the room up: workers finish their batch and leave."""
    LENT = "lent"
    """Serving may use it."""
    RETURNING = "returning"
    """Serving gives it up."""
    RETURNED = "returned"
    """Its lender may have it again."""
    CANCELLED = "cancelled"
    """It came to nothing: nobody needs it any more, or its lender could not give it."""


NEXT: Mapping[State, frozenset[State]] = MappingProxyType(
    {
        State.PLANNED: frozenset({State.DRAINING, State.CANCELLED}),
        State.DRAINING: frozenset({State.LENT, State.RETURNED, State.CANCELLED}),
        State.LENT: frozenset({State.RETURNING, State.RETURNED}),
        State.RETURNING: frozenset({State.RETURNED}),
        State.RETURNED: frozenset(),
        State.CANCELLED: frozenset(),
    }
)
OPEN = frozenset({State.PLANNED, State.DRAINING, State.LENT, State.RETURNING})
"""What its lender does without, or soon will."""
COMING = frozenset({State.PLANNED, State.DRAINING})
HELD = frozenset({State.DRAINING, State.LENT, State.RETURNING})
"""What training has not."""


class Cause(StrEnum):
    """Why something is lent."""

    FORECAST = "FORECAST"
    """Serving is forecast to need more than its own."""
    MEASURED = "MEASURED"
    """More comes than was forecast, and at once."""
    INTERFERENCE = "INTERFERENCE"
    """Offline work slows online requests on its node."""


@dataclass(frozen=True, slots=True)
class Loan:
    """One unit."""

    loan_id: str
    lender: str
    """The job."""
    due: float
    """Promised to be back by then; renewed while there is time for a notice. 0: nothing is promised."""
    planned: float
    state: State = State.PLANNED
    cause: Cause = Cause.FORECAST
    why: str = ""
    since: float = 0.0
    """In this state."""
    lent: float = 0.0
    """When serving could use it first; 0: not yet."""
    ended: float = 0.0
    renewals: int = 0
    node: str = ""
    """From which the work had to go; empty: from any."""
    released: bool = False
    """Its lender is gone: the room goes back to whoever needs it."""

    @property
    def is_open(self) -> bool:
        """True until it is returned or cancelled."""
        return self.state in OPEN

    def is_late(self, now: float) -> bool:
        """Back after its due time, or not back though that is over."""
        over = self.ended if self.ended else now
        return self.state is not State.CANCELLED and 0 < self.due < over

    def moved(self, state: State, now: float) -> "Loan":
        """In its next state. ValueError where the table has no such step."""
        if state not in NEXT[self.state]:
            raise ValueError(f"loan {self.loan_id} is {self.state}, and cannot be {state} next")
        return replace(
            self, state=state, since=now, lent=now if state is State.LENT else self.lent,
            ended=0.0 if state in OPEN else now,
        )  # fmt: skip

    def without_lender(self, now: float) -> "Loan":
        """Its lender has ended or rests: what it was giving up is free, what it had not heard of never comes."""
        if self.state is State.PLANNED:
            return self.moved(State.CANCELLED, now)
        freed = self.moved(State.LENT, now) if self.state is State.DRAINING else self
        return replace(freed, released=True)

    def renewed(self, due: float) -> "Loan":
        """Due later. ValueError where it is not open or that is no later time."""
        if not self.is_open or due <= self.due:
            raise ValueError(f"loan {self.loan_id} is {self.state}, due at {self.due}: it cannot be due at {due}")
        return replace(self, due=due, renewals=self.renewals + 1)


@dataclass(frozen=True, slots=True)
class Sums:
    """Of a ledger at one moment."""

    coming: int = 0
    """Planned and draining."""
    lent: int = 0
    returning: int = 0
    returned: int = 0
    cancelled: int = 0
    late: int = 0

    @property
    def committed(self) -> int:
        """What serving has, or soon will, and does not give up."""
        return self.coming + self.lent

    @property
    def opened(self) -> int:
        """All that is not back."""
        return self.committed + self.returning


def sums(loans: Iterable[Loan], now: float) -> Sums:
    """Each loan is in one of them; those that are late are counted besides."""
    count = dict.fromkeys(State, 0)
    late = 0
    for loan in loans:
        count[loan.state] += 1
        late += loan.is_late(now)
    return Sums(
        count[State.PLANNED] + count[State.DRAINING], count[State.LENT], count[State.RETURNING],
        count[State.RETURNED], count[State.CANCELLED], late,
    )  # fmt: skip
