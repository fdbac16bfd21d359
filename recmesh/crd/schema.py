"""Structural schemas of Kubernetes from pydantic models.

The API server takes a part of JSON Schema only: no references, no alternatives of types, exclusive bounds as flags of
the inclusive ones, and defaults that are valid by themselves. What it cannot say itself is said by CEL (`rules`).

A field that may be None and is None by default is left out where it is null: the API server drops such nulls.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel, BeforeValidator
from pydantic.fields import FieldInfo

from recmesh.crd import kinds
from recmesh.crd.amounts import AMOUNTS, PATTERNS, QUANTITIES, of_amount
from recmesh.crd.rules import Cel, of_field, of_kind
from recmesh.spec.base import Spec
from recmesh.spec.dataset import DatasetSpec, Feature, Source, Stream, StreamSource
from recmesh.spec.job import Model, Role, Training, TrainingJob

Schema = dict[str, Any]

LIST_KEYS: Mapping[tuple[type[BaseModel], str], tuple[str, ...]] = {
    (DatasetSpec, "features"): ("name",),
    (kinds.TrainingJobStatus, "roles"): ("role",),
    (kinds.JobMetricsStatus, "roles"): ("role", "index"),
    **{(status, "conditions"): ("type",) for status in (
        kinds.TrainingJobStatus, kinds.TrainingDatasetStatus, kinds.ModelServiceStatus,
    )},
}
"""Lists whose items are known by a key: several may own some of them, and the API server refuses equal keys."""
SIZES: Mapping[tuple[type[BaseModel], str], Schema] = {
    (DatasetSpec, "features"): {"maxItems": 1000},
    (DatasetSpec, "labels"): {"maxItems": 64},
    (Feature, "columns"): {"maxItems": 64},
    (Feature, "boundaries"): {"maxItems": 1024},
    (Feature, "vocabulary"): {"maxItems": 8192},
    (Source, "files"): {"maxItems": 4096},
    (StreamSource, "files"): {"maxItems": 256},
    (Source, "columns"): {"maxItems": 4096},
    (StreamSource, "columns"): {"maxItems": 4096},
    (Source, "types"): {"maxProperties": 1024},
    (StreamSource, "types"): {"maxProperties": 1024},
    (Stream, "sources"): {"maxItems": 16},
    (DatasetSpec, "streams"): {"maxItems": 16},
    (Training, "lr_schedule"): {"maxItems": 256},
    (Training, "table_optimizers"): {"maxProperties": 256},
    (Training, "tables"): {"maxProperties": 256},
    (TrainingJob, "labels"): {"maxProperties": 64},
    (Role, "env"): {"maxProperties": 256},
    (Model, "code"): {"maxLength": 4096},
}
"""Bounds that only objects have: the API server bounds the cost of rules by the most that they may look at."""
TEXT_LENGTH = 1024
"""Of any text in an object for which nothing else is said; rules' cost is bounded by it too."""
UNFIXED = {(StreamSource, "format")}
"""Fields whose default depends on others, so that no schema may fill them in."""
_KEPT = (
    "type", "format", "enum", "pattern", "minLength", "maxLength", "minItems", "maxItems", "minProperties",
    "maxProperties",
)
_BOUNDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a schema stands: a field of a model."""

    owner: type[BaseModel]
    name: str

    @property
    def field(self) -> FieldInfo:
        """As pydantic knows it."""
        return self.owner.model_fields[self.name]


def structural(kind: type[BaseModel]) -> Schema:
    """The schema of a model's objects, with its rules; every reference is replaced by what it names."""
    document = kind.model_json_schema()
    return _Writer(document.get("$defs", {}), _models(kind)).object(kind, document)


def with_rules(schema: Schema, rules: Sequence[Cel]| list[Cel]) -> Schema:
    """The schema with more rules."""
    written = [*schema.get("x-kubernetes-validations", []), *(item.as_document() for item in rules)]
    return schema | {"x-kubernetes-validations": written} if written else schema


def quantity_of(field: FieldInfo) -> str:
    """Which of QUANTITIES a field is; empty where it is none."""
    inner = [item for kind in get_args(field.annotation) for item in getattr(kind, "__metadata__", ())]
    for item in (*field.metadata, *inner):
        if isinstance(item, BeforeValidator) and item.func in QUANTITIES:
            return QUANTITIES[item.func]
    return ""


