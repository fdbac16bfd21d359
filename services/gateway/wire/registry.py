"""Model versions as messages of gateway.proto and as JSON documents of the REST API. Neither shows passwords."""

from typing import Any

import orjson

from recmesh.pb import gateway_pb2
from recmesh.runtime.errors import InvalidArgument, Violation
from recmesh.serving.settings import shown
from services.gateway.domain.models import ModelVersion, Registration


def registration(message: gateway_pb2.RegisterRequest) -> Registration:
    """What jobmaster asks for."""
    return Registration(
        message.name, message.version, message.uri, message.framework, message.job_id, message.snapshot,
        dict(message.metrics), message.request_id, message.load, _serving(message.serving_json),
    )  # fmt: skip


def _serving(text: str) -> dict[str, Any]:
    try:
        found = orjson.loads(text) if text else {}
    except orjson.JSONDecodeError as error:
        raise _bad_serving(f"is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise _bad_serving("is not a JSON object")
    return found


def _bad_serving(why: str) -> InvalidArgument:
    return InvalidArgument(
        f"serving_json {why}", reason="BAD_REGISTRATION", violations=[Violation("serving_json", why)]
    )


def model(record: ModelVersion) -> gateway_pb2.Model:
    """The record as a message."""
    return gateway_pb2.Model(
        name=record.name, version=record.version, uri=record.uri, framework=record.framework,
        job_id=record.job_id,
        snapshot=record.snapshot, metrics=dict(record.metrics), created=record.created,
        state=str(record.state),
        reason=record.reason, serving_json=orjson.dumps(shown(record.serving)).decode() if record.serving else "",
    )  # fmt: skip


def models(records: list[ModelVersion]) -> gateway_pb2.ListReply:
    """Records as a message."""
    return gateway_pb2.ListReply(models=[model(record) for record in records])


def document(record: ModelVersion) -> dict[str, Any]:
    """The record as a JSON document, with the message's field names."""
    return {
        "name": record.name, "version": record.version, "uri": record.uri, "framework": record.framework,
        "job_id": record.job_id, "snapshot": record.snapshot, "metrics": dict(record.metrics),
        "created": record.created, "state": str(record.state), "reason": record.reason,
        "serving": shown(record.serving),
    }  # fmt: skip
