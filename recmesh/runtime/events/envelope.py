"""CloudEvents 1.0 in binary mode: attributes in `ce-*` headers, data as JSON in the body."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, unquote

import orjson
from pydantic import ValidationError

from recmesh.runtime.errors import InvalidArgument, Violation
from recmesh.runtime.events.types import EVENTS, Event, Registry

CONTENT_TYPE = "application/json"


def encode(event: Event[Any]) -> tuple[dict[str, str], bytes]:
    """Headers and body. Keys in the body are sorted: the same event has the same bytes everywhere."""
    at = datetime.fromtimestamp(event.time, UTC).isoformat(timespec="microseconds")
    headers = {
        "ce-specversion": "1.0",
        "ce-id": event.id,
        "ce-source": event.source,
        "ce-type": event.type.ce_type,
        "ce-subject": event.entity_id,
        "ce-time": at.replace("+00:00", "Z"),
        "content-type": CONTENT_TYPE,
        "Nats-Msg-Id": event.message_id,
    }
    if event.traceparent:
        headers["traceparent"] = event.traceparent
    body = orjson.dumps(event.data.model_dump(mode="json"), option=orjson.OPT_SORT_KEYS)
    return {name: _escape(value) for name, value in headers.items()}, body


def decode(headers: Mapping[str, str], body: bytes, *, registry: Registry = EVENTS) -> Event[Any]:
    """The event; InvalidArgument names each attribute or field that is wrong. Never executes anything."""
    got = {name.lower(): unquote(value) for name, value in headers.items()}
    missing = [name for name in ("ce-id", "ce-source", "ce-type", "ce-subject") if not got.get(name)]
    if missing:
        raise _bad("is no CloudEvent", [Violation(name, "is missing") for name in missing])
    if got.get("ce-specversion") != "1.0":
        raise _bad("has another version", [Violation("ce-specversion", "must be 1.0")])
    kind = registry.by_ce_type(got["ce-type"])
    if kind is None:
        raise _bad("is of an unknown type", [Violation("ce-type", f"{got['ce-type']!r} is not registered")])
    try:
        data = kind.payload.model_validate(orjson.loads(body))
    except orjson.JSONDecodeError as error:
        raise _bad("has no JSON body", [Violation("data", str(error))]) from None
    except ValidationError as error:
        raise _bad(f"{kind.name} has wrong data", [
            Violation(".".join(["data", *map(str, item["loc"])]), str(item["msg"])) for item in error.errors()
        ]) from None
    return Event(
        type=kind, entity_id=got["ce-subject"], data=data, id=got["ce-id"],
        time=_time(got.get("ce-time", "")), source=got["ce-source"], traceparent=got.get("traceparent", ""),
    )


def _escape(value: str) -> str:
    """Percent-encode what a header must not carry, as the CloudEvents bindings say."""
    return quote(value, safe="".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '%"'))


def _time(text: str) -> float:
    try:
        return datetime.fromisoformat(text).timestamp() if text else 0.0
    except ValueError:
        raise _bad("has a wrong time", [Violation("ce-time", f"{text!r} is not RFC 3339")]) from None


def _bad(what: str, violations: list[Violation]) -> InvalidArgument:
    return InvalidArgument(f"the message {what}", reason="BAD_EVENT", violations=violations)
