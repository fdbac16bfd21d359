"""Calls that go through the proxy of a chaos run: it learns from their metadata where they were meant to go."""

from collections import namedtuple
from collections.abc import Callable
from typing import Any

import grpc

from recmesh.runtime.rpc.options import channel_options
from recmesh.runtime.rpc.sync import SyncMeshChannel

PROXY = "RECMESH_CHAOS_PROXY"
"""The variable with the proxy's address."""
TARGET = "recmesh-chaos-target"
"""The metadata key with the address that was meant."""


def detour(proxy: str, target: str, *, token: str | None) -> SyncMeshChannel:
    """A channel to the proxy; all its calls have one response."""
    inner = grpc.intercept_channel(grpc.insecure_channel(proxy, options=channel_options(None)), _Tells(target))
    return SyncMeshChannel(target, lambda: inner, token)


_Details = namedtuple("_Details", ("method", "timeout", "metadata", "credentials", "wait_for_ready", "compression"))


class _Tells(grpc.UnaryUnaryClientInterceptor):  # type: ignore[type-arg]  # generic in the stubs only
    """Adds the target to each call."""

    def __init__(self, target: str) -> None:
        self._target = target

    def intercept_unary_unary(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        """See grpc."""
        metadata = (*(details.metadata or ()), (TARGET, self._target))
        changed = _Details(
            details.method, details.timeout, metadata, details.credentials, details.wait_for_ready, details.compression
        )
        return continuation(changed, request)
