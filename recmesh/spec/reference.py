"""docs/reference/job.md, drawn from the specification itself.

    python -m recmesh.spec.reference > docs/reference/job.md
"""

from typing import Any

from recmesh.spec.job import TrainingJob

_HEAD = """# TrainingJob

Generated from `recmesh/spec` by `python -m recmesh.spec.reference > docs/reference/job.md`; a test holds the two
together.

The same shape for `recmesh submit` (YAML or JSON), `POST /v1/jobs` and the event `job.submit`. Unknown fields are
refused. A complete example is [examples/flights/job.yaml](../../examples/flights/job.yaml).
"""


def page() -> str:
    """The whole page; sections in the order in which a reader meets them."""
    schema = TrainingJob.model_json_schema()
    sections = [_HEAD, _section("TrainingJob", schema)]
    definitions: dict[str, Any] = schema["$defs"]
    for name in _in_order(schema, definitions):
        sections.append(_section(name, definitions[name]))
    return "\n".join(sections)


def _in_order(schema: dict[str, Any], definitions: dict[str, Any]) -> list[str]:
    found: list[str] = []
    waiting = _references(schema["properties"])
    while waiting:
        name = waiting.pop(0)
        if name not in found:
            found.append(name)
            waiting += _references(definitions[name].get("properties", {}))
    return found


def _references(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"].rsplit("/", 1)[-1]] if "$ref" in value else []
        return own + [name for item in value.values() for name in _references(item)]
    return [name for item in value for name in _references(item)] if isinstance(value, list) else []


def _section(name: str, schema: dict[str, Any]) -> str:
    required = set(schema.get("required", []))
    rows = [
        f"| `{field}` | {_type(value)} | {_default(field, value, required)} | {_meaning(value)} |"
        for field, value in schema.get("properties", {}).items()
    ]
    head = [f"## {name}", "", schema.get("description", "").strip(), "", "| field | type | default | meaning |"]
    return "\n".join([*head, "|---|---|---|---|", *rows, ""])


def _type(value: dict[str, Any]) -> str:
    if "$ref" in value:
        name = value["$ref"].rsplit("/", 1)[-1]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in value:
        return " or ".join(_type(item) for item in value["anyOf"] if item.get("type") != "null")
    if "enum" in value:
        return ", ".join(f"`{item}`" for item in value["enum"] if item != "")
    if "const" in value:
        return f"`{value['const']}`"
    if value.get("type") == "array":
        items = value.get("items") or (value.get("prefixItems") or [{}])[0]
        return f"list of {_type(items)}"
    if value.get("type") == "object":
        return "mapping"
    return f"{value.get('type', 'any')}{_bounds(value)}"


def _bounds(value: dict[str, Any]) -> str:
    words = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    found = [f"{sign} {value[key]:g}" for key, sign in words.items() if key in value and abs(value[key]) < 1e15]
    return f" {', '.join(found)}" if found else ""


def _default(field: str, value: dict[str, Any], required: set[str]) -> str:
    if field in required:
        return "**required**"
    default = value.get("default")
    if default is None or default in ("", [], {}) or isinstance(default, dict):
        return ""
    return f"`{default}`"


def _meaning(value: dict[str, Any]) -> str:
    return " ".join(str(value.get("description", "")).split()).replace("|", "\\|")


if __name__ == "__main__":
    print(page(), end="")
