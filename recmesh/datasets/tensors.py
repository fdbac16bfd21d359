"""Batches as a framework's tensors, under the names of an exported model's inputs."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from recmesh.data import Batch
from recmesh.data.loading import Loader, State
from recmesh.spec.dataset import DatasetSpec, SampleKind

T = TypeVar("T")
Item = tuple[dict[str, T], T, T | None]


class TensorLoader(Generic[T]):
    """See `recmesh.data.loading.Loader`; the items are tensors."""

    def __init__(self, loader: Loader, spec: DatasetSpec, convert: Callable[[Any], T]) -> None:
        self._loader, self.spec, self._convert = loader, spec, convert
        self.kind: SampleKind = "batch"
        """Of the samples of the item that was handed out last."""

    def __len__(self) -> int:
        """Batches that are left."""
        return len(self._loader)

    def __iter__(self) -> Iterator[Item[T]]:
        return self

    def __next__(self) -> Item[T]:
        batch = next(self._loader)
        self.kind = batch.kind
        weight = None if batch.weight is None else self._convert(batch.weight)
        inputs = {name: self._convert(values) for name, values in arrays_of(batch, self.spec).items()}
        return inputs, self._convert(batch.labels), weight

    def fork(self) -> "TensorLoader[T]":
        """See Loader.fork."""
        return TensorLoader(self._loader.fork(), self.spec, self._convert)

    def state_dict(self) -> State:
        """See Loader.state_dict."""
        return self._loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See Loader.load_state_dict."""
        self._loader.load_state_dict(state)


def arrays_of(batch: Batch, spec: DatasetSpec) -> dict[str, Any]:
    """By input: float32 [B] dense, int64 [B] single; int64 [B, L] bags and sequences with `NAME.lengths` int64 [B] and,
    where the dataset has them, `NAME.weights` float32 [B, L]."""
    made: dict[str, Any] = {}
    dense = iter(range(batch.dense.shape[1]))
    for feature in spec.features:
        if feature.kind == "dense":
            made[feature.name] = batch.dense[:, next(dense)]
            continue
        column = batch.ids[feature.name]
        if column.offsets is None:
            made[feature.name] = column.values
            continue
        padded = column.padded()
        made[feature.name], made[f"{feature.name}.lengths"] = padded.ids, padded.lengths
        if feature.weights:
            made[f"{feature.name}.weights"] = padded.weights
    return made


def to_torch(values: Any) -> Any:
    """A tensor of its own: batches may be views of a cache."""
    import torch

    return torch.from_numpy(values.copy())


def to_tf(values: Any) -> Any:
    """A tensor of its own."""
    import tensorflow as tf

    return tf.constant(values)


def as_tf_dataset(loader: TensorLoader[Any]) -> Any:
    """A `tf.data.Dataset` of what the loader has left now, as `keras.Model.fit` takes it: (inputs, labels[, weights]).

    Keras looks at the first batch and begins again, so each pass over the dataset begins where the loader stands now;
    the loader itself stays there.
    """
    import tensorflow as tf

    start = loader.fork()

    def items() -> Iterator[Any]:
        for inputs, labels, weight in start.fork():
            yield (inputs, labels) if weight is None else (inputs, labels, weight)

    inputs: dict[str, Any] = {}
    for feature in loader.spec.features:
        if feature.kind == "dense":
            inputs[feature.name] = tf.TensorSpec((None,), tf.float32)
        elif feature.kind == "single":
            inputs[feature.name] = tf.TensorSpec((None,), tf.int64)
        else:
            inputs[feature.name] = tf.TensorSpec((None, None), tf.int64)
            inputs[f"{feature.name}.lengths"] = tf.TensorSpec((None,), tf.int64)
        if feature.weights:
            inputs[f"{feature.name}.weights"] = tf.TensorSpec((None, None), tf.float32)
    labels = tf.TensorSpec((None, len(loader.spec.label_columns)), tf.float32)
    weight = (tf.TensorSpec((None,), tf.float32),) if loader.spec.weight else ()
    made = tf.data.Dataset.from_generator(items, output_signature=(inputs, labels, *weight))
    return made.apply(tf.data.experimental.assert_cardinality(len(start)))
