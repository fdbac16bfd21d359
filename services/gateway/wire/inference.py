"""Inference requests and responses as messages of inference.proto."""

from collections.abc import Mapping, Sequence
from typing import Any

from recmesh.pb import inference_pb2 as pb
from recmesh.runtime.errors import InvalidArgument, Violation
from services.gateway.domain.card import ModelCard, TensorSpec
from services.gateway.domain.datatypes import DATATYPES
from services.gateway.domain.inference import InferRequest, InferResponse, Parameter, RequestedOutput
from services.gateway.domain.models import ModelVersion
from services.gateway.domain.statistics import Duration, ModelStatistics
from services.gateway.domain.tensors import Tensor, from_items, from_raw, to_raw

CONTENTS = {
    "BOOL": "bool_contents", "INT8": "int_contents", "INT16": "int_contents", "INT32": "int_contents",
    "INT64": "int64_contents", "UINT8": "uint_contents", "UINT16": "uint_contents", "UINT32": "uint_contents",
    "UINT64": "uint64_contents", "FP32": "fp32_contents", "FP64": "fp64_contents", "BYTES": "bytes_contents",
}  # fmt: skip


def infer_request(message: pb.ModelInferRequest) -> InferRequest:
    """The checked request; InvalidArgument names the tensor that is wrong."""
    raw = message.raw_input_contents
    if raw and len(raw) != len(message.inputs):
        raise _wrong("raw_input_contents", f"has {len(raw)} items for {len(message.inputs)} inputs")
    inputs = [_input(item, raw[index] if raw else None) for index, item in enumerate(message.inputs)]
    return InferRequest(
        message.model_name, message.model_version, tuple(inputs),
        tuple(RequestedOutput(item.name) for item in message.outputs), message.id,
        parameters(message.parameters),
    )  # fmt: skip


def infer_response(response: InferResponse) -> pb.ModelInferResponse:
    """Outputs travel raw."""
    return pb.ModelInferResponse(
        model_name=response.model, model_version=response.version, id=response.id,
        outputs=[
            pb.ModelInferResponse.InferOutputTensor(name=item.name, datatype=item.datatype.name,
            shape=item.shape) for item in response.outputs
        ],
        raw_output_contents=[to_raw(item) for item in response.outputs],
    )  # fmt: skip


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


def _input(item: pb.ModelInferRequest.InferInputTensor, raw: bytes | None) -> Tensor:
    typed = item.HasField("contents") and any(True for _ in item.contents.ListFields())
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
