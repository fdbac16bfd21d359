"""What users may add to the pods of a role (`roles.X.pod_template`), and what is not theirs to change."""

from collections.abc import Iterator, Mapping
from typing import Any

from recmesh.spec.base import Fault

CONTAINER = "role"
"""The container that the role runs in; a template that names it adds to it."""
_OWN_SPEC = {
    "restartPolicy": "another attempt is another pod, and recmesh's to start",
    "hostname": "pods are told apart by it",
}
_OWN_CONTAINER = {
    "image": "give model.image", "command": "every role has its own", "args": "every role has its own",
    "resources": "give cpu, memory and gpu of the role",
    "terminationMessagePath": "a role notes its batch there", "resizePolicy": "sizes change while a role runs",
}
_METADATA = ("labels", "annotations")


def template_faults(path: str, template: Mapping[str, Any]) -> Iterator[Fault]:
    """Wrong fields of a template; the rest is for the API server to judge."""
    for key in template:
        if key not in ("metadata", "spec"):
            yield f"{path}.{key}", "there is no such field; a template has metadata and spec"
    metadata, spec = template.get("metadata", {}), template.get("spec", {})
    for name, part in (("metadata", metadata), ("spec", spec)):
        if not isinstance(part, Mapping):
            yield f"{path}.{name}", "must be a mapping"
    if isinstance(metadata, Mapping):
        yield from _metadata_faults(f"{path}.metadata", metadata)
    if isinstance(spec, Mapping):
        yield from _spec_faults(f"{path}.spec", spec)


def _metadata_faults(path: str, metadata: Mapping[str, Any]) -> Iterator[Fault]:
    for key, value in metadata.items():
        if key not in _METADATA:
            yield f"{path}.{key}", f"is recmesh's own; a template has {' and '.join(_METADATA)}"
        elif not isinstance(value, Mapping):
            yield f"{path}.{key}", "must be a mapping"
        else:
            for label, text in value.items():
                if str(label).startswith(("recmesh.dev/", "app.kubernetes.io/")) and key == "labels":
                    yield f"{path}.{key}", f"{label} is recmesh's own: pods are found by it"
                if not isinstance(text, str):
                    yield f"{path}.{key}", f"{label} must be a string"


def _spec_faults(path: str, spec: Mapping[str, Any]) -> Iterator[Fault]:
    for key, reason in _OWN_SPEC.items():
        if key in spec:
            yield f"{path}.{key}", f"is recmesh's own: {reason}"
    for key in ("containers", "initContainers", "volumes", "tolerations"):
        if not isinstance(spec.get(key, []), list):
            yield f"{path}.{key}", "must be a list"
    containers = spec.get("containers", [])
    for place, container in enumerate(containers if isinstance(containers, list) else []):
        if not isinstance(container, Mapping) or not isinstance(container.get("name"), str):
            yield f"{path}.containers.{place}", f"must be a mapping with a name; the role's own is {CONTAINER!r}"
        elif container["name"] == CONTAINER:
            for key, reason in _OWN_CONTAINER.items():
                if key in container:
                    yield f"{path}.containers.{place}.{key}", f"is recmesh's own: {reason}"
