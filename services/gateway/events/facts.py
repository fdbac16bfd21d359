"""What gateway tells: model facts, and request rates."""

from collections.abc import Mapping, Sequence
from typing import Any

from recmesh.runtime.bus import Bus
from recmesh.runtime.events import Event, serving
from recmesh.runtime.events.rates import rates_events
from services.gateway.app.ports import Fact
from services.gateway.domain.models import ModelVersion
from services.gateway.domain.scaling import Change, Look, ScalingFact


class Facts:
    """Publishes; the use cases get its methods."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def model(self, fact: Fact, record: ModelVersion) -> None:
        """`model.<fact>`"""
        await self._bus.publish(_model_event(fact, record))

    async def scaling(self, fact: ScalingFact, look: Look, change: Change | None) -> None:
        """`model.measured`, `model.scaling_decided`, `model.scaled`."""
        await self._bus.publish(_scaling_event(fact, look, change))

    async def rates(self, step_s: float, rates: Mapping[str, Sequence[tuple[float, float]]]) -> None:
        """`rates.observed`, as few as will do."""
        for event in rates_events("gateway", step_s, rates):
            await self._bus.publish(event)


def _scaling_event(fact: ScalingFact, look: Look, change: Change | None) -> Event[Any]:
    match fact:
        case "measured":
            kinds = {
                kind: serving.ProcessLoad(
                    replicas=load.replicas, busy=load.busy, answered_per_s=load.answered_per_s, waiting=load.waiting
                )
                for kind, load in look.loads.items()
            }
            measured = serving.ModelMeasured(
                name=look.model, window_s=look.window_s, arrivals_per_s=look.arrivals_per_s, phases_s=dict(look.phases),
                kinds=kinds, way=look.way,
            )  # fmt: skip
            return Event(serving.MODEL_MEASURED, look.model, measured)
        case "scaling_decided":
            wishes = {kind for kind, _, _ in look.wishes}
            chosen = [
                serving.ScalingDecision(
                    kind=each.kind, before=look.loads[each.kind].replicas, after=each.replicas, reason=each.reason,
                    why=each.why, demand_per_s=each.demand_per_s, capacity_per_s=each.capacity_per_s,
                )
                for each in look.decisions if each.kind in wishes
            ]  # fmt: skip
            decided = serving.ModelScalingDecided(name=look.model, decisions=chosen, dry_run=look.dry_run, way=look.way)
            return Event(serving.MODEL_SCALING_DECIDED, look.model, decided)
        case "scaled":
            assert change is not None, "told of a change"
            scaled = serving.ModelScaled(
                name=look.model, kind=change.kind, before=change.before, after=change.after, reason=change.reason,
                took_s=change.took_s, trouble=change.trouble, way=look.way,
            )  # fmt: skip
            return Event(serving.MODEL_SCALED, look.model, scaled)


def _model_event(fact: Fact, record: ModelVersion) -> Event[Any]:
    name, version = record.name, record.version
    match fact:
        case "registered":
            registered = serving.ModelRegistered(
                name=name, version=version, uri=record.uri, framework=record.framework, job_id=record.job_id
            )
            return Event(serving.MODEL_REGISTERED, name, registered)
        case "ready":
            return Event(serving.MODEL_READY, name, serving.ModelReady(name=name, version=version))
        case "failed":
            failed = serving.ModelFailed(name=name, version=version, reason=record.reason)
            return Event(serving.MODEL_FAILED, name, failed)
        case "unloaded":
            unloaded = serving.ModelUnloaded(name=name, version=version, reason=record.reason)
            return Event(serving.MODEL_UNLOADED, name, unloaded)
