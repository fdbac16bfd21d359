"""Layers that several models share, and the way they all train."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
from keras import layers

import recmesh.keras
from recmesh.keras import EmbeddingCollection
from recmesh.runtime.errors import InvalidArgument
from recmesh.spec.job import Optimizer
from recmesh.trainer.session import EmbeddingTable, Init, Job
from recmesh.zoo.params import NORM_EPSILON, NORM_MOMENTUM, embedding_scale

_OPTIMIZERS: dict[str, Callable[[Optimizer], Any]] = {
    "sgd": lambda o: keras.optimizers.SGD(o.lr),
    "adagrad": lambda o: keras.optimizers.Adagrad(
        o.lr, initial_accumulator_value=o.initial_accumulator, epsilon=o.eps
    ),
    "adam": lambda o: keras.optimizers.Adam(o.lr, beta_1=o.beta1, beta_2=o.beta2, epsilon=o.eps),
    "ftrl": lambda o: keras.optimizers.Ftrl(
        o.lr, initial_accumulator_value=o.initial_accumulator, l1_regularization_strength=o.l1,
        l2_regularization_strength=o.l2
    ),
}


class Features:
    """A job's inputs with their embeddings, and first-order weights where a model has a linear part."""

    def __init__(self, job: Job, params: Mapping[str, Any], *, linear: bool = False) -> None:
        if not job.id_features:
            raise InvalidArgument("this model needs at least one feature with ids")
        dim = params["embedding_dim"]
        self.inputs = recmesh.keras.inputs(job)
        # A feature looks up once: its first-order weight is the last column of its row.
        start = Init.uniform(embedding_scale(params))
        tables = [
            EmbeddingTable(name, dim + linear, pooling="mean", init=start) for name in job.id_features
        ]
        rows = EmbeddingCollection(tables, output="stack", name="embeddings")(self.inputs)
        # split, not slices: TensorFlow's gradient of a slice of the last axis is several times slower
        fields, *first_order = keras.ops.split(rows, [dim], axis=2) if linear else [rows]
        self.fields = _dropped(fields, params["embedding_dropout"])
        """[B, features, dim]"""
        self.dense = _dense([self.inputs[name] for name in job.dense_features], normalised=params["dense_norm"])
        """[B, dense features], None without any."""
        self.linear = _linear(first_order[0][:, :, 0], self.dense) if first_order else None
        """[B, 1]"""
        flat = layers.Reshape((len(tables) * dim,))(self.fields)
        self.flat = flat if self.dense is None else layers.Concatenate()([flat, self.dense])
        """[B, features·dim + dense features]"""


def _dropped(fields: Any, share: float) -> Any:
    return layers.Dropout(share, name="embedding_dropout")(fields) if share else fields


def _dense(columns: Sequence[Any], *, normalised: bool) -> Any:
    if not columns:
        return None
    together = layers.Concatenate()(columns) if len(columns) > 1 else columns[0]
    if not normalised:
        return together
    return layers.BatchNormalization(
        momentum=NORM_MOMENTUM, epsilon=NORM_EPSILON, center=False, scale=False, name="dense_norm"
    )(together)


def _linear(weights: Any, dense: Any) -> Any:
    total = keras.ops.sum(weights, axis=1, keepdims=True)
    return total if dense is None else total + layers.Dense(1, use_bias=False, name="linear_dense")(dense)


def mlp(x: Any, hidden: Sequence[int], *, dropout: float = 0.0) -> Any:
    """Dense and ReLU per hidden size."""
    for units in hidden:
        x = layers.Dense(units, activation="relu")(x)
        if dropout:
            x = layers.Dropout(dropout)(x)
    return x


def train(job: Job, inputs: Mapping[str, Any], logits: Any) -> None:
    """Compiles with the job's optimizer and cross entropy, and fits."""
    model = keras.Model(inputs, layers.Activation("sigmoid", name="predictions")(logits))
    kind = job.spec.training.optimizer.kind
    optimizer = _OPTIMIZERS["adagrad" if kind == "rowwise_adagrad" else kind](job.spec.training.optimizer)
    model.compile(optimizer, loss=keras.losses.BinaryCrossentropy())
    model.fit(recmesh.keras.attach(job, model), verbose=0)
