"""One fleet, minute by minute: requests come, units are lent and returned, training has the rest.

The rule that lends sees what came until now and forecasts that were made before; how long a drain, a start and a return
take it does not know, only what they take as a rule.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from recmesh.plugins.planning import Floats
from services.brain.domain.loans.ledger import Loan, State
from services.brain.domain.loans.planning import Outlook, Rules, Verdict, decide
from services.brain.simulator.online.forecasts import Forecasts

MINUTE_S = 60.0


@dataclass(frozen=True, slots=True)
class World:
    """What is so, whoever lends."""

    per_unit: float
    """Requests per minute that one unit answers, working all the time."""
    target: float = 0.7
    """Share of it that is planned with."""
    in_time: float = 0.9
    """Share of it beyond which requests wait for too long."""
    resize_s: float = 1.0
    """Of all training that one more or one less costs its lender: slots move while it trains (`bench resize`)."""
    slow_share: float = 0.03
    """Of drains, starts and returns that take `slow_times` as long."""
    slow_times: float = 4.0

    def needs(self, rates: Floats) -> Floats:
        """Units for so many requests per minute, at the target."""
        made: Floats = np.maximum(1.0, np.ceil(rates / (self.per_unit * self.target) - 1e-9))
        return made


class Rule(Protocol):
    """Who lends: sees minute `now`, and what came until then (the minute before is the last)."""

    def __call__(self, loans: Sequence[Loan], now_min: int, came: float) -> Verdict:
        """came: requests in the last minute."""


@dataclass(slots=True)
class Outcome:
    """Of some days."""

    held: list[int] = field(default_factory=list)
    """Units that training did not have, by minute, own ones of serving included."""
    serving: list[int] = field(default_factory=list)
    """Units that answered, by minute."""
    requests: float = 0.0
    violated: float = 0.0
    late: int = 0
    """Back after their due time, or not back at the end though it is over."""
    loans: int = 0
    renewals: int = 0
    changes: int = 0
    """Of lenders: one more or one less."""


def simulated(
    rates: Floats, rule: Rule, rules: Rules, world: World, rng: np.random.Generator, *, first: int, last: int
) -> Outcome:
    """From minute `first` up to `last` of the series."""
    made, fleet, backlog = Outcome(), Fleet(rules, world, rng), 0.0
    for minute in range(first, last):
        now = minute * MINUTE_S
        fleet.advance(now)
        fleet.carry_out(rule(fleet.open, minute, float(rates[minute - 1])), now)
        serving = rules.own + fleet.serving(now)
        capacity = serving * world.per_unit
        came = float(rates[minute])
        made.requests += came
        made.violated += min(came, max(0.0, backlog + came - world.in_time * capacity))
        backlog = max(0.0, backlog + came - capacity)
        made.serving.append(serving)
        made.held.append(rules.own + fleet.held)
    fleet.advance(math.inf)
    overdue = sum(loan.is_late(last * MINUTE_S) for loan in fleet.open)
    made.loans, made.late = fleet.count, fleet.late + overdue
    made.renewals, made.changes = fleet.renewals, fleet.changes
    return made


class Fleet:
    """Carries decisions out: each step takes its time."""

    def __init__(self, rules: Rules, world: World, rng: np.random.Generator) -> None:
        self._rules, self._world, self._rng = rules, world, rng
        self._loans: dict[str, Loan] = {}
        self._ready: dict[str, float] = {}
        """By loan: when its present step is over."""
        self._useful: dict[str, float] = {}
        """By loan: when its HN takes requests."""
        self.count = self.late = self.renewals = self.changes = 0

    @property
    def open(self) -> list[Loan]:
        """All that is not back."""
        return list(self._loans.values())

    @property
    def held(self) -> int:
        """Units that training has not."""
        return sum(loan.state is not State.PLANNED for loan in self._loans.values())

    def serving(self, now: float) -> int:
        """Lent units whose HN takes requests."""
        return sum(
            loan.state is State.LENT and self._useful[name] <= now for name, loan in self._loans.items()
        )

    def carry_out(self, verdict: Verdict, now: float) -> None:
        """What was decided begins."""
        for due in verdict.dues:
            self.count += 1
            self.changes += 1
            name = str(self.count)
            self._loans[name] = Loan(name, "training", due, now).moved(State.DRAINING, now)
            self._ready[name] = now + self._takes(self._rules.drain_s)
        for name in verdict.give_back:
            self._loans[name] = self._loans[name].moved(State.RETURNING, now)
            self._ready[name] = now + self._takes(self._rules.return_s)
        for name, due in verdict.renew:
            self._loans[name] = self._loans[name].renewed(due)
            self.renewals += 1

    def advance(self, now: float) -> None:
        """What is over by now."""
        for name, loan in list(self._loans.items()):
            at = self._ready.get(name, math.inf)
            if at > now:
                continue
            if loan.state is State.DRAINING:
                self._loans[name] = loan.moved(State.LENT, at)
                self._useful[name] = at + self._takes(self._rules.start_s)
                self._ready.pop(name)
            elif loan.state is State.RETURNING:
                back = loan.moved(State.RETURNED, at)
                self.late += back.is_late(at)
                self.changes += 1
                del self._loans[name], self._ready[name]

    def _takes(self, as_a_rule_s: float) -> float:
        """Mostly less than what is planned with, rarely far more."""
        slow = self._world.slow_times if self._rng.random() < self._world.slow_share else 1.0
        return as_a_rule_s * float(self._rng.uniform(0.5, 1.0)) * slow


@dataclass(frozen=True, slots=True)
class ByForecast:
    """brain's planner."""

    forecasts: Forecasts
    step_min: int
    """Of the forecasts."""
    rules: Rules
    world: World

    def __call__(self, loans: Sequence[Loan], now_min: int, came: float) -> Verdict:
        """See `Rule`."""
        made = self.forecasts.at(now_min // self.step_min)
        per_minute = np.repeat(made.upper, self.step_min)[now_min % self.step_min :]
        outlook = Outlook(
            self.world.needs(per_minute).astype(int).tolist(), MINUTE_S,
            measured=int(self.world.needs(np.array([came]))[0]),
        )  # fmt: skip
        return decide(loans, outlook, self.rules, available=self.rules.most, now=now_min * MINUTE_S)


@dataclass(frozen=True, slots=True)
class Reactive:
    """What comes now is all it knows; its loans are for the time that it holds one at least, renewed while it lasts."""

    rules: Rules
    world: World

    def __call__(self, loans: Sequence[Loan], now_min: int, came: float) -> Verdict:
        """See `Rule`."""
        need = int(self.world.needs(np.array([came]))[0])
        steps = math.ceil((self.rules.hold_s + self.rules.lead_s) / MINUTE_S) + 1
        outlook = Outlook([need] * steps, MINUTE_S, measured=need)
        return decide(loans, outlook, self.rules, available=self.rules.most, now=now_min * MINUTE_S)


@dataclass(frozen=True, slots=True)
class Hindsight:
    """Knows what comes, and nothing else better: leads and returns cost it what they cost others as a rule."""

    rates: Floats
    rules: Rules
    world: World

    def held(self, first: int, last: int) -> Floats:
        """Units that training must do without, by minute: what is needed from a return ago until a lead from now."""
        needs = np.maximum(self.world.needs(self.rates), self.rules.own)
        before = math.ceil(self.rules.return_s / MINUTE_S)
        after = math.ceil(self.rules.lead_s / MINUTE_S)
        windows = np.stack(
            [needs[np.clip(np.arange(first, last) + shift, 0, len(needs) - 1)] for shift in range(-before, after + 1)]
        )
        made: Floats = windows.max(axis=0)
        return made


def fixed(rules: Rules, *, units: int) -> Rules:
    """Serving has so many for itself, and nothing is lent."""
    return replace(rules, own=units, most=0)
