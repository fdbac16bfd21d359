"""A Keras model of your own on recmesh.

In a notebook or a shell, without a mesh:   python examples/keras_user_model.py
In the mesh, with workers and servers:      recmesh submit examples/keras_user_model.yaml

Both run the same `main(job)`.
"""

from pathlib import Path

import keras
from keras import layers

import recmesh
import recmesh.keras
from recmesh.keras import EmbeddingCollection


def main(job: recmesh.Job) -> None:
    """Trains by `fit`; the servers apply Adagrad to the dense layers, and the job's optimizer to the tables."""
    dim = job.params.get("dim", 16)
    inputs = recmesh.keras.inputs(job)
    looked = EmbeddingCollection(
        [
            recmesh.EmbeddingTable("airport", dim, ["origin", "destination"]),   # one table, two features
            recmesh.EmbeddingTable("route", dim),
            recmesh.EmbeddingTable("time", dim, ["hour", "weekday", "day"]),
        ],
        output="concat",
    )(inputs)
    x = layers.Concatenate()([looked, inputs["distance"]])
    x = layers.Dense(64, activation="relu")(x)
    model = keras.Model(inputs, layers.Dense(1, activation="sigmoid")(x))
    model.compile(keras.optimizers.Adagrad(0.01, initial_accumulator_value=0.0), loss="binary_crossentropy")
    model.fit(recmesh.keras.attach(job, model), verbose=2)


if __name__ == "__main__":
    alone = recmesh.local_job(Path(__file__).with_suffix(".yaml"))
    main(alone)
    print(alone.evaluate())
