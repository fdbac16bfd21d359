"""xDeepFM (Lian et al., KDD 2018): explicit crosses of fields by a compressed interaction network (CIN)."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import layers

from recmesh.trainer.session import Job
from recmesh.zoo.defaults import DEFAULTS
from recmesh.zoo.keras.layers import Features, mlp, train
from recmesh.zoo.params import with_defaults


@keras.saving.register_keras_serializable("recmesh")
class CompressedInteraction(layers.Layer):
    """X^k_h = Σ_ij W^k_hij (X^{k−1}_i ∘ X^0_j) (eq. 6); sums over the dimension of all levels, [B, Σ sizes] (eq. 8)."""

    def __init__(self, sizes: Sequence[int], **options: Any) -> None:
        super().__init__(**options)
        self.sizes = tuple(sizes)

    def build(self, input_shape: Any) -> None:
        """One kernel [previous, fields, size] per level."""
        fields = previous = int(input_shape[1])
        self.kernels = []
        for level, size in enumerate(self.sizes):
            kernel = self.add_weight(
                shape=(previous * fields, size), initializer="glorot_uniform", name=f"kernel_{level}"
            )
            self.kernels.append(kernel)
            previous = size

    def call(self, x: Any) -> Any:
        """[B, fields, dim] to [B, Σ sizes]."""
        fields, dim = x.shape[1], x.shape[2]
        first = keras.ops.transpose(x, (0, 2, 1))          # [B, dim, fields]
        level, sums = first, []
        for kernel in self.kernels:
            outer = level[:, :, :, None] * first[:, :, None, :]
            level = keras.ops.matmul(keras.ops.reshape(outer, (-1, dim, level.shape[2] * fields)), kernel)
            sums.append(keras.ops.sum(level, axis=1))
        return keras.ops.concatenate(sums, axis=1)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """[B, Σ sizes]."""
        return (input_shape[0], sum(self.sizes))


def main(job: Job) -> None:
    """Trains it on the job's data."""
    params = with_defaults(job.params, DEFAULTS["xdeepfm"])
    features = Features(job, params, linear=True)
    crossed = CompressedInteraction(params["cin"], name="cin")(features.fields)
    deep = mlp(features.flat, params["hidden"], dropout=params["dropout"])
    logits = layers.Dense(len(job.labels), name="head")(layers.Concatenate()([deep, crossed])) + features.linear
    train(job, features.inputs, logits)
