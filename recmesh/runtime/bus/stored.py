"""Writing to JetStream: acknowledged, deduplicated, safe to repeat; and the streams themselves."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import nats.errors
from nats.js import api
from nats.js import errors as js_errors

from recmesh.runtime.bus.link import ATTEMPT_S, Link, Session
from recmesh.runtime.errors import (
    Aborted,
    FailedPrecondition,
    InvalidArgument,
    MeshError,
    ResourceExhausted,
    Unavailable,
    Violation,
)

DUPLICATE_WINDOW_S = 120.0
_WRONG_LAST_SEQUENCE = (10071, 10164)
_NO_SPACE = (10023, 10047, 10077, 10122)   # resources, storage and message limits of server, account, stream
_NAME_IN_USE = 10058
_NO_RESERVE = (10023, 10028, 10047)   # what the server, the account or the disk has left is less than asked for
LEAST_STREAM_BYTES = 16 << 20
"""A stream with a limit gets at least this much; where the server has less, it has too little."""


async def store(
    link: Link, subject: str, payload: bytes, *, message_id: str, headers: Mapping[str, str] | None = None,
    expected_last: int | None = None, stream: str = "", timeout_s: float | None = None, last: bool = False,
) -> int:
    """The sequence under which JetStream keeps the message.

    Repeated under the same `message_id` after a lost answer, it is stored once and the first sequence
    comes back. `expected_last` is the subject's last sequence (0: none): Aborted when it is another
    (with `stream` given, and unless the last one is this very message: the server checks the sequence
    before the id, so a repeat whose first answer was lost looks like a lost race).
    InvalidArgument when the message exceeds what the server carries; ResourceExhausted, and nothing was sent,
    when its disk is full (`last`: it may use the reserve).
    """
    all_headers = dict(headers or {})
    all_headers[api.Header.MSG_ID.value] = message_id
    if expected_last is not None:
        all_headers[api.Header.EXPECTED_LAST_SUBJECT_SEQUENCE.value] = str(expected_last)

    attempts = 0

    async def publish(session: Session) -> int:
        nonlocal attempts
        attempts += 1
        # Again: a server whose disk is full answers nothing, and the next attempt tells why.
        if attempts > 1 and (reason := link.room.objection(last=last)):
            raise Unavailable(f"{subject}: not known whether it was stored: {reason}", reason="DATA_FOLDER_FULL")
        check_size(session, subject, payload, all_headers)
        try:
            ack = await session.js.publish(
                subject, payload, timeout=ATTEMPT_S, headers=all_headers, stream=stream or None
            )
        except js_errors.APIError as error:
            if error.err_code in _WRONG_LAST_SEQUENCE and stream:
                mine = await _sequence_of(session, stream, subject, message_id)
                if mine is not None:
                    return mine
            raise _explained(error, subject) from error
        except nats.errors.MaxPayloadError:
            raise _too_large(subject, len(payload), session.client.max_payload) from None
        return int(ack.seq)

    link.room.check(last=last)
    return await link.call(f"publish {subject}", publish, timeout_s=timeout_s)


async def _sequence_of(session: Session, stream: str, subject: str, message_id: str) -> int | None:
    try:
        last = await session.js.get_last_msg(stream, subject)
    except js_errors.NotFoundError:
        return None
    stored_id = (last.headers or {}).get(api.Header.MSG_ID.value)
    return int(last.seq) if stored_id == message_id and last.seq is not None else None


def check_size(session: Session, subject: str, payload: bytes, headers: Mapping[str, str]) -> None:
    """InvalidArgument before the server closes the connection over a message that is too large."""
    size = len(payload) + sum(len(name) + len(value) + 4 for name, value in headers.items()) + 12
    if size > session.client.max_payload:
        raise _too_large(subject, size, session.client.max_payload)


async def ensure_stream(link: Link, config: api.StreamConfig) -> None:
    """Create the stream, or bring an existing one to this configuration. Safe to call at any time.

    `max_bytes` is what the stream gets where the server has room for it; else it is the largest half of a
    half that fits, or what the stream has already. ResourceExhausted when even `LEAST_STREAM_BYTES` do not.
    """

    async def ensure(session: Session) -> None:
        asked = config
        while True:
            try:
                return await _ensure(session, asked)
            except FailedPrecondition:
                link.room.check()   # what a full disk does to a stream is told in many ways
                raise
            except js_errors.APIError as refused:
                link.room.check()
                if refused.err_code not in _NO_RESERVE:
                    if refused.err_code in _NO_SPACE:
                        raise _no_room(config, refused) from None
                    raise
                smaller = await _smaller(session, asked)
                if smaller is None:
                    raise _no_room(config, refused) from None
                asked = smaller

    await link.call(f"stream {config.name}", ensure, timeout_s=30)


async def _ensure(session: Session, config: api.StreamConfig) -> None:
    # Update first: asked to add, a server that has reserved most of its storage for this very stream
    # answers that there is no room for it, before it sees that it exists.
    try:
        await session.js.update_stream(config)
        return
    except js_errors.NotFoundError:
        pass
    except js_errors.APIError as refused:
        raise _unchangeable(config, refused) from None
    try:
        await session.js.add_stream(config)
    except js_errors.BadRequestError as error:
        if error.err_code != _NAME_IN_USE:
            if error.err_code in _NO_SPACE:
                raise
            raise FailedPrecondition(f"stream {config.name}: {error.description}") from None
        try:   # somebody else made it in between
            await session.js.update_stream(config)
        except js_errors.APIError as refused:
            raise _unchangeable(config, refused) from None


async def _smaller(session: Session, config: api.StreamConfig) -> api.StreamConfig | None:
    """What to ask for next; None when there is nothing smaller that would do."""
    size = config.max_bytes or 0
    if size <= 0:
        return None
    try:
        present = (await session.js.stream_info(config.name or "")).config.max_bytes or 0
    except js_errors.NotFoundError:
        present = 0
    if present:   # it lives already: never below what it was given when there was more
        return dataclasses.replace(config, max_bytes=present) if 0 < present < size else None
    return dataclasses.replace(config, max_bytes=size // 2) if size // 2 >= LEAST_STREAM_BYTES else None


def _no_room(config: api.StreamConfig, refused: js_errors.APIError) -> ResourceExhausted:
    needed = f"at least {LEAST_STREAM_BYTES >> 20} MiB" if (config.max_bytes or 0) > 0 else "some MiB"
    return ResourceExhausted(
        f"the data folder of NATS is too full: no room for the stream {config.name}, which needs {needed} "
        f"({refused.description})", reason="NO_SPACE",
    )


def _unchangeable(config: api.StreamConfig, refused: js_errors.APIError) -> Exception:
    if refused.err_code in _NO_SPACE:
        return refused
    return FailedPrecondition(
        f"stream {config.name} exists with settings that cannot be changed: {refused.description}"
    )


def _explained(error: js_errors.APIError, subject: str) -> Exception:
    if error.err_code in _WRONG_LAST_SEQUENCE:
        return Aborted(f"{subject} was changed by somebody else", reason="WRONG_REVISION")
    if error.err_code in _NO_SPACE:
        message = f"JetStream has no room for {subject}: {error.description}"
        return ResourceExhausted(message, reason="NO_SPACE")
    return error


def refusal(answer: Mapping[str, Any], subject: str) -> MeshError:
    """What JetStream's answer to a publish means when it holds an error."""
    error = js_errors.APIError(
        code=int(answer.get("code") or 0), err_code=int(answer.get("err_code") or 0),
        description=str(answer.get("description") or ""),
    )
    known = _explained(error, subject)
    if isinstance(known, MeshError):
        return known
    return FailedPrecondition(f"JetStream refuses a message for {subject}: {error.description}", reason="REFUSED")


def _too_large(subject: str, size: int, limit: int) -> InvalidArgument:
    reason = f"{size} bytes; NATS carries at most {limit}"
    return InvalidArgument(
        f"the message for {subject} is too large: {reason}", reason="TOO_LARGE",
        violations=[Violation("payload", reason)],
    )
