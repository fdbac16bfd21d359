"""The AsyncAPI 3 document of the registry: `python -m recmesh.runtime.events.asyncapi [FILE]` writes it."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from recmesh.runtime.events import EVENTS, SUBJECT_ROOT, EventType

REF = "#/components/schemas/{model}"
SERIES = frozenset({"rate", "forecast"})
"""Subjects whose id is the name of a series of rates."""


def document(events: Iterable[EventType[Any]] = EVENTS) -> dict[str, Any]:
    """AsyncAPI 3.0: a channel, a message and a schema for each kind of event."""
    kinds = sorted(events, key=lambda item: item.name)
    schemas: dict[str, Any] = {}
    for kind in kinds:
        schema = kind.payload.model_json_schema(ref_template=REF)
        schemas |= schema.pop("$defs", {})
        schemas[kind.payload.__name__] = schema
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "recmesh events",
            "version": "1.0.0",
            "license": {"name": "Apache-2.0"},
            "description": (
                "CloudEvents 1.0 in binary mode over NATS JetStream (stream RECMESH). "
                f"Subjects are `{SUBJECT_ROOT}.<service>.<entity>.<event>.<id>`; characters of an id that a "
                "subject token cannot hold are percent-encoded, and `ce-subject` has the id as it is. "
                "`Nats-Msg-Id` is source/id: an event sent again is stored once. "
                "Some are messages of a topic, whose name may be set. Readers ignore fields they do not know."
            ),
        },
        "defaultContentType": "application/json",
        "servers": {"mesh": {"host": "127.0.0.1:4222", "protocol": "nats"}},
        "channels": {kind.name: _channel(kind) for kind in kinds},
        "operations": {_operation(kind): _send(kind) for kind in kinds},
        "components": {
            "messages": {kind.name: _message(kind) for kind in kinds},
            "messageTraits": {"cloudEvent": {"headers": _headers()}},
            "schemas": dict(sorted(schemas.items())),
        },
    }


def text() -> str:
    """The document as YAML; the same bytes for the same registry."""
    head = "# Generated: python -m recmesh.runtime.events.asyncapi docs/asyncapi.yaml\n"
    return head + yaml.safe_dump(document(), sort_keys=False, width=110, allow_unicode=True)


def _channel(kind: EventType[Any]) -> dict[str, Any]:
    subject = kind.name.split(".")[0]
    about = "Name of the series" if subject in SERIES else f"Id of the {subject}"
    about = f"{about}, percent-encoded."
    of_topic = {"partition": {"description": "A number; a partition is a stream of its own, TOPIC-PARTITION."}}
    return {
        "address": kind.address,
        "description": kind.description,
        "parameters": of_topic if kind.topic else {"id": {"description": about}},
        "messages": {"event": {"$ref": f"#/components/messages/{kind.name}"}},
    }


def _operation(kind: EventType[Any]) -> str:
    return kind.name.replace(".", "_")


def _send(kind: EventType[Any]) -> dict[str, Any]:
    return {
        "action": "send",
        "channel": {"$ref": f"#/channels/{kind.name}"},
        "summary": kind.description,
        "tags": [{"name": kind.service}],
    }


def _message(kind: EventType[Any]) -> dict[str, Any]:
    return {
        "name": kind.ce_type,
        "title": kind.name,
        "summary": kind.description,
        "traits": [{"$ref": "#/components/messageTraits/cloudEvent"}],
        "payload": {"$ref": REF.format(model=kind.payload.__name__)},
    }


def _headers() -> dict[str, Any]:
    text_of = {
        "ce-specversion": "Always 1.0.",
        "ce-id": "Unique within the source.",
        "ce-source": "Who sent it: /recmesh/<service>, or any URI reference.",
        "ce-type": "dev.recmesh.<entity>.<event>.v1",
        "ce-subject": "The entity's id.",
        "ce-time": "When it happened, RFC 3339, UTC.",
        "content-type": "application/json",
        "Nats-Msg-Id": "source/id: the server stores the same event once.",
        "traceparent": "W3C trace context of the sender.",
    }
    optional = {"traceparent", "Nats-Msg-Id", "ce-time"}
    return {
        "type": "object",
        "properties": {name: {"type": "string", "description": about} for name, about in text_of.items()},
        "required": [name for name in text_of if name not in optional],
    }


if __name__ == "__main__":
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(text(), encoding="utf-8")
    else:
        print(text(), end="")
