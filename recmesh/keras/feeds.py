"""A batch on its way into the graph: few large tensors, of which the graph itself makes the model's inputs.

To convert an array to a tensor and pass it to a function costs 0.1 ms and more; a model has dozens of inputs and of
dense blocks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from recmesh.keras.inputs import signature
from recmesh.trainer.layout import Arena, DenseLayout
from recmesh.trainer.memory import aligned
from recmesh.trainer.session import EmbeddingTable, Floats, Ints, Job, index_of

if TYPE_CHECKING:
    from recmesh.data import Batch, IdColumn


class Feeds:
    """Of one job's inputs."""

    def __init__(self, job: Job) -> None:
        self._dense = job.dense_features
        self._singles = [name for name, feature in job.id_features.items() if feature.kind == "single"]
        self._others = {name: feature for name, feature in job.id_features.items() if feature.kind != "single"}
        apart = {*self._dense, *self._singles}
        self.signature = (
            tf.TensorSpec((len(self._singles), None), tf.int64),
            tf.TensorSpec((None, len(self._dense)), tf.float32),
            {name: spec for name, spec in signature(job).items() if name not in apart},
        )
        """Single ids [features, B], dense columns [B, features], and bags and sequences by input name."""

    def feed(
        self,
        columns: "Batch",
        index: Mapping[str, Ints],
        arenas: Mapping[int, Arena],
        home: Mapping[str, EmbeddingTable],
    ) -> Any:
        """The batch as `signature` has it; ids are replaced by their rows in the arena of their table's dimension."""
        singles = aligned((len(self._singles), columns.size), np.int64)
        for row, name in zip(singles, self._singles, strict=True):
            table = home.get(name)
            if table is None:
                row[:] = columns.ids[name].values
            else:
                np.add(index[name], arenas[table.dim].offset[table.name], out=row)
        fed: dict[str, Any] = {}
        for name, feature in self._others.items():
            column, table = columns.ids[name], home.get(name)
            place = column.values if table is None else index[name] + arenas[table.dim].offset[table.name]
            fed |= _padded(name, place, column, weighted=bool(feature.weights))
        return lend(singles), columns.dense, fed

    def twins(
        self,
        index: Mapping[str, Ints],
        arenas: Mapping[int, Arena],
        home: Mapping[str, EmbeddingTable],
        tables: Sequence[EmbeddingTable],
    ) -> dict[str, Any]:
        """For each table whose features have another one as `home`: int64 [rows in that one's arena], where the rows
        of the same ids are in its own."""
        made: dict[str, Any] = {}
        for table in tables:
            first = home[table.features[0]]
            if first is table:
                continue
            places = np.zeros(max(1, len(arenas[first.dim].values)), np.int64)
            for feature in table.features:
                there = index_of(index, first.name, feature) + arenas[first.dim].offset[first.name]
                places[there] = index_of(index, table.name, feature) + arenas[table.dim].offset[table.name]
            made[table.name] = places
        return made

    def inputs(self, fed: Any) -> dict[str, Any]:
        """The model's inputs by name, in the graph."""
        singles, dense, others = fed
        made = dict(others)
        if self._singles:
            made |= zip(self._singles, tf.unstack(singles), strict=True)
        if self._dense:
            made |= zip(self._dense, tf.split(dense, len(self._dense), axis=1), strict=True)
        return made


def lend(values: Floats | Ints) -> Any:
    """A tensor in the array's own memory, which must not change while it, or a variable that took it over, lives.

    `tf.constant` always copies.
    """
    return tf.experimental.dlpack.from_dlpack(values.__dlpack__())


def split(flat: Any, layout: DenseLayout) -> list[Any]:
    """The blocks of the flat tensor in their shapes, in order, in the graph."""
    sizes = [int(np.prod(block.shape, dtype=np.int64)) for block in layout.blocks]
    parts = tf.split(flat, sizes) if sizes else []
    return [tf.reshape(part, block.shape) for part, block in zip(parts, layout.blocks, strict=True)]


def concatenate(tensors: Sequence[Any]) -> Any:
    """The inverse of `split`."""
    return tf.concat([tf.zeros(0), *(tf.reshape(tensor, (-1,)) for tensor in tensors)], axis=0)


def _padded(name: str, place: Ints, column: "IdColumn", *, weighted: bool) -> dict[str, Any]:
    padded = replace(column, values=place).padded()
    fed: dict[str, Any] = {name: padded.ids, f"{name}.lengths": padded.lengths}
    if weighted:
        fed[f"{name}.weights"] = padded.weights
    return fed
