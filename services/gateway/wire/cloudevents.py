"""Events as HTTP requests, by the HTTP protocol binding of CloudEvents 1.0."""

from typing import Any

import orjson

from recmesh.runtime.events import Event, encode
from services.gateway.domain.webhooks import Mode

STRUCTURED = "application/cloudevents+json; charset=utf-8"


def request(event: Event[Any], mode: Mode, *, sequence: int) -> tuple[dict[str, str], bytes]:
    """Headers and body. `sequence` (0: none) is told as the extension of that name, in digits that sort as text.

    Structured: the body is the whole event. Binary: the body is its data, and headers `ce-*` are the rest.
    """
    headers, body = encode(event)
    del headers["Nats-Msg-Id"]
    number = f"{sequence:020d}"
    if mode == "binary":
        return headers | ({"ce-sequence": number} if sequence else {}), body
    document = {
        "specversion": "1.0", "id": event.id, "source": event.source, "type": event.type.ce_type,
        "subject": event.entity_id, "time": headers["ce-time"], "datacontenttype": "application/json",
        **({"traceparent": event.traceparent} if event.traceparent else {}),
        **({"sequence": number} if sequence else {}),
        "data": event.data.model_dump(mode="json"),
    }  # fmt: skip
    traced = {"traceparent": event.traceparent} if event.traceparent else {}
    return {"content-type": STRUCTURED, **traced}, orjson.dumps(document)
