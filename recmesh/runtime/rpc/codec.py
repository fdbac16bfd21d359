"""MeshError to gRPC status and back; the details travel in the metadata `recmesh-error-bin`.

Violations stand in the status's text, too: others' clients (KEDA, grpcurl) show nothing else.
"""

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from recmesh.pb import common_pb2
from recmesh.runtime.errors import BY_GRPC_CODE, Internal, InvalidArgument, MeshError, Unavailable, Violation
from recmesh.runtime.telemetry import get_logger

ERROR_KEY = "recmesh-error-bin"
MAX_MESSAGE_CHARS = 4_000
MAX_TOLD_CHARS = 500
"""Of violations in the status's text."""
MAX_DETAIL_BYTES = 64 << 10

_log = get_logger(__name__)
_OTHER: dict[grpc.StatusCode, type[MeshError]] = {
    grpc.StatusCode.OUT_OF_RANGE: InvalidArgument,
    grpc.StatusCode.CANCELLED: Unavailable,
}


@dataclass(frozen=True, slots=True)
class Status:
    """What a server answers instead of a response."""

    code: grpc.StatusCode
    message: str
    trailing: tuple[tuple[str, str | bytes], ...]


def status_of(error: BaseException, *, method: str) -> Status:
    """The status of an error that left a handler.

    Anything but a MeshError is a bug: the caller gets an id, and the log has the error under that id.
    """
    if not isinstance(error, MeshError):
        error_id = uuid.uuid4().hex[:12]
        _log.error("%s failed with an unexpected error", method, exc_info=error, extra={"error_id": error_id})
        error = Internal(
            f"internal error in {method}; the service's log has it as {error_id}",
            metadata={"error_id": error_id},
        )
    detail = common_pb2.ErrorDetail(
        reason=error.reason,
        metadata=error.metadata,
        violations=[
            common_pb2.FieldViolation(path=item.path, reason=item.reason) for item in error.violations
        ],
    )
    while detail.ByteSize() > MAX_DETAIL_BYTES and detail.violations:
        del detail.violations[len(detail.violations) // 2 :]
    return Status(
        grpc.StatusCode[error.grpc_code], error.message[:MAX_MESSAGE_CHARS] + _told(error.violations),
        ((ERROR_KEY, detail.SerializeToString()),),
    )


def mesh_error(rpc_error: grpc.RpcError) -> MeshError:
    """The error that the server raised, or that the channel ran into, as its class of the tree."""
    call: Any = rpc_error
    code: grpc.StatusCode = call.code()
    kind = BY_GRPC_CODE.get(code.name) or _OTHER.get(code, Internal)
    detail = _detail(call.trailing_metadata() or ())
    message = call.details() or code.name
    if detail is None:
        return kind(message, reason="" if kind.grpc_code == code.name else code.name)
    violations = [Violation(item.path, item.reason) for item in detail.violations]
    found = kind(
        message.removesuffix(_told(violations)), reason=detail.reason, metadata=dict(detail.metadata),
        violations=violations,
    )
    found.from_server = True
    return found


def _told(violations: Sequence[Violation]) -> str:
    """What follows the message. It depends on the first ones alone, so that those that arrive suffice to tell it."""
    text = ""
    for each in violations:
        text += ("; " if text else ": ") + str(each)
        if len(text) > MAX_TOLD_CHARS:
            return text[: MAX_TOLD_CHARS - 1] + "…"
    return text


def is_answer(rpc_error: grpc.RpcError) -> bool:
    """Whether the server raised it; otherwise the channel ran into it."""
    call: Any = rpc_error
    return _detail(call.trailing_metadata() or ()) is not None


def _detail(metadata: Iterable[Any]) -> common_pb2.ErrorDetail | None:
    for key, value in metadata:
        if key == ERROR_KEY and isinstance(value, bytes):
            try:
                detail = common_pb2.ErrorDetail()
                detail.ParseFromString(value)
                return detail
            except DecodeError:   # another server's metadata of the same name
                return None
    return None
