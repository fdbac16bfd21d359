"""KServe's own Python server with `wide_deep`'s model.

`python kserve_wide_deep.py FRAMEWORK PORT GRPC_PORT FOLDER SITE`. The program is the same file, read by
the same torch or TensorFlow, which lies in the folder SITE where this interpreter has none of its own. One worker, one
compute thread; what a model of KServe's does with a request is written as its authors show it. GRPC_PORT 0: none.
"""

import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

NAME = "wide_deep"

Program = Callable[[Any], Any]
"""KServe's inputs to an array."""


def main(framework: str, port: int, grpc_port: int, folder: Path, site: str) -> None:
    # isort: off
    from kserve import InferOutput, InferResponse, Model, ModelServer     # before the other folder is looked at

    sys.path.append(site)
    run = torch_program(folder) if framework == "torch" else tensorflow_program(folder)

    class WideDeep(Model):  # type: ignore[misc]  # kserve is not analysed
        def __init__(self) -> None:
            super().__init__(NAME)
            self.ready = True

        def predict(self, payload: Any, headers: Any = None, response_headers: Any = None) -> InferResponse:
            found = run(payload.inputs)
            output = InferOutput("predictions", list(found.shape), "FP32")
            output.set_data_from_numpy(found, binary_data=payload.use_binary_outputs)
            return InferResponse(payload.id, NAME, [output])

    server = ModelServer(
        http_port=port, grpc_port=grpc_port, enable_grpc=grpc_port > 0, workers=1, enable_latency_logging=False
    )
    access = logging.getLogger("uvicorn.access")     # a line per request, which ours does not write either
    access.handlers.clear()
    access.propagate = False
    server.start([WideDeep()])


def torch_program(folder: Path) -> Program:
    import torch

    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    module = torch.export.load(str(folder / "model.pt2")).module()

    def run(inputs: Any) -> Any:
        arrays = {tensor.name: torch.from_numpy(tensor.as_numpy().copy()) for tensor in inputs}
        with torch.inference_mode():
            return module(arrays)["predictions"].numpy()

    return run


def tensorflow_program(folder: Path) -> Program:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    model = tf.saved_model.load(str(folder / "saved_model"))
    signature = model.signatures["serving_default"]

    def run(inputs: Any, _kept: Any = model) -> Any:     # its variables live as long as it does
        return signature(**{tensor.name: tf.constant(tensor.as_numpy()) for tensor in inputs})["predictions"].numpy()

    return run


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]), sys.argv[5])
