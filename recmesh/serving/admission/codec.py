"""Messages of admission as bytes: little-endian, fixed fields first, a version in the first byte.

    byte 0   version (1)
    byte 1   kind: 1 Ask, 2 Cancel, 3 Sent, 16 Grant, 17 Refuse, 18 Done
    8 bytes  request, unsigned
    Ask      size_bytes u64, return_bytes u64, left_s f64 (NaN: no deadline), at_s f64
             (NaN: not told), priority u8, model u16 length + UTF-8
    Grant    expires_s f64
    Refuse   reason u8, short_s f64, retry_after_s f64

An Ask is 45 bytes and the model's name. How messages are told apart on a stream is the transport's matter.
"""

import math
import struct

from recmesh.runtime.errors import InvalidArgument, Violation
from recmesh.serving.admission.messages import (
    MOST_MODEL_BYTES,
    MOST_PRIORITY,
    Ask,
    Cancel,
    Done,
    Grant,
    Message,
    Reason,
    Refuse,
    Sent,
)

VERSION = 1
_MOST_UINT64 = (1 << 64) - 1
_HEAD = struct.Struct("<BBQ")
_ASK = struct.Struct("<QQddBH")
_GRANT = struct.Struct("<d")
_REFUSE = struct.Struct("<Bdd")
_ASKS, _CANCEL, _SENT, _GRANTS, _REFUSES, _DONE = 1, 2, 3, 16, 17, 18
_BARE: dict[int, type[Cancel] | type[Sent] | type[Done]] = {_CANCEL: Cancel, _SENT: Sent, _DONE: Done}


def encode(message: Message) -> bytes:
    """The message's bytes; InvalidArgument names a field that has no place in them."""
    match message:
        case Ask():
            return _encode_ask(message)
        case Grant():
            return _head(_GRANTS, message.request) + _GRANT.pack(message.expires_s)
        case Refuse():
            body = _REFUSE.pack(message.reason, message.short_s, message.retry_after_s)
            return _head(_REFUSES, message.request) + body
        case Cancel():
            return _head(_CANCEL, message.request)
        case Sent():
            return _head(_SENT, message.request)
        case Done():
            return _head(_DONE, message.request)


def decode(data: bytes | bytearray | memoryview) -> Message:
    """The message in these bytes; InvalidArgument names what is wrong, another version among it."""
    if len(data) < _HEAD.size:
        raise _wrong("message", f"has {len(data)} bytes, fewer than its head's {_HEAD.size}")
    version, kind, request = _HEAD.unpack_from(data)
    if version != VERSION:
        raise _wrong("version", f"is {version}; this process speaks version {VERSION}")
    body = memoryview(data)[_HEAD.size:]
    if kind == _ASKS:
        return _decode_ask(request, body)
    if kind == _GRANTS:
        (expires_s,) = _unpack(_GRANT, body, "grant")
        return Grant(request, _duration(expires_s, "expires_s"))
    if kind == _REFUSES:
        number, short_s, retry_after_s = _unpack(_REFUSE, body, "refuse")
        return Refuse(
            request, _reason(number), _duration(short_s, "short_s"), _duration(retry_after_s, "retry_after_s")
        )
    if kind not in _BARE:
        raise _wrong("kind", f"{kind} is none of version {VERSION}")
    if body:
        raise _wrong("message", f"has {len(body)} bytes too many")
    return _BARE[kind](request)


def _encode_ask(ask: Ask) -> bytes:
    name = ask.model.encode()
    if not 0 < len(name) <= MOST_MODEL_BYTES:
        raise _wrong("model", f"has {len(name)} bytes, not 1 to {MOST_MODEL_BYTES}")
    for field, value in (("size_bytes", ask.size_bytes), ("return_bytes", ask.return_bytes)):
        if not 0 <= value <= _MOST_UINT64:
            raise _wrong(field, f"{value} is no unsigned integer of 64 bits")
    if not 0 <= ask.priority <= MOST_PRIORITY:
        raise _wrong("priority", f"{ask.priority} is not from 0 to {MOST_PRIORITY}")
    for field, seconds in (("left_s", ask.left_s), ("at_s", ask.at_s)):
        if seconds is not None and not math.isfinite(seconds):
            raise _wrong(field, f"{seconds} is no time; None stands for none")
    left_s, at_s = (math.nan if each is None else each for each in (ask.left_s, ask.at_s))
    body = _ASK.pack(ask.size_bytes, ask.return_bytes, left_s, at_s, ask.priority, len(name))
    return _head(_ASKS, ask.request) + body + name


def _decode_ask(request: int, body: memoryview) -> Ask:
    if len(body) < _ASK.size:
        raise _wrong("ask", f"has {len(body)} bytes after its head, fewer than {_ASK.size}")
    size_bytes, return_bytes, left_s, at_s, priority, length = _ASK.unpack_from(body)
    name = body[_ASK.size:]
    if length != len(name) or not 0 < length <= MOST_MODEL_BYTES:
        raise _wrong("model", f"{length} bytes are announced, {len(name)} there, 1 to {MOST_MODEL_BYTES} allowed")
    try:
        model = bytes(name).decode()
    except UnicodeDecodeError as error:
        raise _wrong("model", "is no UTF-8") from error
    times = [None if math.isnan(each) else each for each in (left_s, at_s)]
    for field, seconds in zip(("left_s", "at_s"), times, strict=True):
        if seconds is not None and math.isinf(seconds):
            raise _wrong(field, "is infinite")
    return Ask(request, model, size_bytes, times[0], return_bytes, priority, times[1])


def _head(kind: int, request: int) -> bytes:
    if not 0 <= request <= _MOST_UINT64:
        raise _wrong("request", f"{request} is no unsigned integer of 64 bits")
    return _HEAD.pack(VERSION, kind, request)


def _unpack(layout: struct.Struct, body: memoryview, what: str) -> tuple[float, ...]:
    if len(body) != layout.size:
        raise _wrong(what, f"has {len(body)} bytes after its head, not {layout.size}")
    return layout.unpack(body)


def _duration(value: float, field: str) -> float:
    if not math.isfinite(value) or value < 0:
        raise _wrong(field, f"{value} is no duration")
    return value


def _reason(number: float) -> Reason:
    try:
        return Reason(int(number))
    except ValueError as error:
        raise _wrong("reason", f"{number} is none of version {VERSION}") from error


def _wrong(field: str, why: str) -> InvalidArgument:
    return InvalidArgument("this is no message of admission", violations=[Violation(field, why)])
