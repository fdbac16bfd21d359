"""`inference.GRPCInferenceService`: the Open Inference Protocol, for everyone who may call the public API."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from recmesh.pb import inference_pb2 as pb
from recmesh.pb import inference_pb2_grpc
from recmesh.runtime.errors import MeshError
from recmesh.runtime.rpc import remaining_s
from services.gateway.app.inference import Inference
from services.gateway.app.models import Models
from services.gateway.domain.access import authorize
from services.gateway.wire import inference as wire

SERVICE = "inference.GRPCInferenceService"


class InferenceServicer(inference_pb2_grpc.GRPCInferenceServiceServicer):
    """Clients of the protocol show only a status' message, so every violation is in it."""

    def __init__(self, models: Models, inference: Inference, *, api_key: str | None) -> None:
        self._models = models
        self._inference = inference
        self._api_key = api_key

    async def ServerLive(self, request: pb.ServerLiveRequest, context: Any) -> pb.ServerLiveResponse:
        """The process answers."""
        return pb.ServerLiveResponse(live=True)

    async def ServerReady(self, request: pb.ServerReadyRequest, context: Any) -> pb.ServerReadyResponse:
        """What served before a restart serves again, or has failed."""
        return pb.ServerReadyResponse(ready=self._inference.ready)

    async def ModelReady(self, request: pb.ModelReadyRequest, context: Any) -> pb.ModelReadyResponse:
        """True when a request would be run now; an unknown model is an error."""
        with self._call(context):
            return pb.ModelReadyResponse(
                ready=await self._inference.model_ready(request.name, request.version)
            )

    async def ServerMetadata(
        self, request: pb.ServerMetadataRequest, context: Any
    ) -> pb.ServerMetadataResponse:
        """Name, version, extensions."""
        with self._call(context):
            found = self._inference.server()
            return pb.ServerMetadataResponse(
                name=found.name, version=found.version, extensions=found.extensions
            )

    async def ModelMetadata(self, request: pb.ModelMetadataRequest, context: Any) -> pb.ModelMetadataResponse:
        """Inputs and outputs of a model."""
        with self._call(context):
            return wire.metadata(*await self._inference.metadata(request.name, request.version))

    async def ModelInfer(self, request: pb.ModelInferRequest, context: Any) -> pb.ModelInferResponse:
        """Run a model."""
        with self._call(context):
            response = await self._models.infer(wire.infer_request(request), budget_s=remaining_s())
            return wire.infer_response(response)

    async def ModelStatistics(
        self, request: pb.ModelStatisticsRequest, context: Any
    ) -> pb.ModelStatisticsResponse:
        """Counts and times."""
        with self._call(context):
            return wire.statistics(await self._inference.statistics(request.name, request.version))

    async def RepositoryIndex(
        self, request: pb.RepositoryIndexRequest, context: Any
    ) -> pb.RepositoryIndexResponse:
        """All versions with their states."""
        with self._call(context):
            entry = pb.RepositoryIndexResponse.ModelIndex
            found = await self._inference.index(only_ready=request.ready)
            return pb.RepositoryIndexResponse(
                models=[
                    entry(name=item.name, version=item.version, state=item.state, reason=item.reason)
                    for item in found
                ]
            )

    async def RepositoryModelLoad(
        self, request: pb.RepositoryModelLoadRequest, context: Any
    ) -> pb.RepositoryModelLoadResponse:
        """Load a version; the newest when none is named."""
        with self._call(context):
            version = str(wire.parameters(request.parameters).get("version", ""))
            await self._models.load(request.model_name, version)
            return pb.RepositoryModelLoadResponse()

    async def RepositoryModelUnload(
        self, request: pb.RepositoryModelUnloadRequest, context: Any
    ) -> pb.RepositoryModelUnloadResponse:
        """Unload a model."""
        with self._call(context):
            version = str(wire.parameters(request.parameters).get("version", ""))
            await self._models.unload(request.model_name, version)
            return pb.RepositoryModelUnloadResponse()

    @contextmanager
    def _call(self, context: Any) -> Iterator[None]:
        try:
            if self._api_key is not None:
                metadata = dict(context.invocation_metadata() or ())
                authorize(str(metadata.get("authorization", "")), self._api_key)
            yield
        except MeshError as error:
            raise type(error)(
                str(error), reason=error.reason, violations=error.violations, metadata=error.metadata
            ) from None
