"""What readers of events may rely on, one line each.

`python -m recmesh.runtime.events.contract docs/formats/events.v1.txt` writes it, and
refuses where some of it would be gone.

    job.submitted @ recmesh.v1.jobmaster.job.submitted.{id}
    job.submitted name string required
    job.refused violations[].path string required

Within a version an event keeps its address, and each field its name, type, and whether it is always there. What is
added to an event is optional: senders one version older leave it out, and readers one version older do not know it.
Anything else is an event with another version in its type. Values of words (phases, reasons) may be added.
"""

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from recmesh.runtime.contract import write
from recmesh.runtime.events import EVENTS, EventType

COMMAND = "python -m recmesh.runtime.events.contract docs/formats/events.v1.txt"
_OPTIONAL = "optional"


def lines(events: Iterable[EventType[Any]] = EVENTS) -> list[str]:
    """Sorted; the same for the same registry."""
    found: list[str] = []
    for kind in events:
        schema = kind.payload.model_json_schema()
        found.append(f"{kind.name} @ {kind.address}")
        found += [f"{kind.name} {field}" for field in _fields(schema, schema.get("$defs", {}), "")]
    return sorted(found)


def broken(before: Collection[str], after: Collection[str]) -> list[str]:
    """What of the contract `before` does not hold in `after`, in words; empty: whoever read it can read on."""
    gone = [f"is gone, or another: {line}" for line in before if line not in set(after)]
    known = {line.split(" ", 1)[0] for line in before}
    places = {_place(line) for line in before}
    demanding = [
        f"is new, and not optional: {line}" for line in after
        if line.split(" ", 1)[0] in known and _place(line) not in places and not line.endswith(_OPTIONAL)
        and _parent(_place(line)) not in {_place(other) for other in after if other not in before}
    ]
    return sorted(gone + demanding)


def _place(line: str) -> str:
    """Event and field."""
    return " ".join(line.split(" ")[:2])


def _parent(place: str) -> str:
    """The field that a field is in; what is in a new optional field may be required there."""
    return place.rpartition(".")[0].removesuffix("[]").removesuffix("{}") if "." in place.partition(" ")[2] else ""


def _fields(schema: Mapping[str, Any], models: Mapping[str, Any], prefix: str) -> Iterator[str]:
    required = set(schema.get("required", []))
    for name, field in schema.get("properties", {}).items():
        need = "required" if name in required else _OPTIONAL
        yield f"{prefix}{name} {_type(field, models)} {need}"
        yield from _inside(field, models, f"{prefix}{name}")


def _inside(field: Mapping[str, Any], models: Mapping[str, Any], place: str) -> Iterator[str]:
    if "$ref" in field:
        yield from _fields(_model(field, models), models, f"{place}.")
    elif isinstance(field.get("items"), dict):
        yield from _inside(field["items"], models, f"{place}[]")
    elif isinstance(field.get("additionalProperties"), dict):
        yield from _inside(field["additionalProperties"], models, f"{place}{{}}")


def _type(field: Mapping[str, Any], models: Mapping[str, Any]) -> str:
    if "$ref" in field:
        return "object"
    if "anyOf" in field:
        return "|".join(sorted(_type(each, models) for each in field["anyOf"]))
    kind = str(field.get("type", "any"))
    if kind == "array":
        if "prefixItems" in field:
            return f"({','.join(_type(each, models) for each in field['prefixItems'])})"
        return f"[{_type(field.get('items', {}), models)}]"
    if kind == "object":
        values = field.get("additionalProperties")
        return f"{{{_type(values, models)}}}" if isinstance(values, dict) and values else "{any}"
    return kind


def _model(field: Mapping[str, Any], models: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = models[str(field["$ref"]).rpartition("/")[2]]
    return found


def main(path: Path) -> int:
    """Writes the contract; 1 and what would break where it does not hold any more."""
    return write(path, lines(), broken, command=COMMAND, who="readers")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
