"""recmesh in Keras: embeddings without a fixed size inside an ordinary model, trained by `model.fit`.

    def main(job):
        inputs = recmesh.keras.inputs(job)
        x = recmesh.keras.EmbeddingCollection(tables, output="concat")(inputs)
        outputs = keras.layers.Dense(1, activation="sigmoid")(x)
        model = keras.Model(inputs, outputs)
        model.compile(keras.optimizers.Adagrad(0.01), loss="binary_crossentropy")
        model.fit(recmesh.keras.attach(job, model))

The same lines train in a worker and, with `job = recmesh.local_job("job.yaml")`, alone in a notebook.
Keras runs on TensorFlow here.
"""

import os

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

from recmesh.keras.embedding import Embedding, EmbeddingCollection  # the backend is chosen first
from recmesh.keras.inputs import inputs
from recmesh.keras.mixed import AdaptTower, MemoryTower, MixedTowers
from recmesh.keras.training import attach

__all__ = [
    "AdaptTower", "Embedding", "EmbeddingCollection", "MemoryTower", "MixedTowers", "attach", "inputs",
]
