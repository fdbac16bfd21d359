"""JSON messages as events, and joined samples as messages. Pure."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson

from recmesh.join.domain import Joined, Known, Label, Position, Read, Sample, Unreadable
from recmesh.partitions import unix_seconds
from recmesh.spec.join import Labels, Samples
from recmesh.spec.quantity import LAST_MOMENT

CONSUMED = "Recmesh-Labels"
"""Header of a joined sample: the positions of its labels, `partition:sequence` with commas between."""
FATE = "Recmesh-Fate"


@dataclass(frozen=True, slots=True)
class Message:
    """As it was read."""

    at: Position
    data: bytes
    time: float
    """Of the header, else the server's; Unix seconds."""
    is_read: bool
    """No other waits behind it."""


class Wrong(ValueError):
    """Why a message is no sample or label."""


def event_of(message: Message, side: Samples | Labels, is_settled: Callable[[Position], bool]) -> Read:
    """What a message tells. One that is settled is only known."""
    time = message.time
    try:
        row = _row(message.data)
        time = _time(row, side.time, message.time)
        key = _key(row, side.key)
        if is_settled(message.at):
            return Known(message.at, time, key, message.is_read)
        if isinstance(side, Labels):
            value = _value(row, side.value)
            return Label(message.at, time, key, value, message.data, message.is_read)
        return Sample(message.at, time, key, message.data, message.is_read)
    except Wrong as error:
        if is_settled(message.at):
            return Known(message.at, time, is_read=message.is_read)
        return Unreadable(message.at, time, str(error), message.is_read)


def _row(data: bytes) -> dict[str, Any]:
    try:
        row = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise Wrong(f"it is not JSON: {error}") from None
    if not isinstance(row, dict):
        raise Wrong("it is no JSON object")
    return row


def _time(row: dict[str, Any], field: str, otherwise: float) -> float:
    if not field:
        return otherwise
    try:
        time = unix_seconds(row.get(field))
    except (ValueError, OverflowError):
        time = math.nan
    if not 0 <= time <= LAST_MOMENT:
        raise Wrong(f"{field} is {row.get(field)!r}, which is no time")
    return time


def _key(row: dict[str, Any], field: str) -> str:
    """Text, or an integer as it is written."""
    value = row.get(field)
    if isinstance(value, str) and value:
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise Wrong(f"{field} is {value!r}, which is neither text nor an integer")


def _value(row: dict[str, Any], field: str) -> float:
    value = row.get(field) if field else 1
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise Wrong(f"{field} is {value!r}, which is no number")
    return value


def row_of(joined: Joined, field: str) -> bytes:
    """The sample as it was, with its label; whole numbers stay integers."""
    row = orjson.loads(joined.sample.body)
    row[field] = int(joined.label) if float(joined.label).is_integer() else float(joined.label)
    return orjson.dumps(row)


def message_id(name: str, at: Position) -> str:
    """Of what comes of a message of the input: `clicks:samples:0:17`."""
    return f"{name}:{at.side}:{at.partition}:{at.sequence}"


def position_of(message_id: str, name: str) -> Position | None:
    """None: it is of another writer."""
    head, _, rest = message_id.partition(f"{name}:")
    side, _, place = rest.partition(":")
    partition, _, sequence = place.partition(":")
    if head or side not in ("samples", "labels") or not (partition.isdigit() and sequence.isdigit()):
        return None
    return Position("samples" if side == "samples" else "labels", int(partition), int(sequence))


def consumed(labels: tuple[Position, ...]) -> str:
    """For the header."""
    return ",".join(f"{at.partition}:{at.sequence}" for at in labels)


def labels_in(header: str) -> list[Position]:
    """What `consumed` was given."""
    pairs = (part.partition(":") for part in header.split(",") if part)
    return [Position("labels", int(partition), int(sequence)) for partition, _, sequence in pairs]