class _Writer:
    def __init__(self, definitions: Mapping[str, Schema], models: Mapping[str, type[BaseModel]]) -> None:
        self._definitions, self._models = definitions, models
        self._many = 0
        """How deep in lists and mappings: what is there may be many times."""

    def object(self, kind: type[BaseModel], document: Schema) -> Schema:
        properties = {}
        for name, value in document.get("properties", {}).items():
            field_name = next(
                key for key, field in kind.model_fields.items() if name in (key, field.alias, field.serialization_alias)
            )
            properties[name] = self._property(Place(kind, field_name), value)
        made: Schema = {"type": "object"}
        if text := _text(document):
            made["description"] = text
        if required := document.get("required"):
            made["required"] = list(required)
        made["properties"] = properties
        return with_rules(made, of_kind(kind) if issubclass(kind, Spec) else [])

    def _property(self, place: Place, value: Schema) -> Schema:
        kind = quantity_of(place.field)
        made = self._number_or_text(kind, value) if kind else self._value(value, place)
        if text := _text(value):
            made = {"description": text} | {key: item for key, item in made.items() if key != "description"}
        made |= _own_size(place, made) | ({"format": value["format"]} if "format" in value else {})
        default = place.field.get_default(call_default_factory=True)
        if (place.owner, place.name) not in UNFIXED and not place.field.is_required() and default is not None:
            made["default"] = plain(default)
            if _may_be_null(value):
                made["nullable"] = True
        return with_rules(made, of_field(place.owner, place.name))

    def _value(self, value: Schema, place: Place | None = None) -> Schema:
        if "$ref" in value or "allOf" in value:
            return self._referred(value)
        if "anyOf" in value:
            return self._alternatives(value["anyOf"], place)
        if "const" in value:
            return {"type": "string", "enum": [value["const"]]}
        made = {key: value[key] for key in _KEPT if key in value} | _bounds(value)
        match value.get("type"):
            case "array":
                return made | self._items(value, place)
            case "object":
                return made | self._values(value)
            case "string" if "enum" not in value and "maxLength" not in value and "pattern" not in value:
                return made | {"maxLength": TEXT_LENGTH}
            case "string" | "integer" | "number" | "boolean":
                return made
            case None:
                return {"x-kubernetes-preserve-unknown-fields": True}
        raise TypeError(f"no structural schema has {value}")

    def _referred(self, value: Schema) -> Schema:
        reference = value["$ref"] if "$ref" in value else value["allOf"][0]["$ref"]
        name = reference.rsplit("/", 1)[-1]
        definition = self._definitions[name]
        if name in self._models:
            return self.object(self._models[name], definition)
        return self._value(definition)

    def _alternatives(self, values: list[Schema], place: Place | None) -> Schema:
        others = [value for value in values if value.get("type") != "null"]
        if len(others) == 1:
            return self._value(others[0], place)
        kinds = {value.get("type") for value in others}
        if kinds == {"integer", "string"}:
            return {"x-kubernetes-int-or-string": True}
        return {"x-kubernetes-preserve-unknown-fields": True}

    def _items(self, value: Schema, place: Place | None) -> Schema:
        first = value.get("items") or value["prefixItems"][0]
        made = self._one_of_many(first)
        if _may_be_null(first):
            made["nullable"] = True
        keys = LIST_KEYS.get((place.owner, place.name)) if place else None
        if keys:
            return {"items": made, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}
        return {"items": made, "x-kubernetes-list-type": "atomic"}

    def _values(self, value: Schema) -> Schema:
        inner = value.get("additionalProperties")
        if patterns := value.get("patternProperties"):
            ((pattern, inner),) = patterns.items()
            keys = Cel(f"self.all(k, k.matches({pattern!r}))", f"String should match pattern '{pattern}'")
            return with_rules({"additionalProperties": self._one_of_many(inner)}, [keys])
        if isinstance(inner, dict):
            return {"additionalProperties": self._one_of_many(inner)}
        return {"x-kubernetes-preserve-unknown-fields": True}

    def _one_of_many(self, value: Schema) -> Schema:
        self._many += 1
        try:
            return self._value(value)
        finally:
            self._many -= 1

    def _number_or_text(self, kind: str, value: Schema) -> Schema:
        bounds = next((item for item in value.get("anyOf", []) if item.get("type") in ("integer", "number")), value)
        # Behind a validator pydantic leaves bounds by its own names.
        bounds = {_BOUNDS.get(key, key): item for key, item in bounds.items()}
        made: Schema = {"x-kubernetes-int-or-string": True}
        if kind in AMOUNTS and not self._many:
            return with_rules(made, of_amount(kind, bounds))
        return made | {"pattern": PATTERNS[kind]} | _bounds(bounds)


def plain(value: Any) -> Any:
    """A default as JSON has it: without what is None, and whole numbers as such."""
    if isinstance(value, BaseModel):
        return {
            name: plain(item) for name in type(value).model_fields
            if (item := getattr(value, name)) is not None and (type(value), name) not in UNFIXED
        }
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _bounds(value: Schema) -> Schema:
    made: Schema = {}
    for end, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if end in value:
            made[end] = value[end]
        if exclusive in value and value[exclusive] < 2**63:     # the API server's whole numbers end there anyway
            made |= {end: value[exclusive], exclusive: True}
    return made


def _own_size(place: Place, made: Schema) -> Schema:
    sizes = next((SIZES[base, place.name] for base in place.owner.__mro__ if (base, place.name) in SIZES), {})
    return {key: min(most, made.get(key, most)) for key, most in sizes.items()}


def _may_be_null(value: Schema) -> bool:
    return any(item.get("type") == "null" for item in value.get("anyOf", []))


def _text(value: Schema) -> str:
    return " ".join(str(value.get("description", "")).split())


def _models(kind: type[BaseModel]) -> dict[str, type[BaseModel]]:
    """Every model that a model is made of, by its name."""
    found: dict[str, type[BaseModel]] = {}

    def visit(annotation: Any) -> None:
        for inner in get_args(annotation):
            visit(inner)
        if isinstance(annotation, type) and issubclass(annotation, BaseModel) and annotation.__name__ not in found:
            found[annotation.__name__] = annotation
            for field in annotation.model_fields.values():
                visit(field.annotation)

    visit(kind)
    return found

