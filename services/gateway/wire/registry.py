"""Model versions as messages of gateway.proto and as JSON documents of the REST API."""

from typing import Any

from recmesh.pb import gateway_pb2
from services.gateway.domain.models import ModelVersion, Registration


def registration(message: gateway_pb2.RegisterRequest) -> Registration:
    """What jobmaster asks for."""
    return Registration(
        message.name, message.version, message.uri, message.framework, message.job_id, message.snapshot,
        dict(message.metrics), message.request_id, message.load,
    )  # fmt: skip


def model(record: ModelVersion) -> gateway_pb2.Model:
    """The record as a message."""
    return gateway_pb2.Model(
        name=record.name, version=record.version, uri=record.uri, framework=record.framework,
        job_id=record.job_id,
        snapshot=record.snapshot, metrics=dict(record.metrics), created=record.created,
        state=str(record.state),
        reason=record.reason,
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
        "serving": dict(record.serving),
    }  # fmt: skip
