"""A model's inputs: symbolic, and of a request. All have the names of model.json."""

from typing import Any

import keras
import tensorflow as tf

from recmesh.trainer.card import inputs_of
from recmesh.trainer.session import Job


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
    """By name: the shape and type of each input."""
    specs: dict[str, Any] = {}
    for feature in job.features:
        for item in inputs_of(feature):
            shape = (None, 1) if item["kind"] == "dense" else (None,) * len(item["shape"])
            specs[item["name"]] = tf.TensorSpec(shape, getattr(tf, item["dtype"]), name=identifier(item["name"]))
    return specs


def identifier(name: str) -> str:
    """The name as a Python identifier, which a SavedModel's signature needs."""
    return "".join(letter if letter.isalnum() or letter == "_" else "_" for letter in name)
