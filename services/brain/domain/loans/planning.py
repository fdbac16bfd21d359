"""How many units are to be lent and returned now, by what serving is forecast to need.

A unit that is asked for now helps after a lead: its worker drains, the pod of the HN starts, the model loads. Only
so many drain at a time (the drain budget), so that a large need is begun for as much earlier as it takes rounds. A unit
goes back when it is not needed for at least as long as a way there and back takes; units are alike, and the one that is
due first goes first. Where a forecast proves wrong serving keeps what it uses, and the loan is late: its due time
was a promise, and the ledger says so.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from services.brain.domain.loans.ledger import Cause, Loan, State, sums


@dataclass(frozen=True, slots=True)
class Rules:
    """Of one pool."""

    own: int
    """Units that serving always has."""
    most: int
    """Units that may be lent at a time."""
    most_draining: int = 4
    """The drain budget: units that lenders give up at a time, and as many that serving gives back."""
    drain_s: float = 60.0
    """Until a worker has left, by experience or at most."""
    start_s: float = 60.0
    """Until an HN in that room takes requests: pod, and model."""
    return_s: float = 60.0
    """Until serving has left a unit."""
    hold_s: float = 300.0
    """A unit that is needed again within so long is kept."""
    notice_s: float = 300.0
    """A loan may be renewed until so long before it must be on its way back."""
    slack_s: float = 900.0
    """Promised beyond the forecast's end: forecasts of when a peak ends are off by minutes."""

    @property
    def lead_s(self) -> float:
        """From asking for a unit until it helps."""
        return self.drain_s + self.start_s

    @property
    def round_trip_s(self) -> float:
        """What is needed again sooner is not worth giving back."""
        return max(self.hold_s, self.lead_s + self.return_s)


@dataclass(frozen=True, slots=True)
class Outlook:
    """Units that serving needs, as is known now."""

    needs: Sequence[int]
    """In each step from now on, by the forecast at the pool's quantile."""
    step_s: float
    measured: int = 0
    """By what comes now."""
    is_known: bool = True
    """False: what some of serving needs cannot be told, and is taken to be what it has."""

    def most_until(self, ahead_s: float) -> int:
        """The largest need until then."""
        steps = max(1, math.floor(ahead_s / self.step_s) + 1)
        return max([self.measured, *self.needs[:steps]])

    def last_above(self, units: int) -> float:
        """Seconds from now until more than `units` are not needed any more; 0: they are not needed at all."""
        above = [step for step, need in enumerate(self.needs) if need > units]
        if above:
            return (above[-1] + 1) * self.step_s
        return self.step_s if self.measured > units else 0.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is to be done now."""

    lend: int
    """Units to ask of lenders."""
    dues: tuple[float, ...]
    """Of those, each."""
    cause: Cause
    give_back: tuple[str, ...]
    """Loans that serving leaves now."""
    cancel: tuple[str, ...]
    """Loans of which no lender has heard, and which nobody needs any more."""
    renew: tuple[tuple[str, float], ...]
    """Loans that are needed longer, and until when."""
    why: str


def decide(loans: Sequence[Loan], outlook: Outlook, rules: Rules, *, available: int, now: float) -> Verdict:
    """available: units that lenders could give now besides those of `loans`, which are the open ones."""
    has = sums(loans, now)
    # 1. What must be begun now, so that it is there in time.
    wanted, cause, why = _wanted(has.committed, outlook, rules)
    room = min(max(0, rules.most_draining - has.coming), max(0, rules.most - has.opened), max(0, available))
    lend = min(room, max(0, wanted - rules.own - has.committed))
    dues = tuple(
        now + outlook.last_above(rules.own + has.committed + place) + rules.lead_s + rules.return_s + rules.slack_s
        for place in range(lend)
    )
    # 2. What nobody needs for longer than a way there and back.
    needed = max(wanted, outlook.most_until(rules.round_trip_s)) - rules.own
    planned = [loan for loan in loans if loan.state is State.PLANNED]
    lent = sorted((loan for loan in loans if loan.state is State.LENT), key=lambda loan: (loan.due, loan.loan_id))
    spare = max(0, has.committed + lend - max(0, needed)) if not lend else 0
    cancel = tuple(loan.loan_id for loan in planned[len(planned) - min(spare, len(planned)) :])
    returns = min(spare - len(cancel), max(0, rules.most_draining - has.returning))
    give_back = tuple(loan.loan_id for loan in lent[: max(0, returns)])
    if not outlook.is_known:      # nothing is known that would break the promise
        give_back = tuple(loan.loan_id for loan in lent if now >= loan.due - rules.return_s)[: rules.most_draining]
    # 3. What stays longer than was promised.
    going = {*cancel, *give_back}
    staying = [loan for loan in loans if loan.loan_id not in going and loan.state is not State.RETURNING]
    return Verdict(lend, dues, cause, give_back, cancel, _renewals(staying, outlook, rules, now), why)


def _wanted(committed: int, outlook: Outlook, rules: Rules) -> tuple[int, Cause, str]:
    """Units that serving must have after the lead, and why."""
    most = rules.own + rules.most
    best, at_s = 0, 0.0
    for step, need in enumerate(outlook.needs):
        lacking = min(need, most) - rules.own - committed
        rounds = max(1, math.ceil(lacking / rules.most_draining)) if lacking > 0 else 1
        begin_s = step * outlook.step_s - rules.start_s - rounds * rules.drain_s
        if begin_s <= outlook.step_s and need > best:
            best, at_s = need, step * outlook.step_s
    now_needed = min(outlook.measured, most)
    if not outlook.is_known and rules.own + committed >= max(best, now_needed):
        return max(best, now_needed), Cause.FORECAST, "what serving needs is not known yet: loans go back when due"
    if now_needed > max(best, rules.own + committed):
        return now_needed, Cause.MEASURED, f"{outlook.measured} units are needed now, {best} were forecast"
    wanted = max(min(best, most), now_needed)
    return wanted, Cause.FORECAST, f"{best} units are forecast to be needed in {at_s:,.0f} s"


def _renewals(loans: Sequence[Loan], outlook: Outlook, rules: Rules, now: float) -> tuple[tuple[str, float], ...]:
    """Those that are due last serve the longest need. What is needed longer than is left is renewed for as long as it
    is forecast to be needed, while there is time for a notice."""
    found = []
    ranked = sorted(loans, key=lambda loan: (-loan.due, loan.loan_id))
    for place, loan in enumerate(ranked):
        until = now + outlook.last_above(rules.own + place) + rules.return_s
        in_time = now <= loan.due - rules.return_s - rules.notice_s
        soon = now >= loan.due - rules.return_s - rules.notice_s - rules.slack_s
        longer = max(until, loan.due) + rules.slack_s
        if in_time and soon and until > loan.due - rules.notice_s and longer > loan.due:
            found.append((loan.loan_id, longer))
    return tuple(found)
