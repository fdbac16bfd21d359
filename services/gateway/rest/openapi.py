"""What the OpenAPI document says beyond what FastAPI finds by itself."""

from typing import Any

from pydantic import BaseModel

from services.gateway.rest.problems import MEDIA_TYPE, Problem

DESCRIPTION = """
recmesh trains and serves deep recommendation models. This is the public API of one mesh: jobs, datasets,
models, and inference by the
[Open Inference Protocol v2](https://github.com/kserve/open-inference-protocol) (also over gRPC).

* **Errors** are problem details (RFC 9457) with a `reason` that programs may compare and `violations` that
  name every wrong field.
* **Authentication**: with an API key configured, every call of `/v1` and `/v2` needs
  `Authorization: Bearer <key>`.
* **Tracing**: `traceparent` is continued; `X-Request-Id` is taken over, or made, and answered.
"""

TAGS: list[dict[str, Any]] = [
    {"name": "jobs", "description": "Training jobs: submit, watch, scale, stop."},
    {"name": "code", "description": "Users' packed code."},
    {"name": "datasets", "description": "Named datasets."},
    {"name": "models", "description": "The model registry."},
    {
        "name": "inference",
        "description": "Open Inference Protocol v2, with binary tensors, repository and statistics.",
    },
    {"name": "labels", "description": "What became of samples that were predicted."},
    {"name": "webhooks", "description": "Events by HTTP, signed, for those who have no NATS."},
    {"name": "planning", "description": "Forecasts of traffic, and plans of resources."},
    {"name": "mesh", "description": "The services behind this API."},
]


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Error responses of an operation, beside those that any may have."""
    reasons = {
        400: "A field is wrong; `violations` name each.", 401: "No API key, or a wrong one.",
        403: "The credential, or where the caller is, does not allow it.",
        404: "There is no such thing.", 409: "The state forbids it.", 413: "The body is too large.",
        415: "The content type is not read here.", 429: "A limit or queue is full; try later.",
        503: "The service behind is away; try later.", 504: "Not done in time.",
    }  # fmt: skip
    return {
        status: {"description": reasons[status], "model": Problem, "content": {MEDIA_TYPE: {}}}
        for status in (*statuses, 401, 503)
    }


def protocol_problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The same of the inference protocol, whose clients read errors as JSON only."""
    return {
        status: {**answer, "content": {"application/json": {}}}
        for status, answer in problems(*statuses).items()
    }


def header(name: str, about: str) -> dict[str, Any]:
    """An optional request header that the operation reads itself."""
    return {"name": name, "in": "header", "required": False, "description": about, "schema": {"type": "string"}}


def body(model: type[BaseModel], *, required: bool = True) -> dict[str, Any]:
    """The JSON request body of an operation that reads it itself."""
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    parts = schema.pop("$defs", {})
    schema = _in_place(schema, parts)
    return {"requestBody": {"required": required, "content": {"application/json": {"schema": schema}}}}


def _in_place(node: Any, parts: dict[str, Any]) -> Any:
    """The schema with what it refers to written out: these models are no components of the document."""
    if isinstance(node, list):
        return [_in_place(item, parts) for item in node]
    if not isinstance(node, dict):
        return node
    name = str(node.get("$ref", "")).rpartition("/")[2]
    if name in parts:
        return _in_place(parts[name], parts)
    return {key: _in_place(value, parts) for key, value in node.items()}


def documents(example: Any, *, about: str, yaml: bool = True) -> dict[str, Any]:
    """A request body of JSON (or YAML) whose schema is elsewhere."""
    schema = {"type": "object", "description": about, "additionalProperties": True, "example": example}
    kinds = ("application/json", "application/yaml") if yaml else ("application/json",)
    content = {kind: {"schema": schema} for kind in kinds}
    return {"requestBody": {"required": True, "content": content}}


def binary(media_type: str, about: str) -> dict[str, Any]:
    """A request body of bytes."""
    schema = {"type": "string", "format": "binary", "description": about}
    return {"requestBody": {"required": True, "content": {media_type: {"schema": schema}}}}
