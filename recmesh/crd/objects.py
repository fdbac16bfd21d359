"""Jobs as objects, and objects as jobs.

An object's `spec` has the shape of the job (docs/reference/job.md) without `api_version` and `namespace`, and `name`
where it is the object's own. Numbers that may be written as texts are whole numbers or texts in objects, for the API
server knows no field that takes both a fraction and a text: 0.5 cores are `500m`.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from pydantic import BaseModel

from recmesh.crd.kinds import FINALIZER, GROUP, VERSION
from recmesh.crd.schema import quantity_of
from recmesh.spec.job import TrainingJob

API_VERSION = f"{GROUP}/{VERSION}"
REQUEST, SUBMITTER, DIGEST = (f"{GROUP}/{name}" for name in ("request-id", "submitter", "spec-digest"))
"""Annotations of objects that were written for jobs which came by REST or event."""


def training_job(
    job: TrainingJob, *, namespace: str, name: str = "", annotations: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """The object of a job as it was submitted; it says no more than the user did. name: another than the job's."""
    spec = written(job)
    spec.pop("api_version", None)
    spec.pop("namespace", None)
    if not name or name == job.name:
        spec.pop("name", None)
    return {
        "apiVersion": API_VERSION, "kind": "TrainingJob",
        "metadata": {
            "name": name or job.name, "namespace": namespace, "finalizers": [FINALIZER],
            "annotations": {key: value for key, value in (annotations or {}).items() if value},
        },
        "spec": spec,
    }


def job_document(thing: Mapping[str, Any]) -> dict[str, Any]:
    """What an object asks for, as it would be submitted."""
    metadata = thing["metadata"]
    return {"name": metadata["name"], **(thing.get("spec") or {}), "namespace": metadata["namespace"]}


def written(spec: BaseModel) -> dict[str, Any]:
    """The fields that were given, as objects hold them."""
    found = {}
    for name in sorted(spec.model_fields_set, key=list(type(spec).model_fields).index):
        field = type(spec).model_fields[name]
        value = getattr(spec, name)
        found[name] = _quantity(quantity_of(field), value) if quantity_of(field) else _plain(value)
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return written(value)
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _quantity(kind: str, value: Any) -> Any:
    if not isinstance(value, float):
        return value
    if value.is_integer():
        return int(value)
    match kind:
        case "cpu":
            return f"{_decimal(value, 1000)}m"
        case "duration":
            return f"{_decimal(value)}s"
        case "moment" | "start":
            return datetime.fromtimestamp(value, UTC).isoformat()
    raise ValueError(f"{value} is no {kind}")


def _decimal(value: float, times: int = 1) -> str:
    return f"{(Decimal(repr(value)) * times).normalize():f}"


def cores(cpu: float) -> int | str:
    """Cores as an object holds them."""
    found: int | str = _quantity("cpu", float(cpu))
    return found
