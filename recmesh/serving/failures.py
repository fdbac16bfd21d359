"""Errors as fields of a frame's header, and back."""

from recmesh.runtime.errors import BY_GRPC_CODE, Internal, MeshError, Violation
from recmesh.serving.frames import Header

MOST_CHARACTERS = 2000
_KINDS = {kind.__name__: kind for kind in BY_GRPC_CODE.values()}


def describe(error: BaseException) -> Header:
    """The fields that say what went wrong; of what is no MeshError, that the model or its runtime is at fault."""
    if not isinstance(error, MeshError):
        return {"error": f"{type(error).__name__}: {error}"[:MOST_CHARACTERS], "reason": "MODEL_ERROR"}
    return {
        "error": error.message[:MOST_CHARACTERS], "reason": error.reason, "kind": type(error).__name__,
        "violations": [[item.path, item.reason] for item in error.violations],
    }  # fmt: skip


def rebuilt(header: Header) -> MeshError:
    """The error that a header with `error` tells of; Internal when it does not say which."""
    kind = _KINDS.get(str(header.get("kind")), Internal)
    violations = [Violation(str(path), str(reason)) for path, reason in header.get("violations", ())]
    return kind(str(header["error"]), reason=str(header.get("reason", "")), violations=violations)
