"""A model's inputs: symbolic, of a training step, and of a request. All have the names of model.json."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from recmesh.trainer.card import inputs_of
from recmesh.trainer.layout import Arena
from recmesh.trainer.session import EmbeddingTable, Floats, Ints, Job

if TYPE_CHECKING:
    from recmesh.data import Batch, IdColumn


def inputs(job: Job) -> dict[str, Any]:
    """A `keras.Input` for each of the job's features, by name.

    Dense: float32 [B, 1]; single: int64 [B]; bag and sequence: int64 [B, L], with `NAME.lengths` int64 [B] and,
    where the dataset has them, `NAME.weights` float32 [B, L]. Give the dictionary to `keras.Model` as it is.
    """
    made: dict[str, Any] = {}
    for feature in job.features:
        for item in inputs_of(feature):
            shape = (1,) if item["kind"] == "dense" else (None,) * (len(item["shape"]) - 1)
            made[item["name"]] = keras.Input(shape, dtype=item["dtype"], name=item["name"])
    return made


def signature(job: Job) -> dict[str, Any]:
    """By name: what a training step feeds for each input."""
    specs: dict[str, Any] = {}
    for feature in job.features:
        for item in inputs_of(feature):
            shape = (None, 1) if item["kind"] == "dense" else (None,) * len(item["shape"])
            specs[item["name"]] = tf.TensorSpec(shape, getattr(tf, item["dtype"]), name=identifier(item["name"]))
    return specs


def identifier(name: str) -> str:
    """The name as a Python identifier, which a SavedModel's signature needs."""
    return "".join(letter if letter.isalnum() or letter == "_" else "_" for letter in name)


def feed(
    job: Job,
    columns: "Batch",
    index: Mapping[str, Ints],
    arenas: Mapping[int, Arena],
    home: Mapping[str, EmbeddingTable],
) -> dict[str, Any]:
    """The batch by input name; ids are replaced by their rows in the arena of their table's dimension."""
    fed: dict[str, Any] = {name: columns.dense[:, k : k + 1] for k, name in enumerate(job.dense_features)}
    for name, feature in job.id_features.items():
        column = columns.ids[name]
        table = home.get(name)
        place = column.values if table is None else index[name] + arenas[table.dim].offset[table.name]
        if feature.kind == "single":
            fed[name] = place
        else:
            fed |= _padded(name, place, column, weighted=bool(feature.weights))
    return fed


def _padded(name: str, place: Ints, column: "IdColumn", *, weighted: bool) -> dict[str, Any]:
    offsets = np.asarray(column.offsets)
    lengths = np.diff(offsets)
    inside = np.arange(max(int(lengths.max(initial=0)), 1)) < lengths[:, None]
    ids = np.zeros(inside.shape, np.int64)
    ids[inside] = place
    fed: dict[str, Any] = {name: ids, f"{name}.lengths": lengths}
    if weighted:
        weights: Floats = np.zeros(inside.shape, np.float32)
        weights[inside] = 1.0 if column.weights is None else column.weights
        fed[f"{name}.weights"] = weights
    return fed
