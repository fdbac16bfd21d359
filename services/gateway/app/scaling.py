"""CN and HN processes of models with `serving.scaling`: measured, planned by brain, started and ended one by one."""

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass, field, replace

from recmesh.runtime import telemetry
from recmesh.runtime.clock import Clock
from recmesh.runtime.errors import MeshError
from services.gateway.app.observation import Observation
from services.gateway.app.ports import Fleets
from services.gateway.domain.load import Load
from services.gateway.domain.scaling import Change, Decision, Look, Measured, Own, Phases, ScalingFact, bounded

KEPT = 360
"""Looks at a model: an hour of the default step."""
AGAIN_S = 60.0
"""After a process could not be started."""
ENOUGH = 20
"""Requests for a model that tell which share of them some of its processes get."""

_log = telemetry.get_logger(__name__)
_metrics = telemetry.Metrics("gateway")
_processes = _metrics.gauge("model_processes", "Processes of models with their own, by kind", labels=("model", "kind"))
_busy = _metrics.gauge("model_busy_share", "Mean share of their time in which they compute", labels=("model", "kind"))
_changes = _metrics.counter(
    "model_scalings", "Processes that were started or ended by plan", labels=("model", "kind", "outcome")
)

Planned = Callable[[Measured], Awaitable[Sequence[Decision]]]
"""What brain says."""
Tell = Callable[[ScalingFact, Look, Change | None], Awaitable[None]]


@dataclass(slots=True)
class _Seen:
    """What is remembered of some processes."""

    looks: deque[Look]
    came: Mapping[str, int] = field(default_factory=dict)
    """At the last look, of all versions of the model, also of those that others run."""
    phases: Mapping[str, Phases] = field(default_factory=dict)
    elsewhere: float = 0.0
    at: float = 0.0
    changing: "asyncio.Task[None] | None" = None
    told: tuple[tuple[str, int, int], ...] = ()
    not_before: dict[str, float] = field(default_factory=dict)
    """By kind: a process of it could not be started a moment ago."""


