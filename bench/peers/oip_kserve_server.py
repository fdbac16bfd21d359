"""KServe's own Python server with the models of `oip_cells`: `python oip_kserve_server.py HTTP_PORT GRPC_PORT RUNS`."""

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from kserve import InferOutput, InferResponse, Model, ModelServer
from kserve.errors import InvalidInput

HELD_S = 30.0


class Of(Model):  # type: ignore[misc]  # kserve is not analysed
    """A model as a function of arrays."""

    def __init__(self, name: str, inputs: dict[str, str], run: Any) -> None:
        super().__init__(name)
        self._inputs, self._run = inputs, run
        self.ready = True

    async def get_input_types(self) -> list[dict[str, Any]]:
        return [{"name": name, "datatype": kind, "shape": [-1]} for name, kind in self._inputs.items()]

    async def get_output_types(self) -> list[dict[str, Any]]:
        return []

    def predict(self, payload: Any, headers: Any = None, response_headers: Any = None) -> InferResponse:
        """Checks what its own framework leaves to models: names, types, ranks."""
        arrays = {}
        for tensor in payload.inputs:
            if self._inputs.get(tensor.name) != tensor.datatype or len(tensor.shape) != 1:
                raise InvalidInput(f"input {tensor.name}: {tensor.datatype} {tensor.shape} is not taken")
            arrays[tensor.name] = tensor.as_numpy()
        name, kind, array = self._run(arrays)
        output = InferOutput(name, list(array.shape), kind)
        output.set_data_from_numpy(array, binary_data=payload.use_binary_outputs)
        return InferResponse(payload.id, payload.model_name, [output])


def adder(arrays: Any) -> Any:
    return "predictions", "FP32", arrays["x"] + arrays["id"].astype(np.float32)


def main(http: int, grpc: int, runs: Path) -> None:
    go = Path(f"{runs}.go")

    def slow(arrays: Any) -> Any:
        with runs.open("a") as file:
            print(arrays["number"].tolist()[0], file=file)
        ends = time.monotonic() + HELD_S
        while arrays["held"][0] and not go.exists() and time.monotonic() < ends:
            time.sleep(0.001)
        return "done", "FP32", arrays["number"]

    models = [
        Of("adder", {"x": "FP32", "id": "INT64"}, adder),
        Of("half", {"x": "FP16"}, lambda arrays: ("y", "FP16", arrays["x"] * np.float16(2))),
        Of("echo", {"text": "BYTES"}, lambda arrays: ("text", "BYTES", arrays["text"])),
        Of("slow", {"number": "FP32", "held": "INT32"}, slow),
    ]
    ModelServer(http_port=http, grpc_port=grpc, enable_latency_logging=False).start(models)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
