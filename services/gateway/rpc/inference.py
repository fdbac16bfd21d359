"""`inference.GRPCInferenceService`: the Open Inference Protocol, for everyone who may call the public API."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from recmesh.pb import inference_pb2 as pb
from recmesh.pb import inference_pb2_grpc
from recmesh.runtime.errors import MeshError
from services.gateway.app.access import Access
from services.gateway.app.audit import Audit, outcome_of
from services.gateway.app.inference import Inference
from services.gateway.app.models import Models
from services.gateway.domain.access import is_local_peer
from services.gateway.domain.audit import UNKNOWN, Act, Entry
from services.gateway.domain.callers import INFER, MODELS, Caller
from services.gateway.domain.regions import Region
from services.gateway.store.shared_memory import Access as SharedAccess
from services.gateway.store.shared_memory import Regions, SharedRegions, regions_for
from services.gateway.wire import inference as wire
from services.gateway.wire import repository
from services.gateway.wire.model_config import model_config

SERVICE = "inference.GRPCInferenceService"
STREAM_WINDOW = 32
"""Requests of one stream that are under way; more are read when the first of them is answered."""


class InferenceServicer(inference_pb2_grpc.GRPCInferenceServiceServicer):
    """Clients of the protocol show only a status' message, so every violation is in it."""

    def __init__(
        self, models: Models, inference: Inference, regions: SharedRegions, *, access: Access,
        shared: SharedAccess, audit: Audit | None = None,
    ) -> None:
        self._models = models
        self._inference = inference
        self._shared_regions = regions
        self._access = access
        self._shared = shared
        self._audit = audit

    async def ServerLive(self, request: pb.ServerLiveRequest, context: Any) -> pb.ServerLiveResponse:
        """The process answers."""
        return pb.ServerLiveResponse(live=True)

    async def ServerReady(self, request: pb.ServerReadyRequest, context: Any) -> pb.ServerReadyResponse:
        """What served before a restart serves again, or has failed."""
        return pb.ServerReadyResponse(ready=self._inference.ready)

    async def ModelReady(self, request: pb.ModelReadyRequest, context: Any) -> pb.ModelReadyResponse:
        """True when a request would be run now; an unknown model is an error."""
        with self._call(context, INFER, request.name):
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
        with self._call(context, INFER, request.name):
            return wire.metadata(*await self._inference.metadata(request.name, request.version))

    async def ModelInfer(self, request: pb.ModelInferRequest, context: Any) -> pb.ModelInferResponse:
        """Run a model."""
        with self._call(context, INFER, request.model_name) as caller:
            self._access.spend(caller)
            return await self._infer(request, self._regions(context))

    async def ModelStreamInfer(
        self, request_iterator: AsyncIterator[pb.ModelInferRequest], context: Any
    ) -> AsyncIterator[pb.ModelStreamInferResponse]:
        """Requests run side by side; answers come in the requests' order, each with its own error if any."""
        with self._call(context) as caller:
            regions = self._regions(context)
        answers: asyncio.Queue[asyncio.Task[pb.ModelStreamInferResponse] | None] = asyncio.Queue(STREAM_WINDOW)
        under_way: set[asyncio.Task[Any]] = set()

        async def read() -> None:
            async for request in request_iterator:
                task = asyncio.create_task(self._answer(request, regions, caller))
                under_way.add(task)
                task.add_done_callback(under_way.discard)
                await answers.put(task)
            await answers.put(None)

        reading = asyncio.create_task(read())
        try:
            while (task := await _first(answers, reading)) is not None:
                yield await task
        finally:
            for each in (reading, *under_way):
                each.cancel()
            await asyncio.gather(reading, *under_way, return_exceptions=True)

    async def ModelConfig(self, request: pb.ModelConfigRequest, context: Any) -> pb.ModelConfigResponse:
        """What a model takes and gives, and its batching, in Triton's words."""
        with self._call(context, INFER, request.name):
            found = await self._inference.config(request.name, request.version)
            return pb.ModelConfigResponse(config=model_config(*found))

    async def SystemSharedMemoryStatus(
        self, request: pb.SystemSharedMemoryStatusRequest, context: Any
    ) -> pb.SystemSharedMemoryStatusResponse:
        """Registered regions."""
        with self._call(context):
            return wire.shared_memory(self._regions(context).status(request.name))

    async def SystemSharedMemoryRegister(
        self, request: pb.SystemSharedMemoryRegisterRequest, context: Any
    ) -> pb.SystemSharedMemoryRegisterResponse:
        """Make a region known."""
        with self._call(context):
            region = Region(request.name, request.key, request.offset, request.byte_size)
            self._regions(context).register(region)
            return pb.SystemSharedMemoryRegisterResponse()

    async def SystemSharedMemoryUnregister(
        self, request: pb.SystemSharedMemoryUnregisterRequest, context: Any
    ) -> pb.SystemSharedMemoryUnregisterResponse:
        """Forget a region, or all."""
        with self._call(context):
            self._regions(context).unregister(request.name)
            return pb.SystemSharedMemoryUnregisterResponse()

    async def ModelStatistics(
        self, request: pb.ModelStatisticsRequest, context: Any
    ) -> pb.ModelStatisticsResponse:
        """Counts and times."""
        with self._call(context, INFER, request.name) as caller:
            found = await self._inference.statistics(request.name, request.version)
            return wire.statistics({key: item for key, item in found.items() if caller.sees(key[0])})

    async def RepositoryIndex(
        self, request: pb.RepositoryIndexRequest, context: Any
    ) -> pb.RepositoryIndexResponse:
        """All versions with their states."""
        with self._call(context) as caller:
            entry = pb.RepositoryIndexResponse.ModelIndex
            found = [item for item in await self._inference.index(only_ready=request.ready) if caller.sees(item.name)]
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
        async with self._change(context, "load", request.model_name):
            version = repository.load_version(wire.parameters(request.parameters))
            await self._models.load(request.model_name, version)
            return pb.RepositoryModelLoadResponse()

    async def RepositoryModelUnload(
        self, request: pb.RepositoryModelUnloadRequest, context: Any
    ) -> pb.RepositoryModelUnloadResponse:
        """Unload a model."""
        async with self._change(context, "unload", request.model_name) as caller:
            version, dependents = repository.unload_choice(wire.parameters(request.parameters))
            await self._inference.unload(request.model_name, version, dependents=dependents, caller=caller)
            return pb.RepositoryModelUnloadResponse()

    async def _infer(self, request: pb.ModelInferRequest, regions: Regions) -> pb.ModelInferResponse:
        asked = wire.infer_request(request, memory=regions)
        return wire.infer_response(asked, await self._models.infer(asked), memory=regions)

    async def _answer(
        self, request: pb.ModelInferRequest, regions: Regions, caller: Caller
    ) -> pb.ModelStreamInferResponse:
        try:
            caller.check(INFER, request.model_name)
            self._access.spend(caller)
            return wire.stream_answer(await self._infer(request, regions))
        except MeshError as error:
            return wire.stream_error(request, error)

    def _regions(self, context: Any) -> Regions:
        return regions_for(self._shared_regions, self._shared, local=is_local_peer(context.peer()))

    def _caller(self, context: Any) -> Caller:
        metadata = dict(context.invocation_metadata() or ())
        return self._access.caller(str(metadata.get("authorization", "")))

    @asynccontextmanager
    async def _change(self, context: Any, verb: str, model: str) -> AsyncIterator[Caller]:
        """As `_call`, and it is written down who did it."""
        act = Act(verb, "model", model)
        known: list[str] = []
        try:
            with self._call(context, MODELS, model, known) as caller:
                yield caller
        except MeshError as error:
            who = known[0] if known else UNKNOWN
            await self._record(Entry(act, who, outcome_of(error), "rpc", reason=error.reason, peer=context.peer()))
            raise
        await self._record(Entry(act, known[0], "done", "rpc", peer=context.peer()))

    async def _record(self, entry: Entry) -> None:
        if self._audit is not None:
            await self._audit.record(entry)

    @contextmanager
    def _call(
        self, context: Any, scope: str = INFER, model: str = "", known: list[str] | None = None
    ) -> Iterator[Caller]:
        """`known` gets the caller's name, before it is looked at what it may do."""
        try:
            caller = self._caller(context)
            if known is not None:
                known.append(caller.name)
            caller.check(scope, model)
            yield caller
        except MeshError as error:
            if "retry_after_s" in error.metadata:
                context.set_trailing_metadata((("retry-after", error.metadata["retry_after_s"]),))
            raise type(error)(
                str(error), reason=error.reason, violations=error.violations, metadata=error.metadata
            ) from None


async def _first(
    answers: "asyncio.Queue[asyncio.Task[pb.ModelStreamInferResponse] | None]", reading: "asyncio.Task[None]"
) -> "asyncio.Task[pb.ModelStreamInferResponse] | None":
    """The next answer; raises what ended the reading, so that a broken stream does not wait for ever."""
    getting = asyncio.ensure_future(answers.get())
    if not reading.done():
        await asyncio.wait({getting, reading}, return_when=asyncio.FIRST_COMPLETED)
    if reading.done() and reading.exception() is not None and not getting.done() and answers.empty():
        getting.cancel()
        reading.result()
    return await getting
