"""Examples as people write them into inference requests, with the very conversion that training used."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from recmesh.data.records import Float32, IdColumn
from recmesh.data.transform import Transform
from recmesh.runtime.errors import InvalidArgument, Violation
from recmesh.spec.dataset import DatasetSpec, Feature

_COMPANIONS = (".lengths", ".weights")


def parse_row(text: str) -> dict[str, Any]:
    """`origin=JFK,hour=8,distance=2475` as an example; values are numbers, else text; lists: `tags=1|2`."""
    example: dict[str, Any] = {}
    for part in text.split(","):
        name, found, value = part.partition("=")
        if not found or not name.strip():
            raise InvalidArgument(
                "the example cannot be read", violations=[Violation(part, "must be FIELD=VALUE")]
            )
        items = [_value(item) for item in value.split("|")]
        example[name.strip()] = items if len(items) > 1 else items[0]
    return example


def features_of(metadata: Mapping[str, Any]) -> DatasetSpec:
    """What a model's inputs say of its features, when its dataset is not known: no transforms."""
    features = []
    for tensor in metadata["inputs"]:
        name = str(tensor["name"])
        if name.endswith(_COMPANIONS):
            continue
        dense, ragged = tensor["datatype"].startswith("FP"), len(tensor["shape"]) > 1
        features.append({"name": name, "kind": "dense" if dense else "bag" if ragged else "single"})
    return DatasetSpec.parse({"source": {"files": ["examples"]}, "features": features})


def request_for(
    metadata: Mapping[str, Any], examples: Sequence[Mapping[str, Any]], *, data: DatasetSpec | None = None
) -> dict[str, Any]:
    """An Open Inference Protocol request for the examples; InvalidArgument names what an example lacks."""
    if not examples:
        raise InvalidArgument("there is no example")
    spec = data or features_of(metadata)
    ids, dense = _inputs(Transform.of(spec), examples)
    wanted = {str(tensor["name"]): tensor["shape"] for tensor in metadata["inputs"]}
    inputs: list[dict[str, Any]] = []
    dense_names = [feature.name for feature in spec.features if feature.kind == "dense"]
    for position, name in enumerate(dense_names):
        if name in wanted:
            inputs.append(_tensor(name, "FP32", dense[:, position]))
    for name, column in ids.items():
        if name not in wanted:
            continue
        if column.offsets is None:
            inputs.append(_tensor(name, "INT64", column.values))
            continue
        shape = wanted[name]
        padded = column.padded(int(shape[1]) if len(shape) > 1 and shape[1] > 0 else 0)
        inputs.append(_tensor(name, "INT64", padded.ids))
        inputs.append(_tensor(f"{name}.lengths", "INT64", padded.lengths))
        if f"{name}.weights" in wanted:
            inputs.append(_tensor(f"{name}.weights", "FP32", padded.weights))
    return {"inputs": inputs}


def predictions(answer: Mapping[str, Any]) -> Iterator[str]:
    """One line per example: its numbers."""
    outputs = answer.get("outputs", [])
    tensor = next(
        (item for item in outputs if item["name"] == "predictions"), outputs[0] if outputs else None
    )
    if tensor is None:
        return
    values = np.asarray(tensor["data"], np.float64).reshape(tensor["shape"])
    for row in values:
        yield " ".join(f"{float(value):.6f}" for value in np.atleast_1d(row))


def _inputs(transform: Transform, examples: Sequence[Mapping[str, Any]]) -> tuple[dict[str, IdColumn], Float32]:
    columns: dict[str, Any] = {}
    wrong: list[Violation] = []
    given, known = {key for example in examples for key in example}, set[str]()
    for feature in transform.features:
        sources = feature.source_columns
        for name in sources:
            key = name if name in given or len(sources) > 1 else feature.name
            known.add(key)
            if key not in given:
                wrong.append(Violation(feature.name if len(sources) == 1 else name, "is in no example"))
            values = [example.get(key) for example in examples]
            faults = [reason for value in values if (reason := _fault(feature, value))]
            if faults:
                wrong.append(Violation(feature.name if len(sources) == 1 else name, faults[0]))
                continue
            # A column is of lists where one example has a list; else it stays what a feature's function is to get.
            if feature.kind in ("bag", "sequence") and any(isinstance(value, list) for value in values):
                values = [value if isinstance(value, list) or value is None else [value] for value in values]
            try:
                columns[name] = pa.array(values)
            except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
                wrong.append(Violation(feature.name, "must be all integers or all text, in all examples"))
        if feature.weights:
            known.add(feature.weights)
            weights = [example.get(feature.weights) for example in examples]
            if all(_is_number(item) for value in weights for item in _items(value)):
                columns[feature.weights] = pa.array([_as_list(value) for value in weights])
            else:
                wrong.append(Violation(feature.weights, f"must be numbers: the weights of {feature.name}"))
    for name in sorted(given - known):
        wrong.append(Violation(name, "is no input of the model"))
    if wrong:
        raise InvalidArgument("the examples do not fit the model", violations=wrong)
    return transform.inputs(pa.table(columns), where="the examples")


def _as_list(value: Any) -> list[float | None] | None:
    """Weights as a feature has them: of a scalar, one."""
    return None if value is None else [None if item is None else float(item) for item in _items(value)]


def _fault(feature: Feature, value: Any) -> str:
    """What is wrong with an example's value; missing ones are allowed."""
    if feature.function is not None:        # it takes what it takes
        return ""
    if feature.kind == "dense" or (feature.boundaries and not isinstance(value, list)):
        return "" if value is None or _is_number(value) else f"must be a number, not {value!r}"
    if feature.kind == "single":
        return "" if value is None or _is_id(value) else f"must be one integer or text, not {value!r}"
    strange = [item for item in _items(value) if item is not None and not _is_id(item)]
    return f"must be integers or text, not {strange[0]!r}" if strange else ""


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError, OverflowError):
        return value is None
    return True


def _is_id(value: Any) -> bool:
    if isinstance(value, float):
        return value.is_integer() and abs(value) < 2**53
    return isinstance(value, str) or (isinstance(value, int) and -(2**63) <= value < 2**64)


def _tensor(name: str, datatype: str, values: Any) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": list(values.shape), "data": values.ravel().tolist()}


def _value(text: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, int | float) else text
