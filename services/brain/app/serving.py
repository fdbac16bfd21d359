"""Processes of served models: gateways ask every few seconds, and are told how many of each kind there should be."""

import math
from collections import deque
from dataclasses import dataclass, field

from recmesh.runtime.clock import Clock
from recmesh.runtime.errors import InvalidArgument, MeshError, Violation
from recmesh.runtime.telemetry import Metrics
from services.brain.app.lending import KIND, Lending
from services.brain.domain import serving
from services.brain.domain.loans.pool import Served
from services.brain.domain.serving import Coming, Decision, Kind, Look, Need, Reason, Service, ServingAsk, changed
from services.brain.peers import Forecaster

MAX_MODELS = 10_000
"""That are remembered; those that asked longest ago go."""
MAX_LOOKS = 10_000
MOST_STEPS = 240
KEPT = 100
AGAIN_S = 600.0
"""After so long the same is told anew."""

_metrics = Metrics("brain")
_decisions = _metrics.counter(
    "serving_decisions", "Looks at served models, by kind of process and reason", labels=["kind", "reason"]
)


@dataclass(slots=True)
class _Seen:
    """Of one kind of a model's processes."""

    service: Service = field(default_factory=Service)
    looks: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=MAX_LOOKS))


class Serving:
    """What a request takes, and what was needed lately, is kept in memory: after a restart it is learned again, and
    nothing is taken away for as long as the model's `hold_s`."""

    def __init__(self, forecaster: Forecaster, lending: Lending | None = None, *, clock: Clock) -> None:
        """lending: who knows of how much room serving has; None: there is enough."""
        self._forecaster, self._lending, self._clock = forecaster, lending, clock
        self._seen: dict[tuple[str, str], dict[str, _Seen]] = {}
        self._told: dict[tuple[str, str], Look] = {}
        """The last of `looks` of each of `_seen`."""
        self.looks: deque[Look] = deque(maxlen=KEPT)
        """Those that changed a number, newest last."""

    async def plan(self, ask: ServingAsk) -> Look:
        """How many processes of each kind. InvalidArgument names what is wrong."""
        _check(ask)
        now = self._clock.now()
        coming = await self._coming(ask, now)
        seen = self._seen.pop((ask.asker, ask.model), None) or {}
        self._seen[ask.asker, ask.model] = seen
        while len(self._seen) > MAX_MODELS:
            gone = next(iter(self._seen))
            del self._seen[gone]
            self._told.pop(gone, None)
        chosen = [self._decided(ask, kind, seen.setdefault(kind.name, _Seen()), coming, now) for kind in ask.kinds]
        look = Look(now, ask.model, ask.arrivals_per_s, ask.kinds, chosen, ask.dry_run)
        if changed(look) and not self._is_told(ask, look):
            self.looks.append(look)
            self._told[ask.asker, ask.model] = look
        return look

    def _is_told(self, ask: ServingAsk, look: Look) -> bool:
        """A change takes longer than a look, and a dry run wants the same again and again."""
        last = self._told.get((ask.asker, ask.model))
        return last is not None and _steps(last) == _steps(look) and look.at - last.at < AGAIN_S

    def _decided(self, ask: ServingAsk, kind: Kind, seen: _Seen, coming: Coming, now: float) -> Decision:
        seen.service.saw(kind, ask.window_s)
        need = serving.needed(kind, seen.service.seconds, ask.arrivals_per_s, coming, ask.rules)
        seen.looks.append((now, need.to_shrink))
        while len(seen.looks) > 1 and seen.looks[1][0] <= now - ask.rules.hold_s:
            seen.looks.popleft()
        decision = serving.decide(kind, need, list(seen.looks), now=now, rules=ask.rules)
        if self._lending is not None and not ask.dry_run:
            if kind.name == KIND:
                self._lending.saw(ask.asker, ask.model, _told(ask, kind, need, decision, coming, now))
            decision = self._lending.bounded(ask.asker, ask.model, kind, decision)
        _decisions.labels(kind.name, decision.reason).inc()
        return decision

    async def _coming(self, ask: ServingAsk, now: float) -> Coming:
        if not ask.series:
            return Coming((), ask.step_s, "no series is named")
        shrinking_s = max(kind.start_s for kind in ask.kinds) + max(ask.rules.hold_s, ask.step_s)
        ahead_s = max(shrinking_s, *((kind.most - kind.replicas) * kind.start_s + ask.step_s for kind in ask.kinds))
        ahead_s = max(ahead_s, self._lending.horizon_s if self._lending is not None else 0.0)
        steps = min(MOST_STEPS, max(2, math.ceil(ahead_s / ask.step_s)))
        step_s = ask.step_s * math.ceil(ahead_s / (steps * ask.step_s)) if steps == MOST_STEPS else ask.step_s
        level = max(0.5, 2 * ask.rules.quantile - 1)     # the upper end of an interval is the quantile (1 + level) / 2
        try:
            mean, high, model = await self._forecaster.forecast(
                ask.series, steps=steps, step_s=step_s, now=now, level=level
            )
        except MeshError as error:
            return Coming((), ask.step_s, error.message)
        rates = high if ask.rules.quantile > 0.5 else mean
        return Coming([max(0.0, float(value)) * (1 - ask.elsewhere) for value in rates], step_s, model)


