"""Errors that may cross a service boundary.

    MeshError
    ├── CallerError            the request is at fault; the same request will fail again
    │   ├── InvalidArgument    with one violation per wrong field
    │   ├── NotFound
    │   ├── AlreadyExists
    │   ├── FailedPrecondition the state forbids it now
    │   ├── Unauthenticated
    │   ├── PermissionDenied
    │   └── ResourceExhausted  a limit or quota of the caller
    └── MeshFault              recmesh or its machines are at fault
        ├── Unavailable        retry after a while
        ├── Aborted            lost a race; read again, then retry
        ├── DeadlineExceeded
        ├── DataLoss           what was stored is damaged or gone
        └── Internal           a bug
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Violation:
    """One wrong field: its path (`roles.worker.replicas`) and why."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class MeshError(Exception):
    """Base of every error that may cross a service boundary."""

    grpc_code: ClassVar[str] = "UNKNOWN"
    http_status: ClassVar[int] = 500
    from_server: bool = False
    """The server that was called raised it; False: it was raised here, be it for a server that did not answer."""

    def __init__(
        self,
        message: str,
        *,
        reason: str = "",
        violations: Sequence[Violation] = (),
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason or type(self).__name__
        self.violations = tuple(violations)
        self.metadata = dict(metadata or {})

    def __str__(self) -> str:
        return "\n  ".join([self.message, *map(str, self.violations)])


class CallerError(MeshError):
    """The request is at fault."""


class InvalidArgument(CallerError):
    """A field is wrong; `violations` say which and why."""

    grpc_code = "INVALID_ARGUMENT"
    http_status = 400


class NotFound(CallerError):
    """The named thing does not exist."""

    grpc_code = "NOT_FOUND"
    http_status = 404


class AlreadyExists(CallerError):
    """The name is taken by something different."""

    grpc_code = "ALREADY_EXISTS"
    http_status = 409


class FailedPrecondition(CallerError):
    """The state forbids it now."""

    grpc_code = "FAILED_PRECONDITION"
    http_status = 409


class Unauthenticated(CallerError):
    """No credential, or a wrong one."""

    grpc_code = "UNAUTHENTICATED"
    http_status = 401


class PermissionDenied(CallerError):
    """The credential does not allow it."""

    grpc_code = "PERMISSION_DENIED"
    http_status = 403


class ResourceExhausted(CallerError):
    """A limit or quota of the caller is used up."""

    grpc_code = "RESOURCE_EXHAUSTED"
    http_status = 429


class MeshFault(MeshError):
    """recmesh or its machines are at fault."""


class Unavailable(MeshFault):
    """Not reachable or not ready; retry after a while."""

    grpc_code = "UNAVAILABLE"
    http_status = 503


class Aborted(MeshFault):
    """A race was lost; read again, then retry."""

    grpc_code = "ABORTED"
    http_status = 409


class DeadlineExceeded(MeshFault):
    """The caller's time is over."""

    grpc_code = "DEADLINE_EXCEEDED"
    http_status = 504


class DataLoss(MeshFault):
    """What was stored is damaged or gone."""

    grpc_code = "DATA_LOSS"
    http_status = 500


class Internal(MeshFault):
    """A bug in recmesh."""

    grpc_code = "INTERNAL"
    http_status = 500


BY_GRPC_CODE: Mapping[str, type[MeshError]] = {
    kind.grpc_code: kind
    for kind in (
        InvalidArgument, NotFound, AlreadyExists, FailedPrecondition, Unauthenticated,
        PermissionDenied, ResourceExhausted, Unavailable, Aborted, DeadlineExceeded, DataLoss, Internal,
    )
}
"""The error class that a gRPC status stands for."""
