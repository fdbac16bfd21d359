"""Model configurations as messages of inference.proto, in Triton's words."""

from collections.abc import Mapping

from recmesh.pb import inference_pb2 as pb
from recmesh.serving.card import ModelCard
from recmesh.serving.datatypes import Datatype
from services.gateway.domain.models import ModelVersion

BACKENDS: Mapping[str, str] = {"tensorflow": "tensorflow", "torch": "pytorch", "ensemble": ""}


def model_config(record: ModelVersion, card: ModelCard) -> pb.ModelConfig:
    """`max_batch_size` is 0: the shapes are whole, their first size is the batch."""
    return pb.ModelConfig(
        name=record.name, platform=card.platform, backend=BACKENDS[card.framework],
        input=[
            pb.ModelInput(name=item.name, data_type=_type(item.datatype), dims=item.shape)
            for item in card.inputs
        ],
        output=[
            pb.ModelOutput(name=item.name, data_type=_type(item.datatype), dims=item.shape)
            for item in card.outputs
        ],
        ensemble_scheduling=_steps(card) if card.steps else None,
    )  # fmt: skip


def _steps(card: ModelCard) -> pb.ModelEnsembling:
    return pb.ModelEnsembling(
        step=[
            pb.ModelEnsembling.Step(
                model_name=item.model, model_version=int(item.version or -1), input_map=item.inputs,
                output_map=item.outputs,
            )
            for item in card.steps
        ]
    )  # fmt: skip


def type_name(datatype: Datatype) -> str:
    """The configuration's name of a datatype."""
    return "TYPE_STRING" if datatype.kind == "bytes" else f"TYPE_{datatype.name}"


def _type(datatype: Datatype) -> pb.DataType.ValueType:
    return getattr(pb, type_name(datatype))  # type: ignore[no-any-return]  # the enum's values are attributes
