"""What the inference protocol says of models over HTTP, as JSON documents."""

from collections.abc import Mapping, Sequence
from typing import Any

from recmesh.serving.card import ModelCard, TensorSpec
from recmesh.serving.raw.columns import RawColumn
from recmesh.serving.settings import ServingSettings
from services.gateway.domain.models import ModelVersion
from services.gateway.domain.regions import Region
from services.gateway.domain.statistics import Duration, ModelStatistics
from services.gateway.wire.model_config import BACKENDS, NO_BATCHING, dims, largest_batch, type_name


def metadata(record: ModelVersion, card: ModelCard, versions: Sequence[str]) -> dict[str, Any]:
    """What a model takes and gives."""
    return {
        "name": record.name, "versions": list(versions), "platform": card.platform,
        "inputs": [_tensor_metadata(item) for item in card.inputs],
        "outputs": [_tensor_metadata(item) for item in card.outputs],
        **({"raw_inputs": [_raw_column(item) for item in card.raw.columns]} if card.raw.columns else {}),
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


def config(record: ModelVersion, card: ModelCard, settings: ServingSettings) -> dict[str, Any]:
    """What a model takes and gives, and its batching, in the words of Triton's model configuration."""
    steps = [
        {
            "model_name": item.model, "model_version": int(item.version or -1),
            "input_map": dict(item.inputs), "output_map": dict(item.outputs),
        }
        for item in card.steps
    ]  # fmt: skip
    rows, batching = largest_batch(card, settings), settings.dynamic_batching
    return {
        "name": record.name, "platform": card.platform, "backend": BACKENDS[card.framework],
        "max_batch_size": rows,
        "input": [_config_tensor(item, rows) for item in card.inputs],
        "output": [_config_tensor(item, rows) for item in card.outputs],
        **({"ensemble_scheduling": {"step": steps}} if steps else {}),
        **({"dynamic_batching": batching.model_dump(mode="json")} if rows or batching != NO_BATCHING else {}),
    }  # fmt: skip


def regions(entries: Mapping[str, Region]) -> list[dict[str, Any]]:
    """Registered shared memory."""
    return [
        {"name": item.name, "key": item.key, "offset": item.offset, "byte_size": item.size_bytes}
        for item in entries.values()
    ]


def _config_tensor(spec: TensorSpec, rows: int) -> dict[str, Any]:
    return {"name": spec.name, "data_type": type_name(spec.datatype), "dims": dims(spec, rows)}


def _tensor_metadata(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": spec.datatype.name, "shape": list(spec.shape)}


def _raw_column(column: RawColumn) -> dict[str, Any]:
    return {
        "name": column.name, "datatypes": list(column.datatypes), "shape": list(column.shape),
        "features": list(column.features),
    }  # fmt: skip


def _duration(value: Duration) -> dict[str, int]:
    return {"count": value.count, "ns": value.ns}
