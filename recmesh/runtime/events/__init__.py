"""Events: CloudEvents of one registry, the same on the bus, in tests and in docs/asyncapi.yaml."""

from recmesh.runtime.events import access, catalog, serving
from recmesh.runtime.events.envelope import decode, encode
from recmesh.runtime.events.types import EVENTS, SUBJECT_ROOT, Event, EventType, Payload, Registry, token

__all__ = [
    "EVENTS", "SUBJECT_ROOT", "Event", "EventType", "Payload", "Registry", "access", "catalog", "decode", "encode",
    "serving", "token",
]
