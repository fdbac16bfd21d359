"""Protobuf messages as JSON documents: the same names, every field, whole numbers as numbers."""

import base64
import math
from typing import Any

import orjson
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

EMBEDDED = "_json"


def document(message: Message) -> dict[str, Any]:
    """All fields, also those with their default, so that a reader need not know the defaults.

    A field `spec_json` that holds a JSON text becomes the field `spec` with its content. A message that is
    not set is null. What is no number in JSON (NaN, infinity) is null.
    """
    result: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        if (
            field.name.endswith(EMBEDDED)
            and field.type == FieldDescriptor.TYPE_STRING
            and not field.is_repeated
        ):
            result[field.name.removesuffix(EMBEDDED)] = _embedded(getattr(message, field.name))
        else:
            result[field.name] = _field(message, field)
    return result


def _field(message: Message, field: FieldDescriptor) -> Any:
    value = getattr(message, field.name)
    if field.is_repeated:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            of_value = field.message_type.fields_by_name["value"]
            return {str(key): _plain(of_value, value[key]) for key in sorted(value)}
        return [_plain(field, item) for item in value]
    if field.message_type is not None and not message.HasField(field.name):
        return None
    return _plain(field, value)


def _plain(field: FieldDescriptor, value: Any) -> Any:
    if field.message_type is not None:
        return document(value)
    if field.enum_type is not None:
        return (
            field.enum_type.values_by_number[value].name
            if value in field.enum_type.values_by_number
            else value
        )
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _embedded(text: str) -> Any:
    try:
        return orjson.loads(text) if text else None
    except orjson.JSONDecodeError:
        return text