class Scaling:
    """Looks at each scaled model once in `step_s`; a change that lasts longer is not hurried by the next look.

    Versions of a model that are run in several ways have processes apart, of which each are scaled by the requests for
    their own versions.
    """

    name = "scaling"

    def __init__(
        self, fleets: Fleets, observation: Observation, *, planned: Planned, tell: Tell, clock: Clock, step_s: float
    ) -> None:
        self._fleets, self._observation = fleets, observation
        self._planned, self._tell, self._clock, self._step_s = planned, tell, clock, step_s
        self._seen: dict[str, _Seen] = {}
        self.changes: deque[Change] = deque(maxlen=KEPT)
        """What was done, newest last."""

    def looks(self, model: str) -> Sequence[Look]:
        """At one model, oldest first."""
        found = [look for seen in self._seen.values() for look in seen.looks if look.model == model]
        return sorted(found, key=lambda look: look.at)

    @property
    def by_processes(self) -> Mapping[str, Sequence[Look]]:
        """All looks, oldest first, by the key of the processes."""
        return {key: list(seen.looks) for key, seen in self._seen.items() if seen.looks}

    async def start(self) -> None:
        """Nothing runs until a look wants something changed."""

    async def stop(self) -> None:
        """Leave what is under way."""
        tasks = [seen.changing for seen in self._seen.values() if seen.changing is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def look(self) -> float:
        """Measure, ask, begin what is to be changed; answers when to look again."""
        wanted = self._fleets.scaled()
        self._seen = {key: seen for key, seen in self._seen.items() if key in wanted or _is_changing(seen)}
        models = Counter(own.model for own in wanted.values())
        loads: dict[str, Mapping[str, Load]] = {}
        for key, own in wanted.items():
            try:
                loads[key] = await self._look(key, own if models[own.model] > 1 else replace(own, way=""))
            except MeshError as error:           # unloaded a moment ago, say; the others are looked at all the same
                _log.warning("processes of %s cannot be looked at: %s", own.model, error)
        for model in models:
            _show(model, [found for key, found in loads.items() if wanted[key].model == model])
        return self._step_s

    async def _look(self, key: str, own: Own) -> Mapping[str, Load]:
        seen = self._seen.setdefault(key, _Seen(deque(maxlen=KEPT)))
        loads = await self._fleets.measured(key)
        spent = self._spent(own, seen)
        measured = self._measured(key, own, seen, loads, latency_s=spent.means["infer"])
        if measured is None:
            return loads                         # from here on there is something to compare with
        look = Look(
            self._clock.now(), own.model, measured.window_s, measured.arrivals_per_s, spent.means, dict(loads),
            own.rules.dry_run, way=own.way,
        )  # fmt: skip
        try:
            decisions = await self._planned(measured)
            look = replace(look, decisions=tuple(bounded(each, own.rules) for each in decisions))
        except MeshError as error:
            look = replace(look, trouble=f"nothing is changed, brain has no plan: {error.message}")
        seen.looks.append(look)
        await self._say("measured", look, None)
        wishes = look.wishes
        if wishes != seen.told and wishes:
            await self._say("scaling_decided", look, None)
        seen.told = wishes
        if wishes and not own.rules.dry_run and not _is_changing(seen):
            seen.changing = asyncio.create_task(
                self._carry_out(key, seen, look), name=f"scale {key}", context=Context()
            )
        return loads

    def _measured(
        self, key: str, own: Own, seen: _Seen, loads: Mapping[str, Load], *, latency_s: float
    ) -> Measured | None:
        """What came since the last look; None at the first one."""
        now, came = self._clock.monotonic(), self._observation.came_of(own.model)
        new = {version: count - seen.came.get(version, 0) for version, count in came.items()}
        here, everywhere = sum(new.get(version, 0) for version in own.versions), sum(new.values())
        window_s, first = now - seen.at, not seen.at
        seen.at, seen.came = now, came
        if first or window_s <= 0:
            return None
        if everywhere >= ENOUGH:                 # of fewer it would be chance
            seen.elsewhere = 1 - here / everywhere
        return Measured(key, own.model, own.rules, loads, here / window_s, window_s, seen.elsewhere, latency_s)

    def _spent(self, own: Own, seen: _Seen) -> Phases:
        """By requests for their versions since the last look."""
        before, seen.phases = seen.phases, self._observation.phases(own.model)
        mine = own.versions & seen.phases.keys()
        return sum((seen.phases[each].since(before.get(each, Phases())) for each in mine), Phases())

    async def _carry_out(self, key: str, seen: _Seen, look: Look) -> None:
        """One process after another, each warm before the next. What stops one kind does not stop the other."""
        for decision in look.decisions:
            if self._clock.monotonic() < seen.not_before.get(decision.kind, 0.0):
                continue
            count = look.loads[decision.kind].replicas
            while count != decision.replicas:
                after = count + (1 if decision.replicas > count else -1)
                began, trouble = self._clock.monotonic(), ""
                try:
                    move = self._fleets.grow if after > count else self._fleets.shrink
                    await move(key, decision.kind)
                except MeshError as error:
                    trouble = error.message
                took_s = self._clock.monotonic() - began
                change = Change(
                    self._clock.now(), look.model, decision.kind, count, count if trouble else after,
                    decision.reason, decision.why, took_s, trouble, look.way,
                )  # fmt: skip
                self.changes.append(change)
                _changes.labels(look.model, decision.kind, "failed" if trouble else "done").inc()
                await self._say("scaled", look, change)
                if trouble:
                    _log.warning("%s of %s: %s stay: %s", decision.kind.upper(), look.model, count, trouble)
                    seen.not_before[decision.kind] = self._clock.monotonic() + AGAIN_S
                    break
                count = after

    async def _say(self, fact: ScalingFact, look: Look, change: Change | None) -> None:
        try:
            await self._tell(fact, look, change)
        except MeshError as error:
            _log.warning("model.%s of %s cannot be told: %s", fact, look.model, error)


def _is_changing(seen: _Seen) -> bool:
    return seen.changing is not None and not seen.changing.done()


def _show(model: str, found: Sequence[Mapping[str, Load]]) -> None:
    for kind in sorted({kind for loads in found for kind in loads}):
        of_kind = [loads[kind] for loads in found if kind in loads]
        count = sum(load.replicas for load in of_kind)
        _processes.labels(model, kind).set(count)
        _busy.labels(model, kind).set(sum(load.busy * load.replicas for load in of_kind) / max(1, count))
