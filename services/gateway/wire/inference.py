"""Inference requests and responses as messages of inference.proto."""

from collections.abc import Mapping, Sequence
from typing import Any

from recmesh.pb import inference_pb2 as pb
from recmesh.runtime.errors import InvalidArgument, MeshError, Violation
from recmesh.serving.card import ModelCard, TensorSpec
from recmesh.serving.datatypes import DATATYPES
from services.gateway.domain import regions
from services.gateway.domain.inference import InferRequest, InferResponse, Parameter, RequestedOutput, raw_form
from services.gateway.domain.models import ModelVersion
from services.gateway.domain.regions import Memory, Place, Region
from services.gateway.domain.statistics import Duration, ModelStatistics
from services.gateway.domain.tensors import Tensor, from_items, from_raw, to_raw

CONTENTS = {
    "BOOL": "bool_contents", "INT8": "int_contents", "INT16": "int_contents", "INT32": "int_contents",
    "INT64": "int64_contents", "UINT8": "uint_contents", "UINT16": "uint_contents", "UINT32": "uint_contents",
    "UINT64": "uint64_contents", "FP32": "fp32_contents", "FP64": "fp64_contents", "BYTES": "bytes_contents",
}  # fmt: skip


def infer_request(message: pb.ModelInferRequest, *, memory: Memory) -> InferRequest:
    """The checked request; InvalidArgument names the tensor that is wrong."""
    given = [parameters(item.parameters) for item in message.inputs]
    places = [regions.place_of(item, f"inputs.{each.name}.parameters")
              for item, each in zip(given, message.inputs, strict=True)]  # fmt: skip
    raw = list(message.raw_input_contents)
    sent = sum(place is None for place in places)
    if raw and len(raw) != sent:
        raise _wrong("raw_input_contents", f"has {len(raw)} items for {sent} inputs that are not in shared memory")
    contents = iter(raw)
    inputs = [
        _input(item, place, next(contents) if raw and place is None else None, memory)
        for item, place in zip(message.inputs, places, strict=True)
    ]
    asked = parameters(message.parameters)
    return InferRequest(
        message.model_name, message.model_version, tuple(inputs),
        tuple(_output(item) for item in message.outputs), message.id, asked, form=raw_form(asked),
    )  # fmt: skip


def infer_response(
    request: InferRequest, response: InferResponse, *, memory: Memory
) -> pb.ModelInferResponse:
    """Outputs travel raw; those wanted in shared memory are put there, and have empty contents here."""
    wanted = {item.name: item.place for item in request.outputs if item.place is not None}
    message = pb.ModelInferResponse(model_name=response.model, model_version=response.version, id=response.id)
    if response.fresh_version:
        message.parameters["fresh_version"].int64_param = response.fresh_version
    for item in response.outputs:
        raw, place = to_raw(item), wanted.get(item.name)
        output = message.outputs.add(name=item.name, datatype=item.datatype.name, shape=item.shape)
        if place is not None:
            memory.write(place, raw)
            output.parameters[regions.REGION].string_param = place.region
            output.parameters[regions.OFFSET].int64_param = place.offset
            output.parameters[regions.SIZE].int64_param = len(raw)
        message.raw_output_contents.append(b"" if place is not None else raw)
    return message


def stream_answer(response: pb.ModelInferResponse) -> pb.ModelStreamInferResponse:
    """An answer on a stream."""
    return pb.ModelStreamInferResponse(infer_response=response)


def stream_error(message: pb.ModelInferRequest, error: MeshError) -> pb.ModelStreamInferResponse:
    """What is wrong with one request of a stream; its id tells which."""
    return pb.ModelStreamInferResponse(
        error_message=f"{error.grpc_code}: {error}",
        infer_response=pb.ModelInferResponse(
            model_name=message.model_name, model_version=message.model_version, id=message.id
        ),
    )


def shared_memory(found: Mapping[str, Region]) -> pb.SystemSharedMemoryStatusResponse:
    """Registered shared memory."""
    status = pb.SystemSharedMemoryStatusResponse.RegionStatus
    return pb.SystemSharedMemoryStatusResponse(
        regions={
            name: status(name=name, key=item.key, offset=item.offset, byte_size=item.size_bytes)
            for name, item in found.items()
        }
    )


