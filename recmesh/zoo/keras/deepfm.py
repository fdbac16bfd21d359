"""DeepFM (Guo et al., IJCAI 2017): factorisation machine and deep network over the same embeddings."""

import keras
from keras import layers

from recmesh.trainer.session import Job
from recmesh.zoo.defaults import DEFAULTS
from recmesh.zoo.keras.layers import Features, mlp, train
from recmesh.zoo.params import with_defaults


def main(job: Job) -> None:
    """Trains it on the job's data."""
    params = with_defaults(job.params, DEFAULTS["deepfm"])
    features = Features(job, params, linear=True)
    # Σ_{i<j} <v_i, v_j> = ½ Σ_d ((Σ_i v_id)² − Σ_i v_id²)
    square_of_sum = keras.ops.square(keras.ops.sum(features.fields, axis=1))
    sum_of_squares = keras.ops.sum(keras.ops.square(features.fields), axis=1)
    pairs = 0.5 * keras.ops.sum(square_of_sum - sum_of_squares, axis=1, keepdims=True)
    deep = mlp(features.flat, params["hidden"], dropout=params["dropout"])
    logits = layers.Dense(len(job.labels), name="head")(deep) + features.linear + pairs
    train(job, features.inputs, logits)
