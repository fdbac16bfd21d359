"""The bus's way into the registry: the command `model.register` registers a model, exactly as a call does."""

import hashlib

from recmesh.runtime.bus import Bus
from recmesh.runtime.errors import CallerError, InvalidArgument, MeshError, ResourceExhausted
from recmesh.runtime.events import Event, serving
from recmesh.runtime.lifecycle import Component
from services.gateway.app.audit import Audit, outcome_of
from services.gateway.app.models import Models
from services.gateway.domain.audit import Act, Entry
from services.gateway.domain.models import Registration

MAX_DELIVER = 20


class RegisterCommands:
    """Handles `model.register`. Delivered again, it registers nothing new."""

    def __init__(self, models: Models, audit: Audit) -> None:
        self._models = models
        self._audit = audit

    async def handle(self, event: Event[serving.ModelRegister]) -> None:
        """InvalidArgument sends what is refused to the dead letters at once, with the reasons.

        What may be otherwise soon comes again (`MAX_DELIVER` times): a folder that is still written or copied, too much
        at once, a registry that is away.
        """
        told = event.data
        try:
            await self._models.register(Registration(
                told.name, told.version, told.uri, told.framework, metrics=dict(told.metrics),
                request_id=told.request_id or f"{event.source}/{event.id}", load=told.load, serving=dict(told.serving),
            ))
        except ResourceExhausted:
            raise
        except CallerError as error:
            if error.reason == "NO_MODEL_FOLDER":
                raise
            await self._tell(event, error)
            raise InvalidArgument(error.message, reason=error.reason, violations=error.violations) from error
        await self._tell(event)

    async def _tell(self, event: Event[serving.ModelRegister], error: MeshError | None = None) -> None:
        """Whoever may publish on the bus may name any source: the actor is who the sender says that it is."""
        origin = f"{event.source}/{event.id}"
        await self._audit.record(
            Entry(
                Act("register", "model", event.data.name), event.source, outcome_of(error) if error else "done",
                "event", reason=error.reason if error else "", request_id=origin,
            ),
            event_id=f"audit.{hashlib.sha256(origin.encode()).hexdigest()[:32]}",
        )


def consumer(bus: Bus, models: Models, audit: Audit) -> Component:
    """The component that listens."""
    handler = RegisterCommands(models, audit).handle
    return bus.consume(
        "gateway-register", [serving.MODEL_REGISTER], handler, max_in_flight=4, max_deliver=MAX_DELIVER
    )
