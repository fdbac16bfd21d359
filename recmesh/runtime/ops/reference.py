"""An OpenAPI document as a page: rendered here, with the styles of the ops pages, and nothing from outside."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from recmesh.runtime.ops.render import environment

METHODS = ("get", "put", "post", "patch", "delete", "head", "options")
MAX_ENUM = 12
SECURITY_POLICY = (
    "default-src 'none'; style-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)


@dataclass(frozen=True, slots=True)
class Field:
    """A parameter, or a field of a schema."""

    name: str
    where: str
    type: str
    required: bool
    about: str


@dataclass(frozen=True, slots=True)
class Content:
    """A body: its media type, its type, and the fields of a schema that has no name."""

    media: str
    type: str
    fields: Sequence[Field]
    example: str


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path."""

    method: str
    path: str
    title: str
    about: str
    parameters: Sequence[Field]
    bodies: Sequence[Content]
    responses: Sequence[tuple[str, str, str]]
    """(status, description, type)"""


def reference(document: Mapping[str, Any]) -> str:
    """The page, as HTML; every text is escaped by the template engine."""
    info = document["info"]
    groups: dict[str, list[Operation]] = {str(tag["name"]): [] for tag in document.get("tags", ())}
    for tag, operation in _operations(document):
        groups.setdefault(tag, []).append(operation)
    schemas = document.get("components", {}).get("schemas", {})
    return environment().get_template("reference.html").render(
        title=info["title"], version=info["version"], about=str(info.get("description", "")).strip(),
        abouts={str(tag["name"]): str(tag.get("description", "")) for tag in document.get("tags", ())},
        groups={name: found for name, found in groups.items() if found},
        schemas={
            name: (str(schema.get("description", "")), type_of(schema), list(_fields(schema)))
            for name, schema in sorted(schemas.items())
        },
    )


def _operations(document: Mapping[str, Any]) -> Iterator[tuple[str, Operation]]:
    for path, methods in document["paths"].items():
        for method in METHODS:
            if method in methods:
                found = methods[method]
                tag = (found.get("tags") or ["other"])[0]
                yield str(tag), _operation(method, path, found, methods.get("parameters", ()))


def _operation(method: str, path: str, found: Mapping[str, Any], shared: Sequence[Any]) -> Operation:
    parameters = [
        Field(
            str(item["name"]), str(item["in"]), type_of(item.get("schema", {})), bool(item.get("required")),
            _about(item) or _about(item.get("schema", {})),
        )
        for item in (*shared, *found.get("parameters", ()))
    ]
    responses = [
        (status, str(item.get("description", "")), " or ".join(sorted(set(_types(item)))))
        for status, item in found.get("responses", {}).items()
    ]
    return Operation(
        method.upper(), path, str(found.get("summary", "")), str(found.get("description", "")).strip(), parameters,
        [_content(media, body) for media, body in found.get("requestBody", {}).get("content", {}).items()],
        responses,
    )


def _types(response: Mapping[str, Any]) -> Iterator[str]:
    for media, body in response.get("content", {}).items():
        schema = body.get("schema")
        yield type_of(schema) if schema else str(media)


def _content(media: str, body: Mapping[str, Any]) -> Content:
    schema = body.get("schema", {})
    example = body.get("example", schema.get("example"))
    text = "" if example is None else json.dumps(example, indent=2, ensure_ascii=False)
    return Content(media, type_of(schema), list(_fields(schema)), text)


def _fields(schema: Mapping[str, Any]) -> Iterator[Field]:
    required = schema.get("required", ())
    for name, item in schema.get("properties", {}).items():
        yield Field(str(name), "", type_of(item), name in required, _about(item))


def _about(item: Mapping[str, Any]) -> str:
    text = str(item.get("description", ""))
    default = item.get("default")
    return f"{text} Default: {json.dumps(default)}.".strip() if default not in (None, "", [], {}) else text


def type_of(schema: Any) -> str:
    """A schema in few words: `Job`, `[string]`, `{string: number}`, `integer | null`."""
    if not isinstance(schema, Mapping) or not schema:
        return "any"
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return " | ".join(dict.fromkeys(map(type_of, schema[several])))
    if "allOf" in schema:
        return " & ".join(map(type_of, schema["allOf"]))
    if "const" in schema:
        return json.dumps(schema["const"])
    if "enum" in schema:
        shown = [json.dumps(item) for item in schema["enum"][:MAX_ENUM]]
        return " | ".join([*shown, "…"] if len(schema["enum"]) > MAX_ENUM else shown)
    kind = schema.get("type", "any")
    if kind == "array":
        return f"[{type_of(schema.get('items'))}]"
    if kind == "object" and isinstance(schema.get("additionalProperties"), Mapping):
        return f"{{string: {type_of(schema['additionalProperties'])}}}"
    name = " | ".join(kind) if isinstance(kind, list) else str(kind)
    return f"{name} ({schema['format']})" if "format" in schema else name
