"""What gateway tells: model facts, and request rates."""

from collections.abc import Mapping, Sequence
from typing import Any

from recmesh.runtime.bus import Bus
from recmesh.runtime.events import Event, catalog
from recmesh.runtime.events.rates import rates_events
from services.gateway.app.ports import Fact
from services.gateway.domain.models import ModelVersion


class Facts:
    """Publishes; the use cases get its methods."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def model(self, fact: Fact, record: ModelVersion) -> None:
        """`model.<fact>`"""
        await self._bus.publish(_model_event(fact, record))

    async def rates(self, step_s: float, rates: Mapping[str, Sequence[tuple[float, float]]]) -> None:
        """`rates.observed`, as few as will do."""
        for event in rates_events("gateway", step_s, rates):
            await self._bus.publish(event)


def _model_event(fact: Fact, record: ModelVersion) -> Event[Any]:
    name, version = record.name, record.version
    match fact:
        case "registered":
            registered = catalog.ModelRegistered(
                name=name, version=version, uri=record.uri, framework=record.framework, job_id=record.job_id
            )
            return Event(catalog.MODEL_REGISTERED, name, registered)
        case "ready":
            return Event(catalog.MODEL_READY, name, catalog.ModelReady(name=name, version=version))
        case "failed":
            failed = catalog.ModelFailed(name=name, version=version, reason=record.reason)
            return Event(catalog.MODEL_FAILED, name, failed)
        case "unloaded":
            unloaded = catalog.ModelUnloaded(name=name, version=version, reason=record.reason)
            return Event(catalog.MODEL_UNLOADED, name, unloaded)
