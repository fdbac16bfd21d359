"""Mixed training in Keras: the towers of `recmesh.torch.mixed` as layers.

    x = recmesh.keras.EmbeddingCollection(tables, output="concat")(inputs)
    own = recmesh.keras.EmbeddingCollection(others, output="concat")(inputs)     # or x again: shared embeddings
    logits = MixedTowers(MemoryTower([256, 128]), AdaptTower([64]))(x, own)
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import keras
from keras import layers, ops

from recmesh.spec.dataset import SampleKind

_turn: ContextVar[SampleKind] = ContextVar("recmesh_turn", default="stream")


@contextmanager
def training_on(kind: SampleKind) -> Iterator[None]:
    """Within, calls of a model are of samples of this kind; it says which tower has its turn."""
    token = _turn.set(kind)
    try:
        yield
    finally:
        _turn.reset(token)


class MixedTowers(layers.Layer):
    """Logits [B, labels] of the tower that has its turn; of the adapt tower whenever it is not training.

    `memory` maps its inputs to logits and a hidden layer; `adapt` maps its inputs beside that hidden layer to what is
    added to those logits. No gradient flows from the adapt tower to the memory tower, nor to what only that reads.
    """

    def __init__(self, memory: keras.layers.Layer, adapt: keras.layers.Layer, **options: Any) -> None:
        super().__init__(**options)
        self.memory, self.adapt = memory, adapt

    def call(self, memory_inputs: Any, adapt_inputs: Any, training: bool = False) -> Any:
        """Of float32 [B, width] each; see the class."""
        if training and _turn.get() == "batch":
            return self.memory(memory_inputs, training=True)[0]
        logits, hidden = (ops.stop_gradient(told) for told in self.memory(memory_inputs, training=False))
        return logits + self.adapt(ops.concatenate([adapt_inputs, hidden], axis=1), training=training)


class MemoryTower(layers.Layer):
    """A deep network of ReLU layers: its logits [B, labels], and its last hidden layer."""

    def __init__(self, hidden: Sequence[int], *, labels: int = 1, dropout: float = 0.0, **options: Any) -> None:
        super().__init__(**options)
        self.deep = keras.Sequential(_deep(hidden, dropout), name="deep")
        self.head = layers.Dense(labels, name="head")

    def call(self, inputs: Any, training: bool = False) -> Any:
        """Of float32 [B, width]."""
        hidden = self.deep(inputs, training=training)
        return self.head(hidden), hidden


class AdaptTower(layers.Layer):
    """A deep network that begins as zero, so that a model which has not seen the stream answers as its memory."""

    def __init__(self, hidden: Sequence[int], *, labels: int = 1, dropout: float = 0.0, **options: Any) -> None:
        super().__init__(**options)
        self.deep = keras.Sequential(_deep(hidden, dropout), name="deep")
        self.head = layers.Dense(labels, kernel_initializer="zeros", name="head")

    def call(self, inputs: Any, training: bool = False) -> Any:
        """Of float32 [B, width], the memory's hidden layer included."""
        return self.head(self.deep(inputs, training=training))


def _deep(hidden: Sequence[int], dropout: float) -> list[Any]:
    made: list[Any] = []
    for number, units in enumerate(hidden):
        made.append(layers.Dense(units, activation="relu", name=f"hidden_{number}"))
        if dropout:
            made.append(layers.Dropout(dropout, name=f"dropout_{number}"))
    return made
