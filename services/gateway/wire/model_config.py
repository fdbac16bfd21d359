"""Model configurations as messages of inference.proto, in Triton's words."""

from collections.abc import Mapping

from recmesh.pb import inference_pb2 as pb
from recmesh.serving.card import ModelCard, TensorSpec
from recmesh.serving.datatypes import Datatype
from recmesh.serving.settings import DynamicBatching, QueuePolicy, ServingSettings
from services.gateway.domain.models import ModelVersion

BACKENDS: Mapping[str, str] = {"tensorflow": "tensorflow", "torch": "pytorch", "ensemble": ""}
NO_BATCHING = DynamicBatching()


def model_config(record: ModelVersion, card: ModelCard, settings: ServingSettings) -> pb.ModelConfig:
    """`dynamic_batching` is there where requests are put together, or wait by other rules than the usual ones."""
    rows = largest_batch(card, settings)
    batching = settings.dynamic_batching
    return pb.ModelConfig(
        name=record.name, platform=card.platform, backend=BACKENDS[card.framework], max_batch_size=rows,
        input=[
            pb.ModelInput(name=item.name, data_type=_type(item.datatype), dims=dims(item, rows))
            for item in card.inputs
        ],
        output=[
            pb.ModelOutput(name=item.name, data_type=_type(item.datatype), dims=dims(item, rows))
            for item in card.outputs
        ],
        ensemble_scheduling=_steps(card) if card.steps else None,
        dynamic_batching=_batching(batching) if rows or batching != NO_BATCHING else None,
    )  # fmt: skip


def largest_batch(card: ModelCard, settings: ServingSettings) -> int:
    """`max_batch_size`; 0: nothing is put together, and shapes are whole, with the batch as their first size."""
    specs = (*card.inputs, *card.outputs)
    batched = not card.steps and all(spec.shape and spec.shape[0] == -1 for spec in specs)
    return settings.max_batch_size if batched else 0


def dims(spec: TensorSpec, rows: int) -> list[int]:
    """A tensor's shape, without the batch where `max_batch_size` says that there is one."""
    return list(spec.shape[1:] if rows else spec.shape)


def _batching(batching: DynamicBatching) -> pb.ModelDynamicBatching:
    return pb.ModelDynamicBatching(
        preferred_batch_size=batching.preferred_batch_size,
        max_queue_delay_microseconds=batching.max_queue_delay_microseconds,
        priority_levels=batching.priority_levels, default_priority_level=batching.default_priority_level,
        default_queue_policy=_policy(batching.default_queue_policy),
        priority_queue_policy={
            level: _policy(policy) for level, policy in batching.priority_queue_policy.items()
        },
    )  # fmt: skip


def _policy(policy: QueuePolicy) -> pb.ModelQueuePolicy:
    return pb.ModelQueuePolicy(
        timeout_action=pb.ModelQueuePolicy.TimeoutAction.Value(policy.timeout_action),
        default_timeout_microseconds=policy.default_timeout_microseconds,
        allow_timeout_override=policy.allow_timeout_override, max_queue_size=policy.max_queue_size,
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
