"""What is logged of a prediction: which ones, and each sample of a request as one flat row. Pure."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from recmesh.runtime.errors import InvalidArgument, Violation
from recmesh.serving.raw.columns import LENGTHS, NULL, ROWS
from recmesh.serving.settings import PredictionLog
from services.gateway.domain.tensors import Tensor

OWN = "recmesh_"
"""The fields of the log itself begin with this, so that columns keep their names."""
OBJECT_BYTES = 64
"""Of a text in an array, on top of its characters."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """An answered request that is to be logged."""

    id: str
    model: str
    version: str
    at: float
    """Unix seconds."""
    log: PredictionLog
    form: str
    """Of the inputs, as `InferRequest.form`."""
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]

    @property
    def size_bytes(self) -> int:
        """What it holds in memory, about."""
        return sum(_size(tensor) for tensor in (*self.inputs, *self.outputs))


def is_sampled(request_id: str, share: float) -> bool:
    """The same for one id wherever and however often it is asked: uniform over ids."""
    drawn = int.from_bytes(hashlib.blake2b(request_id.encode(), digest_size=8).digest())
    return drawn < share * 2.0**64


def sample_ids(request_id: str, samples: int) -> list[str]:
    """Of a request with one sample its own; of several `ID/0`, `ID/1` and so on."""
    return [request_id] if samples == 1 else [f"{request_id}/{number}" for number in range(samples)]


def rows_of(prediction: Prediction) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each sample's id and row: the features as they were sent, and the log's own fields.

    ValueError: bytes that are no text.
    """
    features = _features(prediction)
    samples = len(features)
    outputs = {tensor.name: _values(tensor) for tensor in prediction.outputs}
    own = {
        f"{OWN}model": prediction.model, f"{OWN}version": prediction.version, f"{OWN}time": prediction.at,
        f"{OWN}raw": bool(prediction.form),
    }  # fmt: skip
    for number, (sample, row) in enumerate(zip(sample_ids(prediction.id, samples), features, strict=True)):
        given = {name: values[number] if len(values) == samples else values for name, values in outputs.items()}
        kept = row if prediction.log.features else {}
        yield sample, {**kept, **own, f"{OWN}id": sample, f"{OWN}outputs": given}


def _features(prediction: Prediction) -> Sequence[Mapping[str, Any]]:
    if prediction.form == ROWS:
        rows: list[Mapping[str, Any]] = orjson.loads(prediction.inputs[0].array.reshape(-1)[0])
        return rows
    given = {tensor.name: tensor for tensor in prediction.inputs}
    columns: dict[str, list[Any]] = {}
    for name, tensor in given.items():
        if name.endswith((LENGTHS, NULL)) and name.removesuffix(LENGTHS).removesuffix(NULL) in given:
            continue
        columns[name] = _column(name, tensor, given)
    samples = max((len(values) for values in columns.values()), default=0)
    whole = {name: values for name, values in columns.items() if len(values) != samples}
    batched = {name: values for name, values in columns.items() if name not in whole}
    return [{**whole, **{name: values[number] for name, values in batched.items()}} for number in range(samples)]


def _column(name: str, tensor: Tensor, given: Mapping[str, Tensor]) -> list[Any]:
    """By row: a value, a list without what stands behind its end, None where there is none."""
    values = _values(tensor)
    lengths = given.get(name + LENGTHS) or given.get(name.removesuffix(".weights") + LENGTHS)
    if lengths is not None and len(tensor.shape) == 2 and lengths.shape == tensor.shape[:1]:
        values = [row[:size] for row, size in zip(values, lengths.array.tolist(), strict=True)]
    absent = given.get(name + NULL)
    if absent is not None and absent.shape == tensor.shape[:1]:
        values = [None if gone else value for value, gone in zip(values, absent.array.tolist(), strict=True)]
    return values


def _values(tensor: Tensor) -> list[Any]:
    array = tensor.array
    if tensor.datatype.kind == "bytes":
        decoded = array.copy()
        decoded.reshape(-1)[:] = [value.decode() for value in array.reshape(-1)]
        array = decoded
    elif tensor.datatype.name == "BF16":
        array = array.astype("float32")
    values = array.tolist()
    return values if isinstance(values, list) else [values]


def _size(tensor: Tensor) -> int:
    if tensor.datatype.kind != "bytes":
        return int(tensor.array.nbytes)
    return sum(len(value) + OBJECT_BYTES for value in tensor.array.reshape(-1))


@dataclass(frozen=True, slots=True)
class Label:
    """What became of a sample."""

    id: str
    value: float
    time: float | None = None
    """Unix seconds of the event; None: it is happening now."""

    @property
    def message_id(self) -> str:
        """The same label has the same, so that it is stored once."""
        told = "" if self.time is None else repr(self.time)
        named = orjson.dumps([self.id, self.value, told])
        return "label:" + hashlib.blake2b(named, digest_size=16).hexdigest()


def _is_time(value: Any, latest: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= latest


MAX_LABELS = 10_000
"""In one request."""
MAX_ID = 512


def checked_labels(entries: Sequence[Any], *, latest: float) -> list[Label]:
    """Labels of objects with id, value, time; InvalidArgument names each wrong field, the first hundred of them."""
    wrong: list[Violation] = []
    if not entries:
        wrong.append(Violation("labels", "is empty"))
    if len(entries) > MAX_LABELS:
        wrong.append(Violation("labels", f"has {len(entries)} entries; at most {MAX_LABELS} go at once"))
    found: list[Label] = []
    for index, entry in enumerate(entries[:MAX_LABELS]):
        if not isinstance(entry, dict):
            wrong.append(Violation(f"labels[{index}]", "is not an object"))
            continue
        unknown = sorted(set(entry) - {"id", "value", "time"})
        wrong += [Violation(f"labels[{index}].{name}", "is no field of a label") for name in unknown]
        id_, value, time = entry.get("id"), entry.get("value", 1), entry.get("time")
        if not isinstance(id_, str) or not 0 < len(id_) <= MAX_ID:
            wrong.append(Violation(f"labels[{index}].id", f"is not a text of at most {MAX_ID} characters"))
        elif not isinstance(value, int | float) or not -1e300 < value < 1e300:
            wrong.append(Violation(f"labels[{index}].value", "is neither a number, true nor false"))
        elif time is not None and not _is_time(time, latest):
            wrong.append(Violation(f"labels[{index}].time", "is no time in Unix seconds that has been"))
        else:
            found.append(Label(id_, float(value), None if time is None else float(time)))
    if wrong:
        raise InvalidArgument("the labels are wrong", reason="BAD_LABELS", violations=wrong[:100])
    return found
