"""What an event is, and the one registry of all kinds of them."""

import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict

SUBJECT_ROOT = "recmesh.v1"


class Payload(BaseModel):
    """Base of events' data. Fields that a newer sender added are ignored: a reader must not break."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)


P = TypeVar("P", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class EventType(Generic[P]):
    """A kind of event: `job.submitted` of jobmaster. Commands are imperative, facts past tense."""

    name: str
    """entity.event"""
    service: str
    """Whose fact it is; of a command, who carries it out."""
    payload: type[P]
    description: str
    topic: str = ""
    """Where it is, unless one chooses another: a topic of partitions. Empty: among the events of the mesh."""
    anyone: bool = False
    """Whoever likes may send it: commands, and what others measure. All else is told by the service alone."""

    def __post_init__(self) -> None:
        parts = self.name.split(".")
        if len(parts) != 2 or not all(part.isidentifier() and part.islower() for part in parts):
            raise ValueError(f"{self.name!r} is not entity.event")

    @property
    def ce_type(self) -> str:
        """The CloudEvents attribute `type`; its version is the payload's, not the transport's."""
        return f"dev.recmesh.{self.name}.v1"

    @property
    def address(self) -> str:
        """Its subject with what differs in braces."""
        return f"{self.topic}.{{partition}}" if self.topic else self.subject.removesuffix("*") + "{id}"

    @property
    def subject(self) -> str:
        """The subject of all events of this kind, with a wildcard for the entity."""
        return f"{SUBJECT_ROOT}.{self.service}.{self.name}.*"


@dataclass(frozen=True, slots=True)
class Event(Generic[P]):
    """Something that happened to an entity, or that somebody asks for.

    `id` and `source` together are its identity: publishing it again is no second event. An empty
    `source` or `traceparent` is filled in by the bus that publishes it.
    """

    type: EventType[P]
    entity_id: str
    data: P
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    time: float = field(default_factory=time.time)
    source: str = ""
    """`/recmesh/<service>`"""
    traceparent: str = ""

    @property
    def subject(self) -> str:
        """recmesh.v1.<service>.<entity>.<event>.<id>"""
        return f"{SUBJECT_ROOT}.{self.type.service}.{self.type.name}.{token(self.entity_id)}"

    @property
    def message_id(self) -> str:
        """What the server deduplicates by: source/id."""
        return f"{self.source}/{self.id}"


def token(text: str) -> str:
    """Any text as one token of a subject: percent-encoded, with dots, which NATS would split at."""
    if not text:
        raise ValueError("an entity needs an id")
    return quote(text, safe="").replace(".", "%2E").replace("~", "%7E")


class Registry:
    """Event types by name."""

    def __init__(self) -> None:
        self._by_name: dict[str, EventType[Any]] = {}

    def add(self, event_type: EventType[P]) -> EventType[P]:
        """Register, and return it; ValueError when the name is taken."""
        if event_type.name in self._by_name:
            raise ValueError(f"{event_type.name} is registered twice")
        self._by_name[event_type.name] = event_type
        return event_type

    def get(self, name: str) -> EventType[Any] | None:
        """By `entity.event`."""
        return self._by_name.get(name)

    def by_ce_type(self, ce_type: str) -> EventType[Any] | None:
        """By the CloudEvents attribute `type`."""
        return next((item for item in self if item.ce_type == ce_type), None)

    def __iter__(self) -> Iterator[EventType[Any]]:
        return iter(sorted(self._by_name.values(), key=lambda item: item.name))

    def __len__(self) -> int:
        return len(self._by_name)


EVENTS = Registry()
"""Every kind of event that crosses the bus; `catalog` fills it."""
