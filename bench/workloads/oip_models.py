"""The models of `conformance`, exported by torch and TensorFlow alone: `python -m ... ROOT RUNS`."""

import json
import sys
from pathlib import Path
from typing import Any

MAX_LOOKS = 3_000_000
"""Of a request that waits for its file: a bound, should nobody make it."""


def main(root: Path, runs: Path) -> None:
    """Folders `<name>/1` under the root; the model `slow` writes to the file `runs`, and waits for `runs.go`."""
    _torch(root)
    _tensorflow(root, runs)


def _card(folder: Path, framework: str, inputs: dict[str, str], outputs: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    card = {
        "framework": framework,
        "inputs": [{"name": name, "dtype": dtype, "shape": [-1]} for name, dtype in inputs.items()],
        "outputs": [{"name": name, "dtype": dtype, "shape": [-1]} for name, dtype in outputs.items()],
    }
    (folder / "model.json").write_text(json.dumps(card))


def _torch(root: Path) -> None:
    import torch

    class Adder(torch.nn.Module):  # type: ignore[misc]  # torch is not analysed
        def forward(self, inputs: Any) -> Any:
            return {"predictions": inputs["x"] + inputs["id"].to(torch.float32)}

    class Half(torch.nn.Module):  # type: ignore[misc]  # as above
        def forward(self, inputs: Any) -> Any:
            return {"y": inputs["x"] * 2}

    models = {
        "adder": (Adder(), {"x": torch.zeros(3), "id": torch.zeros(3, dtype=torch.int64)}, {"predictions": "float32"}),
        "half": (Half(), {"x": torch.zeros(3, dtype=torch.float16)}, {"y": "float16"}),
    }
    for name, (module, example, outputs) in models.items():
        folder = root / name / "1"
        dtypes = {key: str(value.dtype).removeprefix("torch.") for key, value in example.items()}
        _card(folder, "torch", dtypes, outputs)
        shapes = ({key: {0: torch.export.Dim("batch", min=1)} for key in example},)
        torch.export.save(torch.export.export(module, (example,), dynamic_shapes=shapes), str(folder / "model.pt2"))


def _tensorflow(root: Path, runs: Path) -> None:
    import tensorflow as tf

    class Echo(tf.Module):  # type: ignore[misc]  # tensorflow has no types
        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "text")])  # type: ignore[untyped-decorator]
        def serve(self, text: Any) -> Any:
            return {"text": tf.identity(text)}

    class Slow(tf.Module):  # type: ignore[misc]  # as above
        @tf.function(input_signature=[  # type: ignore[untyped-decorator]  # as above
            tf.TensorSpec([None], tf.float32, "number"), tf.TensorSpec([None], tf.int32, "held"),
        ])
        def serve(self, number: Any, held: Any) -> Any:
            # The loop begins at what depends on the line: on one thread TensorFlow would else finish the loop first.
            with tf.control_dependencies([tf.print(number[0], output_stream=f"file://{runs}")]):
                begin = tf.constant(0) + 0 * held[0]

            def there(at: Any) -> Any:
                # The name depends on the round: TensorFlow would look once, before the loop, else.
                name = tf.strings.join([f"{runs}.go", tf.strings.substr(tf.strings.as_string(at), 0, 0)])
                return tf.size(tf.io.matching_files(name)) > 0

            (waited,) = tf.while_loop(
                lambda at: (at < held[0] * MAX_LOOKS) & ~there(at),
                lambda at: (at + 1,), (begin,),
            )  # fmt: skip
            return {"done": number + 0 * tf.cast(waited, tf.float32)}

    for name, module, inputs, outputs in (
        ("echo", Echo(), {"text": "string"}, {"text": "string"}),
        ("slow", Slow(), {"number": "float32", "held": "int32"}, {"done": "float32"}),
    ):
        folder = root / name / "1"
        _card(folder, "tensorflow", inputs, outputs)
        tf.saved_model.save(module, str(folder / "saved_model"), signatures={"serving_default": module.serve})


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
