"""Inference requests and responses as the protocol's JSON, with the binary tensor extension.

With binary data a body is a JSON header, whose size the HTTP header Inference-Header-Content-Length tells,
and then the raw contents of those tensors that have the parameter `binary_data_size`, in their order.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from recmesh.runtime.errors import InvalidArgument, Violation
from services.gateway.domain.card import ModelCard, TensorSpec
from services.gateway.domain.inference import InferRequest, InferResponse, Parameter, RequestedOutput
from services.gateway.domain.models import ModelVersion
from services.gateway.domain.statistics import Duration, ModelStatistics
from services.gateway.domain.tensors import Tensor, from_raw, from_values, to_raw, to_values


def infer_request(model: str, version: str, body: bytes, *, header_bytes: int | None) -> InferRequest:
    """The checked request; InvalidArgument names what is wrong."""
    if header_bytes is not None and not 0 <= header_bytes <= len(body):
        raise _wrong(
            "Inference-Header-Content-Length", f"is {header_bytes}, but the body has {len(body)} bytes"
        )
    head, binary = (body, b"") if header_bytes is None else (body[:header_bytes], body[header_bytes:])
    try:
        document = orjson.loads(head)
    except orjson.JSONDecodeError as error:
        raise _wrong("body", f"is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise _wrong("body", "is not a JSON object")
    given = _parameters(document.get("parameters"), "parameters")
    return InferRequest(
        model, version, _inputs(document.get("inputs"), memoryview(binary)),
        _outputs(document.get("outputs")),
        _text(document.get("id", ""), "id"), given, given.get("binary_data_output") is True,
    )  # fmt: skip


def infer_response(request: InferRequest, response: InferResponse) -> tuple[bytes, int | None]:
    """The body, and the size of its JSON header when binary data follow."""
    wanted = {item.name: item.binary for item in request.outputs}
    outputs: list[dict[str, Any]] = []
    binary: list[bytes] = []
    for tensor in response.outputs:
        document: dict[str, Any] = {
            "name": tensor.name, "datatype": tensor.datatype.name, "shape": list(tensor.shape)
        }  # fmt: skip
        asked = wanted.get(tensor.name)
        if request.binary_outputs if asked is None else asked:
            raw = to_raw(tensor)
            document["parameters"] = {"binary_data_size": len(raw)}
            binary.append(raw)
        else:
            document["data"] = to_values(tensor)
        outputs.append(document)
    head: dict[str, Any] = {
        "model_name": response.model,
        "model_version": response.version,
        "outputs": outputs,
    }
    if response.id:
        head["id"] = response.id
    encoded = orjson.dumps(head)
    return (encoded + b"".join(binary), len(encoded)) if binary else (encoded, None)


def metadata(record: ModelVersion, card: ModelCard, versions: Sequence[str]) -> dict[str, Any]:
    """What a model takes and gives."""
    return {
        "name": record.name, "versions": list(versions), "platform": card.platform,
        "inputs": [_tensor_metadata(item) for item in card.inputs],
        "outputs": [_tensor_metadata(item) for item in card.outputs],
    }  # fmt: skip


def statistics(entries: Mapping[tuple[str, str], ModelStatistics]) -> dict[str, Any]:
    """Statistics of models by (name, version)."""
    return {
        "model_stats": [
            {
                "name": name, "version": version, "last_inference": int(item.last_at * 1000),
                "inference_count": item.samples, "execution_count": item.executions,
                "inference_stats": {
                    "success": _duration(item.success), "fail": _duration(item.fail),
                    "queue": _duration(item.queue),
                    "compute_input": _duration(item.compute_input),
                    "compute_infer": _duration(item.compute_infer),
                    "compute_output": _duration(item.compute_output),
                },
            }
            for (name, version), item in sorted(entries.items())
        ]
    }  # fmt: skip


def _inputs(entries: Any, binary: memoryview) -> tuple[Tensor, ...]:
    if not isinstance(entries, list) or not entries:
        raise _wrong("inputs", "is not a list with at least one tensor")
    tensors: list[Tensor] = []
    at = 0
    for index, entry in enumerate(entries):
        path = f"inputs[{index}]"
        if not isinstance(entry, dict):
            raise _wrong(path, "is not an object")
        name = _text(entry.get("name"), f"{path}.name")
        datatype = _text(entry.get("datatype"), f"inputs.{name}.datatype")
        shape = entry.get("shape")
        if not isinstance(shape, list):
            raise _wrong(f"inputs.{name}.shape", "is not a list of sizes")
        size = _parameters(entry.get("parameters"), f"inputs.{name}.parameters").get("binary_data_size")
        if size is None:
            tensors.append(from_values(name, datatype, shape, entry.get("data")))
            continue
        if "data" in entry:
            raise _wrong(f"inputs.{name}", "has data beside binary_data_size; use one of them")
        if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= len(binary) - at:
            raise _wrong(
                f"inputs.{name}", f"binary_data_size {size!r}, but {len(binary) - at} bytes are left"
            )
        tensors.append(from_raw(name, datatype, shape, binary[at : at + size]))
        at += size
    if at != len(binary):
        raise _wrong("body", f"{len(binary) - at} bytes of binary data belong to no input")
    return tuple(tensors)


def _outputs(entries: Any) -> tuple[RequestedOutput, ...]:
    if entries is None:
        return ()
    if not isinstance(entries, list):
        raise _wrong("outputs", "is not a list")
    result: list[RequestedOutput] = []
    for index, entry in enumerate(entries):
        if not isinstance(entry, dict):
            raise _wrong(f"outputs[{index}]", "is not an object")
        name = _text(entry.get("name"), f"outputs[{index}].name")
        binary = _parameters(entry.get("parameters"), f"outputs.{name}.parameters").get("binary_data")
        if binary is not None and not isinstance(binary, bool):
            raise _wrong(f"outputs.{name}.parameters.binary_data", "is not true or false")
        result.append(RequestedOutput(name, binary))
    return tuple(result)


def _parameters(entries: Any, path: str) -> dict[str, Parameter]:
    if entries is None:
        return {}
    if not isinstance(entries, dict):
        raise _wrong(path, "is not an object")
    for name, value in entries.items():
        if not isinstance(value, (bool, int, float, str)):
            raise _wrong(f"{path}.{name}", "is neither a number, a string, true nor false")
    return entries


def _text(value: Any, path: str) -> str:
    if not isinstance(value, str):
        raise _wrong(path, "is not a string" if value is not None else "is missing")
    return value


def _tensor_metadata(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": spec.datatype.name, "shape": list(spec.shape)}


def _duration(value: Duration) -> dict[str, int]:
    return {"count": value.count, "ns": value.ns}


def _wrong(path: str, why: str) -> InvalidArgument:
    return InvalidArgument(f"{path} {why}", reason="BAD_REQUEST", violations=[Violation(path, why)])
