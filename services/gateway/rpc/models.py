"""`recmesh.gateway.v1.Models`: the registry, for the mesh's own services."""

from typing import Any

from recmesh.pb import gateway_pb2, gateway_pb2_grpc
from recmesh.runtime.rpc.calls import check_token
from services.gateway.app.models import Models
from services.gateway.wire import registry as wire

SERVICE = "recmesh.gateway.v1.Models"


class ModelsServicer(gateway_pb2_grpc.ModelsServicer):
    """One line per method, after the mesh's token is seen."""

    def __init__(self, models: Models, *, token: str | None) -> None:
        self._models = models
        self._token = token

    async def Register(self, request: gateway_pb2.RegisterRequest, context: Any) -> gateway_pb2.Model:
        """A new version, or the equal one that is there."""
        self._check(context)
        return wire.model(await self._models.register(wire.registration(request)))

    async def List(self, request: gateway_pb2.ListRequest, context: Any) -> gateway_pb2.ListReply:
        """Versions of a model, or of all."""
        self._check(context)
        return wire.models(await self._models.versions(request.name))

    async def Get(self, request: gateway_pb2.GetRequest, context: Any) -> gateway_pb2.Model:
        """One version."""
        self._check(context)
        return wire.model(await self._models.get(request.name, request.version))

    async def Unregister(self, request: gateway_pb2.GetRequest, context: Any) -> gateway_pb2.UnregisterReply:
        """Unload and forget."""
        self._check(context)
        await self._models.unregister(request.name, request.version)
        return gateway_pb2.UnregisterReply()

    def _check(self, context: Any) -> None:
        check_token(self._token, tuple(context.invocation_metadata() or ()), method=f"/{SERVICE}/")
