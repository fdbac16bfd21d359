"""The feature transform: how columns become a model's inputs, the same wherever that happens.

Readers of training and evaluation run it, requests for predictions do, and an exported model carries it in its
`model.json`, so that what a model is asked with is what it learned from, bit for bit.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from recmesh.data.columns import dense_of, ids_of_feature
from recmesh.data.faults import wrong
from recmesh.data.records import Float32, IdColumn
from recmesh.runtime.errors import InvalidArgument
from recmesh.spec.dataset import DatasetSpec, Feature

VERSION = 1
"""Of the document: to be raised when the same features would give other values."""


@dataclass(frozen=True, slots=True)
class Transform:
    """Features, in the order of the dataset."""

    features: tuple[Feature, ...]
    int_columns: frozenset[str] = frozenset()
    """Text columns whose parts, split by a separator, are integers."""
    types: tuple[tuple[str, str], ...] = ()
    """Of the columns whose types the dataset declares. A request must have them, too: `12` and `"12"` are two ids."""

    @classmethod
    def of(cls, spec: DatasetSpec) -> Self:
        """A dataset's."""
        types = [item for view in spec.views() for item in view.source.types.items()]
        read = {name for each in spec.features for name in (*each.source_columns, each.weights)}
        return cls(
            tuple(spec.features), frozenset(name for name, kind in types if kind == "int"),
            tuple(sorted((name, kind) for name, kind in dict(types).items() if name in read)),
        )

    def inputs(self, table: Any, *, where: str) -> tuple[dict[str, IdColumn], Float32]:
        """Ids by feature, and float32 [B, dense features], of an Arrow table. Errors name the field and `where`."""
        ids = {
            feature.name: ids_of_feature(
                table, feature, are_int=feature.source_columns[0] in self.int_columns, where=where
            )
            for feature in self.features
            if feature.kind != "dense"
        }
        numbers = [feature for feature in self.features if feature.kind == "dense"]
        dense = np.empty((table.num_rows, len(numbers)), np.float32)
        for index, feature in enumerate(numbers):
            dense[:, index] = dense_of(table, feature, where=where)
        return ids, dense

    def document(self) -> dict[str, Any]:
        """As JSON has it, without defaults."""
        features = [feature.model_dump(mode="json", exclude_defaults=True) for feature in self.features]
        return {"version": VERSION, "features": features, "int_columns": sorted(self.int_columns),
                "types": dict(self.types)}

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> Self:
        """From `document`; InvalidArgument for another version, or one that is none."""
        if document.get("version") != VERSION:
            raise wrong("transform.version", f"is {document.get('version')!r}; this recmesh knows {VERSION}")
        features, names, types = document.get("features"), document.get("int_columns", []), document.get("types", {})
        if not isinstance(features, list) or not isinstance(names, list) or not isinstance(types, dict):
            raise InvalidArgument("the transform of a model is damaged")
        return cls(
            tuple(Feature.parse(each) for each in features), frozenset(map(str, names)),
            tuple(sorted((str(name), str(kind)) for name, kind in types.items())),
        )
