"""`model.json`: what an exported model's folder says of itself, for any framework."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from recmesh.data.transform import Transform
from recmesh.spec.dataset import DatasetSpec, Feature
from recmesh.trainer.session import EmbeddingTable, TableRows

CARD = "model.json"


def model_card(
    *,
    framework: str,
    data: DatasetSpec,
    labels: Sequence[str],
    tables: Sequence[EmbeddingTable],
    rows: Mapping[str, TableRows],
    metrics: Mapping[str, float],
    versions: Mapping[str, str],
) -> dict[str, Any]:
    """Inputs in the order of the dataset's features, with the companions that ragged ones need."""
    several = [len(labels)] if len(labels) > 1 else []
    return {
        "framework": framework,
        "transform": Transform.of(data).document(),
        "inputs": [item for feature in data.features for item in inputs_of(feature)],
        "outputs": [{"name": "predictions", "dtype": "float32", "shape": [-1, *several]}],
        "labels": list(labels),
        "tables": [
            {
                "name": table.name,
                "dim": table.dim,
                "features": list(table.features),
                "pooling": table.pooling,
                "rows": len(rows[table.name].ids) if table.name in rows else 0,
            }
            for table in tables
        ],
        "metrics": dict(metrics),
        "versions": dict(versions),
    }


def inputs_of(feature: Feature) -> list[dict[str, Any]]:
    """One entry, and for bags and sequences their lengths and weights."""
    name = feature.name
    if feature.kind == "dense":
        return [{"name": name, "kind": "dense", "dtype": "float32", "shape": [-1]}]
    if feature.kind == "single":
        return [{"name": name, "kind": "single", "dtype": "int64", "shape": [-1]}]
    longest = {"max_length": feature.max_length} if feature.kind == "sequence" else {}
    entries: list[dict[str, Any]] = [
        {"name": name, "kind": feature.kind, "dtype": "int64", "shape": [-1, -1], **longest},
        {"name": f"{name}.lengths", "kind": "lengths", "dtype": "int64", "shape": [-1]},
    ]
    if feature.weights:
        entries.append({"name": f"{name}.weights", "kind": "weights", "dtype": "float32", "shape": [-1, -1]})
    return entries


def write_card(directory: Path, card: Mapping[str, Any]) -> None:
    """Writes `model.json`, readable by people."""
    options = orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY
    (directory / CARD).write_bytes(orjson.dumps(card, option=options) + b"\n")
