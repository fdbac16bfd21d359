"""Tiny exported models for serving tests, as folders with `model.json`."""

import json
from pathlib import Path
from typing import Any

from tests.support.gateway import CARD


def torch_model(
    folder: Path, *, bias: float = 0.0, names: tuple[str, str] = ("x", "id"), products: int = 0
) -> Path:
    """predictions = x + id + bias, exported by torch alone, its inputs called so; the folder. `products` of matrices,
    tens of milliseconds each, make it slow."""
    import torch

    class Model(torch.nn.Module):  # type: ignore[misc]  # torch is not analysed
        def forward(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            total = inputs[names[0]] + inputs[names[1]].to(torch.float32) + bias
            if products:
                matrix = torch.zeros(1024, 1024) + 0 * total[0]
                for _ in range(products):
                    matrix = matrix @ matrix
                total = total + matrix[0, 0]
            return {"predictions": total}

    example = {names[0]: torch.zeros(3), names[1]: torch.zeros(3, dtype=torch.int64)}
    batch = torch.export.Dim("batch", min=1)
    shapes = {name: {0: batch} for name in example}
    program = torch.export.export(Model(), (example,), dynamic_shapes=(shapes,))
    folder.mkdir(parents=True)
    torch.export.save(program, str(folder / "model.pt2"))
    inputs = [{**entry, "name": name} for name, entry in zip(names, CARD["inputs"], strict=True)]
    (folder / "model.json").write_text(json.dumps({**CARD, "inputs": inputs}))
    return folder


def tensorflow_model(folder: Path) -> Path:
    """predictions = x + id, and the length of a string, as a SavedModel; the folder. It counts up to the largest id."""
    import tensorflow as tf

    class Model(tf.Module):  # type: ignore[misc]  # tensorflow has no types
        @tf.function(  # type: ignore[untyped-decorator]  # as above
            input_signature=[
                tf.TensorSpec([None], tf.float32, "x"),
                tf.TensorSpec([None], tf.int64, "id"),
                tf.TensorSpec([None, None], tf.int64, "tags_lengths"),
                tf.TensorSpec([None], tf.string, "city"),
            ]
        )
        def serve(self, x: Any, id: Any, tags_lengths: Any, city: Any) -> Any:
            total = tf.cast(tf.reduce_sum(tags_lengths, axis=1), tf.float32)
            last = tf.reduce_max(id)
            counted = tf.while_loop(lambda at: at < last, lambda at: (at + 1,), [tf.constant(0, tf.int64)])[0]
            return {
                "predictions": x + tf.cast(id, tf.float32) + total + 0.0 * tf.cast(counted, tf.float32),
                "city_bytes": tf.strings.length(city),
                "shout": tf.strings.upper(city),
            }

    model = Model()
    folder.mkdir(parents=True)
    tf.saved_model.save(model, str(folder / "saved_model"), signatures={"serving_default": model.serve})
    card = {
        "framework": "tensorflow",
        "inputs": [
            {"name": "x", "kind": "dense", "dtype": "float32", "shape": [-1]},
            {"name": "id", "kind": "single", "dtype": "int64", "shape": [-1]},
            {"name": "tags.lengths", "dtype": "int64", "shape": [-1, -1]},
            {"name": "city", "dtype": "string", "shape": [-1]},
        ],
        "outputs": [
            {"name": "predictions", "dtype": "float32", "shape": [-1]},
            {"name": "city_bytes", "dtype": "int32", "shape": [-1]},
            {"name": "shout", "dtype": "string", "shape": [-1]},
        ],
    }
    (folder / "model.json").write_text(json.dumps(card))
    return folder