def _told(
    ask: ServingAsk, kind: Kind, need: Need, decision: Decision, coming: Coming, now: float
) -> Served:
    """What loans are planned by: as many as are there where it is not known what a request takes, and some come."""
    one = need.capacity_per_s
    if one <= 0 and not ask.arrivals_per_s and max(coming.demand, default=0.0) < 1 / ask.window_s:
        one = math.inf
    measured = serving.units(kind, ask.arrivals_per_s, one) if one > 0 else kind.replicas
    if need.reason is Reason.SATURATED:         # the decision's may be that the model may have no more
        measured = max(measured, decision.replicas)
    needs = tuple(serving.units(kind, demand, one) for demand in coming.demand) if one > 0 else ()
    return Served(
        now, kind.replicas, needs, coming.step_s, measured, ask.latency_s, ask.node, ask.window_s, is_known=one > 0,
        pods=ask.pods,
    )  # fmt: skip


def _steps(look: Look) -> list[tuple[str, int, int]]:
    return [(kind.name, kind.replicas, one.replicas) for kind, one in changed(look)]


def _check(ask: ServingAsk) -> None:
    wrong = [
        Violation(name, f"{value} is not above 0")
        for name, value in (("step_s", ask.step_s), ("window_s", ask.window_s), ("rules.target", ask.rules.target))
        if not 0 < value < math.inf
    ]
    if not ask.model:
        wrong.append(Violation("model", "is missing"))
    if not ask.kinds:
        wrong.append(Violation("kinds", "are missing"))
    if not 0 <= ask.arrivals_per_s < math.inf:
        wrong.append(Violation("arrivals_per_s", f"{ask.arrivals_per_s} is not a number from 0 up"))
    if not 0 <= ask.latency_s < math.inf:
        wrong.append(Violation("latency_s", f"{ask.latency_s} is not a number from 0 up"))
    if not 0 <= ask.elsewhere <= 1:
        wrong.append(Violation("elsewhere", f"{ask.elsewhere} is not from 0 to 1"))
    if not 0.5 <= ask.rules.quantile < 1:
        wrong.append(Violation("rules.quantile", f"{ask.rules.quantile} is not from 0.5 to below 1"))
    if not 0 <= ask.rules.hold_s < math.inf:
        wrong.append(Violation("rules.hold_s", f"{ask.rules.hold_s} is not a number from 0 up"))
    for kind in ask.kinds:
        if kind.replicas < 1 or not 1 <= kind.least <= kind.most:
            wrong.append(Violation(f"kinds.{kind.name}", "replicas, min or max are below 1, or min is above max"))
        numbers = (kind.busy, kind.answered_per_s, kind.waiting, kind.start_s)
        if any(not 0 <= number < math.inf for number in numbers) or kind.busy > 1:
            wrong.append(Violation(f"kinds.{kind.name}", "a measurement is not a number from 0 up, or busy is above 1"))
    if wrong:
        raise InvalidArgument("cannot plan the model's processes", reason="BAD_ASK", violations=wrong)
