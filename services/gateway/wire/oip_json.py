"""Inference requests and responses as the protocol's JSON, with the binary tensor extension.

With binary data a body is a JSON header, whose size the HTTP header Inference-Header-Content-Length tells,
and then the raw contents of those tensors that have the parameter `binary_data_size`, in their order.
"""

from typing import Any

import orjson

from recmesh.runtime.errors import InvalidArgument, Violation
from recmesh.serving.raw.columns import ROWS
from services.gateway.domain import regions
from services.gateway.domain.inference import InferRequest, InferResponse, Parameter, RequestedOutput, raw_form
from services.gateway.domain.regions import Memory
from services.gateway.domain.tensors import Tensor, from_raw, from_values, to_raw, to_values


def infer_request(
    model: str, version: str, body: bytes, *, header_bytes: int | None, memory: Memory
) -> InferRequest:
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
        model, version, _inputs(document.get("inputs"), memoryview(binary), memory),
        _outputs(document.get("outputs")),
        _text(document.get("id", ""), "id"), given, given.get("binary_data_output") is True, raw_form(given),
    )  # fmt: skip


def predict_request(model: str, version: str, body: bytes) -> InferRequest:
    """Rows of raw columns: `rows`, and as in the protocol `id`, `parameters`, `outputs`."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise _wrong("body", f"is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise _wrong("body", "is not a JSON object")
    unknown = sorted(set(document) - {"rows", "id", "parameters", "outputs"})
    if unknown:
        raise _wrong(unknown[0], "is no field of this request; it has rows, id, parameters, outputs")
    rows = document.get("rows")
    if not isinstance(rows, list) or not rows:
        raise _wrong("rows", "is not a list with at least one object")
    for index, row in enumerate(rows):
        if not isinstance(row, dict):
            raise _wrong(f"rows[{index}]", "is not an object")
    given = _parameters(document.get("parameters"), "parameters")
    tensor = from_values("rows", "BYTES", [1], [orjson.dumps(rows)])
    return InferRequest(
        model, version, (tensor,), _outputs(document.get("outputs")), _text(document.get("id", ""), "id"), given,
        given.get("binary_data_output") is True, ROWS,
    )


def infer_response(
    request: InferRequest, response: InferResponse, *, memory: Memory
) -> tuple[bytes, int | None]:
    """The body, and the size of its JSON header when binary data follow."""
    wanted = {item.name: item for item in request.outputs}
    outputs: list[dict[str, Any]] = []
    binary: list[bytes] = []
    for tensor in response.outputs:
        document: dict[str, Any] = {
            "name": tensor.name, "datatype": tensor.datatype.name, "shape": list(tensor.shape)
        }  # fmt: skip
        asked = wanted.get(tensor.name) or RequestedOutput(tensor.name)
        if asked.place is not None:
            raw = to_raw(tensor)
            memory.write(asked.place, raw)
            document["parameters"] = {
                regions.REGION: asked.place.region, regions.OFFSET: asked.place.offset,
                regions.SIZE: len(raw),
            }  # fmt: skip
        elif request.binary_outputs if asked.binary is None else asked.binary:
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
    if response.fresh_version:
        head["parameters"] = {"fresh_version": response.fresh_version}
    encoded = orjson.dumps(head)
    return (encoded + b"".join(binary), len(encoded)) if binary else (encoded, None)


def _inputs(entries: Any, binary: memoryview, memory: Memory) -> tuple[Tensor, ...]:
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
        parameters = _parameters(entry.get("parameters"), f"inputs.{name}.parameters")
        place = regions.place_of(parameters, f"inputs.{name}.parameters")
        size = parameters.get("binary_data_size")
        if place is not None:
            if "data" in entry or size is not None:
                raise _wrong(f"inputs.{name}", "has contents beside shared memory; use one of them")
            tensors.append(from_raw(name, datatype, shape, memory.read(place)))
            continue
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
        parameters = _parameters(entry.get("parameters"), f"outputs.{name}.parameters")
        binary = parameters.get("binary_data")
        if binary is not None and not isinstance(binary, bool):
            raise _wrong(f"outputs.{name}.parameters.binary_data", "is not true or false")
        if parameters.get("classification"):
            raise _wrong(f"outputs.{name}.parameters.classification", "is not answered here; ask for the tensor")
        place = regions.place_of(parameters, f"outputs.{name}.parameters")
        result.append(RequestedOutput(name, binary, place))
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


def _wrong(path: str, why: str) -> InvalidArgument:
    return InvalidArgument(f"{path} {why}", reason="BAD_REQUEST", violations=[Violation(path, why)])
