"""Examples as people write them into inference requests, with the very conversion that training used."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from recmesh.data.examples import table_of
from recmesh.data.transform import Transform
from recmesh.runtime.errors import InvalidArgument, Violation
from recmesh.spec.dataset import DatasetSpec

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
    transform = Transform.of(spec)
    ids, dense = transform.inputs(table_of(transform, examples), where="the examples")
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


def _tensor(name: str, datatype: str, values: Any) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": list(values.shape), "data": values.ravel().tolist()}


def _value(text: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, int | float) else text
