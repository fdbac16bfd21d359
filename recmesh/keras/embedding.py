"""The Keras layers that stand for embedding tables.

They hold no weights. Where rows come from is decided by whoever calls the model: a training step's rows, or an
exported model's own. That is `looking_up`, set around every call of the model.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, Protocol

import keras
import tensorflow as tf

from recmesh.runtime.errors import FailedPrecondition, InvalidArgument
from recmesh.trainer.session import EmbeddingTable

Output = Literal["dict", "stack", "concat"]
_LENGTHS, _WEIGHTS = ".lengths", ".weights"


class RowSource(Protocol):
    """Where rows come from."""

    def look_up(self, table: EmbeddingTable, ids: Any) -> Any:
        """float32 [*ids.shape, dim]."""


_source: ContextVar[RowSource | None] = ContextVar("recmesh_row_source", default=None)


@contextmanager
def looking_up(source: RowSource) -> Iterator[None]:
    """Within, the layers take their rows from here."""
    token = _source.set(source)
    try:
        yield
    finally:
        _source.reset(token)


class EmbeddingCollection(keras.layers.Layer):
    """Embedding tables, as torchrec names them; called with the dictionary of `recmesh.keras.inputs`.

    `dict` gives by feature [B, dim] of single ids, and of bags and sequences as the table pools them; where its
    pooling is `none`, [B, L, dim], zero behind the end, and `NAME.mask` float32 [B, L]. `stack` gives
    [B, features, dim] of all that is pooled, in the tables' order; `concat` [B, sum of dims].
    """

    def __init__(self, tables: Sequence[EmbeddingTable], *, output: Output = "dict", **options: Any) -> None:
        super().__init__(**options)
        if output not in ("dict", "stack", "concat"):
            raise InvalidArgument(f"output is dict, stack or concat, not {output!r}")
        if output == "stack" and len({table.dim for table in tables}) != 1:
            raise InvalidArgument(f"stack needs tables of one dimension, not {[t.dim for t in tables]}")
        self.tables = tuple(tables)
        self.output_form = output

    def call(self, inputs: Mapping[str, Any]) -> Any:
        """See the class."""
        source = _source.get()
        if source is None:
            raise FailedPrecondition(
                "the model's embeddings live on the parameter servers: train it by fit(attach(job, model)), "
                "or export it"
            )
        if self.output_form == "dict":
            return {
                name: value
                for table in self.tables for feature in table.features
                for name, value in _embedded(source, table, feature, inputs).items()
            }
        pooled = [
            (table, feature) for table in self.tables for feature in table.features
            if _is_pooled(table, feature, inputs)
        ]
        if all(_is_single(feature, inputs) for _, feature in pooled) and len({t.dim for t, _ in pooled}) == 1:
            ids = [inputs[feature] for _, feature in pooled]
            stacked = _look_up_all(source, [table for table, _ in pooled], ids)
        else:
            vectors = [_embedded(source, table, feature, inputs)[feature] for table, feature in pooled]
            if self.output_form == "concat":
                return tf.concat(vectors, axis=1)
            stacked = tf.stack(vectors, axis=1)
        if self.output_form == "stack":
            return stacked
        return tf.reshape(stacked, (-1, len(pooled) * pooled[0][0].dim))

    def compute_output_spec(self, inputs: Mapping[str, Any]) -> Any:
        """Shapes without rows, for building the model."""
        def tensor(*shape: int | None) -> Any:
            return keras.KerasTensor((None, *shape), dtype="float32")

        missing = [f for table in self.tables for f in table.features if f not in inputs]
        if missing:
            raise InvalidArgument(f"the model's inputs lack {', '.join(missing)}; give all of recmesh.keras.inputs")
        made: dict[str, Any] = {}
        dims: list[int] = []
        for table in self.tables:
            for feature in table.features:
                if _is_pooled(table, feature, inputs):
                    made[feature] = tensor(table.dim)
                    dims.append(table.dim)
                else:
                    made[feature], made[f"{feature}.mask"] = tensor(None, table.dim), tensor(None)
        if self.output_form == "dict":
            return made
        return tensor(len(dims), dims[0]) if self.output_form == "stack" else tensor(sum(dims))


class Embedding(EmbeddingCollection):
    """One table of one feature: [B, dim]; where its pooling is `none`, the dictionary of values and mask."""

    def __init__(self, table: EmbeddingTable, **options: Any) -> None:
        if len(table.features) != 1:
            raise InvalidArgument(f"table {table.name!r} has several features: take EmbeddingCollection")
        super().__init__([table], **options)
        self.feature = table.features[0]

    def call(self, inputs: Mapping[str, Any]) -> Any:
        """See the class."""
        return self._only(super().call(inputs))

    def compute_output_spec(self, inputs: Mapping[str, Any]) -> Any:
        """See EmbeddingCollection.compute_output_spec."""
        return self._only(super().compute_output_spec(inputs))

    def _only(self, made: Any) -> Any:
        return made[self.feature] if isinstance(made, dict) and len(made) == 1 else made


def _is_single(feature: str, inputs: Mapping[str, Any]) -> bool:
    return f"{feature}{_LENGTHS}" not in inputs


def _is_pooled(table: EmbeddingTable, feature: str, inputs: Mapping[str, Any]) -> bool:
    return _is_single(feature, inputs) or table.pooling != "none"


def _look_up_all(source: RowSource, tables: Sequence[EmbeddingTable], ids: Sequence[Any]) -> Any:
    """[B, features, dim]; one gather where the source keeps the tables together."""
    together = getattr(source, "look_up_together", None)
    if together is not None:
        return together(tables, tf.stack(list(ids), axis=1))
    return tf.stack([source.look_up(table, each) for table, each in zip(tables, ids, strict=True)], axis=1)


def _embedded(
    source: RowSource, table: EmbeddingTable, feature: str, inputs: Mapping[str, Any]
) -> dict[str, Any]:
    ids = inputs[feature]
    if _is_single(feature, inputs):
        return {feature: source.look_up(table, ids)}
    mask = tf.sequence_mask(inputs[f"{feature}{_LENGTHS}"], tf.shape(ids)[1], dtype=tf.float32)
    values = source.look_up(table, ids) * mask[:, :, None]
    if table.pooling == "none":
        return {feature: values, f"{feature}.mask": mask}
    if table.pooling == "max":
        lowest = tf.where(mask[:, :, None] > 0, values, -float("inf"))
        some = tf.reduce_max(mask, axis=1, keepdims=True) > 0
        return {feature: tf.where(some, tf.reduce_max(lowest, axis=1), 0.0)}
    weights = mask * inputs[f"{feature}{_WEIGHTS}"] if f"{feature}{_WEIGHTS}" in inputs else mask
    total = tf.reduce_sum(values * weights[:, :, None], axis=1)
    if table.pooling == "sum":
        return {feature: total}
    return {feature: tf.math.divide_no_nan(total, tf.reduce_sum(weights, axis=1, keepdims=True))}