def parameters(entries: Mapping[str, Any]) -> dict[str, Parameter]:
    """InferParameter or ModelRepositoryParameter values."""
    chosen = {name: value.WhichOneof("parameter_choice") for name, value in entries.items()}
    return {name: getattr(entries[name], field) for name, field in chosen.items() if field}


def metadata(record: ModelVersion, card: ModelCard, versions: Sequence[str]) -> pb.ModelMetadataResponse:
    """What a model takes and gives."""
    return pb.ModelMetadataResponse(
        name=record.name, versions=versions, platform=card.platform,
        inputs=[_tensor_metadata(item) for item in card.inputs],
        outputs=[_tensor_metadata(item) for item in card.outputs],
        raw_inputs=[
            pb.ModelMetadataResponse.RawColumn(
                name=item.name, datatypes=item.datatypes, shape=item.shape, features=item.features
            )
            for item in card.raw.columns
        ],
    )  # fmt: skip


def statistics(entries: Mapping[tuple[str, str], ModelStatistics]) -> pb.ModelStatisticsResponse:
    """Statistics of models by (name, version)."""
    return pb.ModelStatisticsResponse(
        model_stats=[
            pb.ModelStatistics(
                name=name, version=version, last_inference=int(item.last_at * 1000),
                inference_count=item.samples,
                execution_count=item.executions,
                inference_stats=pb.InferStatistics(
                    success=_duration(item.success), fail=_duration(item.fail), queue=_duration(item.queue),
                    compute_input=_duration(item.compute_input), compute_infer=_duration(item.compute_infer),
                    compute_output=_duration(item.compute_output),
                ),
            )
            for (name, version), item in sorted(entries.items())
        ]
    )  # fmt: skip


def _output(item: pb.ModelInferRequest.InferRequestedOutputTensor) -> RequestedOutput:
    path = f"outputs.{item.name}.parameters"
    given = parameters(item.parameters)
    if given.get("classification"):
        why = "is not answered here; ask for the tensor"
        raise InvalidArgument(
            f"{path}.classification {why}", reason="BAD_REQUEST",
            violations=[Violation(f"{path}.classification", why)],
        )  # fmt: skip
    return RequestedOutput(item.name, place=regions.place_of(given, path))


def _input(
    item: pb.ModelInferRequest.InferInputTensor, place: Place | None, raw: bytes | None, memory: Memory
) -> Tensor:
    typed = item.HasField("contents") and any(True for _ in item.contents.ListFields())
    if place is not None:
        if typed:
            raise _wrong(item.name, "has contents beside shared memory; use one of them")
        return from_raw(item.name, item.datatype, list(item.shape), memory.read(place))
    if raw is not None:
        if typed:
            raise _wrong(item.name, "has typed contents beside raw_input_contents; use one of them")
        return from_raw(item.name, item.datatype, list(item.shape), raw)
    if item.datatype in DATATYPES and item.datatype not in CONTENTS:
        raise _wrong(item.name, f"{item.datatype} has no typed contents; send it raw")
    field = CONTENTS.get(item.datatype, "bool_contents")
    extra = [found.name for found, _ in item.contents.ListFields() if found.name != field]
    if extra and item.datatype in CONTENTS:
        raise _wrong(
            item.name, f"is {item.datatype}, but its contents are in {', '.join(extra)}, not {field}"
        )
    return from_items(item.name, item.datatype, list(item.shape), getattr(item.contents, field))


def _tensor_metadata(spec: TensorSpec) -> pb.ModelMetadataResponse.TensorMetadata:
    return pb.ModelMetadataResponse.TensorMetadata(
        name=spec.name, datatype=spec.datatype.name, shape=spec.shape
    )


def _duration(value: Duration) -> pb.StatisticDuration:
    return pb.StatisticDuration(count=value.count, ns=value.ns)


def _wrong(name: str, why: str) -> InvalidArgument:
    return InvalidArgument(
        f"input {name!r}: {why}", reason="BAD_TENSOR", violations=[Violation(f"inputs.{name}", why)]
    )
