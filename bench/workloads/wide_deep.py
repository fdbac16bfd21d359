"""A Wide & Deep of less than a millisecond, in plain torch: 26 ids and 13 numbers to a probability.

One row of a table holds an id's vector and, as its last number, its first-order weight, so a request looks rows up
once. Whole requests come from here too, as bytes of the Open Inference Protocol over HTTP.
"""

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from recmesh.pb import inference_pb2 as pb

IDS, NUMBERS, WIDTH = 26, 13, 16
ROWS = 4_000
"""Of each of the 26 tables: what a request costs here hardly depends on it."""
HIDDEN = (256, 128)
REQUESTS = 64
"""Different ones, sent in turn."""

CARD: dict[str, Any] = {
    "framework": "torch",
    "inputs": [
        {"name": "ids", "dtype": "int64", "shape": [-1, IDS]},
        {"name": "numbers", "dtype": "float32", "shape": [-1, NUMBERS]},
    ],
    "outputs": [{"name": "predictions", "dtype": "float32", "shape": [-1]}],
}


def write(
    folder: Path, *, seed: int = 1, serving: dict[str, Any] | None = None, hidden: Sequence[int] = HIDDEN
) -> None:
    """The exported model in `folder`: `model.pt2` and `model.json`."""
    import torch
    from torch import nn

    class WideDeep(nn.Module):  # type: ignore[misc]  # torch is not analysed
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(IDS * ROWS, WIDTH + 1)
            self.register_buffer("first", torch.arange(IDS) * ROWS)
            sizes = (IDS * WIDTH + NUMBERS, *hidden)
            layers: list[Any] = []
            for taken, given in itertools.pairwise(sizes):
                layers += [nn.Linear(taken, given), nn.ReLU()]
            self.deep = nn.Sequential(*layers, nn.Linear(hidden[-1], 1))
            self.wide = nn.Linear(NUMBERS, 1)

        def forward(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            found = self.table(inputs["ids"] + self.first)
            vectors = found[:, :, :WIDTH].flatten(1)
            deep = self.deep(torch.cat([vectors, inputs["numbers"]], 1))
            wide = found[:, :, WIDTH].sum(1, keepdim=True) + self.wide(inputs["numbers"])
            return {"predictions": (deep + wide).squeeze(1).sigmoid()}

    torch.manual_seed(seed)
    example = {"ids": torch.zeros(3, IDS, dtype=torch.int64), "numbers": torch.zeros(3, NUMBERS)}
    batch = torch.export.Dim("batch", min=1)
    program = torch.export.export(
        WideDeep().eval(), (example,), dynamic_shapes=({name: {0: batch} for name in example},)
    )
    folder.mkdir(parents=True, exist_ok=True)
    torch.export.save(program, str(folder / "model.pt2"))
    (folder / "model.json").write_text(json.dumps({**CARD, "serving": serving or {}}))


def write_tensorflow(folder: Path, *, seed: int = 1, serving: dict[str, Any] | None = None) -> None:
    """The same by TensorFlow: a SavedModel, and `model.json`. Its numbers are others."""
    import tensorflow as tf

    random = np.random.default_rng(seed)

    def variable(*shape: int) -> Any:
        return tf.Variable(random.normal(scale=0.05, size=shape).astype(np.float32))

    class WideDeep(tf.Module):  # type: ignore[misc]  # tensorflow has no types
        def __init__(self) -> None:
            super().__init__()
            self.table = variable(IDS * ROWS, WIDTH + 1)
            self.layers = [
                (variable(taken, given), variable(given))
                for taken, given in itertools.pairwise((IDS * WIDTH + NUMBERS, *HIDDEN, 1))
            ]
            self.wide = variable(NUMBERS, 1)

        @tf.function(input_signature=[  # type: ignore[untyped-decorator]  # as above
            tf.TensorSpec([None, IDS], tf.int64, "ids"), tf.TensorSpec([None, NUMBERS], tf.float32, "numbers"),
        ])  # fmt: skip
        def serve(self, ids: Any, numbers: Any) -> dict[str, Any]:
            found = tf.gather(self.table, ids + tf.range(IDS, dtype=tf.int64) * ROWS)
            deep = tf.concat([tf.reshape(found[:, :, :WIDTH], [-1, IDS * WIDTH]), numbers], 1)
            for kernel, bias in self.layers[:-1]:
                deep = tf.nn.relu(deep @ kernel + bias)
            kernel, bias = self.layers[-1]
            wide = tf.reduce_sum(found[:, :, WIDTH], 1, keepdims=True) + numbers @ self.wide
            return {"predictions": tf.sigmoid(tf.squeeze(deep @ kernel + bias + wide, 1))}

    model = WideDeep()
    folder.mkdir(parents=True, exist_ok=True)
    tf.saved_model.save(model, str(folder / "saved_model"), signatures={"serving_default": model.serve})
    (folder / "model.json").write_text(json.dumps({**CARD, "framework": "tensorflow", "serving": serving or {}}))


def inputs(rows: int, seed: int) -> dict[str, np.ndarray[Any, Any]]:
    """One request."""
    random = np.random.default_rng(seed)
    return {
        "ids": random.integers(0, ROWS, (rows, IDS)),
        "numbers": random.standard_normal((rows, NUMBERS), np.float32),
    }


def http_requests(model: str, rows: int, *, binary: bool, host: str) -> list[bytes]:
    """`REQUESTS` whole requests as a client writes them: `binary`, tensors after the JSON, else as lists in it."""
    return [_http(model, inputs(rows, seed), binary=binary, host=host) for seed in range(REQUESTS)]


def _http(model: str, arrays: dict[str, np.ndarray[Any, Any]], *, binary: bool, host: str) -> bytes:
    tensors: list[dict[str, Any]] = []
    for entry in CARD["inputs"]:
        array = arrays[entry["name"]]
        kind = "INT64" if array.dtype == np.int64 else "FP32"
        tensor: dict[str, Any] = {"name": entry["name"], "shape": list(array.shape), "datatype": kind}
        if binary:
            tensor["parameters"] = {"binary_data_size": array.nbytes}
        else:
            tensor["data"] = [round(float(value), 6) if kind == "FP32" else int(value) for value in array.flat]
        tensors.append(tensor)
    document: dict[str, Any] = {"id": "1", "inputs": tensors}     # KServe's server asks for an id
    if binary:
        document["parameters"] = {"binary_data_output": True}
    text = json.dumps(document, separators=(",", ":")).encode()
    body = text + b"".join(array.tobytes() for array in arrays.values()) if binary else text
    kind = "application/octet-stream" if binary else "application/json"
    lines = [f"POST /v2/models/{model}/infer HTTP/1.1", f"Host: {host}", f"Content-Type: {kind}",
             f"Content-Length: {len(body)}"]  # fmt: skip
    if binary:
        lines.append(f"Inference-Header-Content-Length: {len(text)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def grpc_requests(model: str, rows: int) -> list[Any]:
    """`REQUESTS` messages with raw contents."""
    return [_message(model, inputs(rows, seed)) for seed in range(REQUESTS)]


def _message(model: str, arrays: dict[str, np.ndarray[Any, Any]]) -> pb.ModelInferRequest:
    message = pb.ModelInferRequest(model_name=model, id="1")
    for name, array in arrays.items():
        message.inputs.add(name=name, datatype="INT64" if array.dtype == np.int64 else "FP32", shape=array.shape)
        message.raw_input_contents.append(array.tobytes())
    return message
