"""Parameters of the repository extension's load and unload."""

from collections.abc import Mapping
from typing import Any

from recmesh.runtime.errors import InvalidArgument, Violation


def load_version(parameters: Mapping[str, Any]) -> str:
    """Which version to load. Triton's `config` and `file:...` would replace a model's files: refused."""
    _only(parameters, ("version",), "a model is loaded as it was registered")
    return _version(parameters)


def unload_choice(parameters: Mapping[str, Any]) -> tuple[str, bool]:
    """Which version to unload, and whether the models of an ensemble go with it."""
    _only(parameters, ("version", "unload_dependents"), "there is no such parameter")
    dependents = parameters.get("unload_dependents", False)
    if not isinstance(dependents, bool):
        raise _wrong("unload_dependents", "is not true or false")
    return _version(parameters), dependents


def _version(parameters: Mapping[str, Any]) -> str:
    version = parameters.get("version", "")
    if isinstance(version, bool) or not isinstance(version, (str, int)):
        raise _wrong("version", "is not a version")
    return str(version)


def _only(parameters: Mapping[str, Any], known: tuple[str, ...], why: str) -> None:
    for name in parameters:
        if name not in known:
            raise _wrong(name, f"is not taken here: {why}")


def _wrong(name: str, why: str) -> InvalidArgument:
    path = f"parameters.{name}"
    return InvalidArgument(f"{path} {why}", reason="BAD_PARAMETER", violations=[Violation(path, why)])
