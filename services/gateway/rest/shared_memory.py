"""`/v2/systemsharedmemory`: tensors in memory that client and gateway share, on one machine."""

from typing import Annotated

from fastapi import APIRouter, Path, Request
from pydantic import BaseModel

from services.gateway.app.ports import Document
from services.gateway.domain.regions import Region
from services.gateway.rest import openapi
from services.gateway.rest.bodies import read_model
from services.gateway.rest.calls import is_local
from services.gateway.store.shared_memory import Access, SharedRegions, regions_for
from services.gateway.wire.oip_documents import regions as document

Name = Annotated[str, Path(description="A region's name", examples=["inputs"], max_length=128)]


class RegionBody(BaseModel):
    """A stretch of a shared memory object."""

    key: str
    """The object's name, as `shm_open` takes it."""
    offset: int = 0
    byte_size: int


def add(routes: APIRouter, shared: SharedRegions, *, access: Access) -> None:
    """The routes."""
    prefix = "/systemsharedmemory"

    @routes.get(
        prefix + "/status", operation_id="sharedMemoryStatus", summary="Registered shared memory",
        responses=openapi.protocol_problems(403),
    )  # fmt: skip
    async def everything(request: Request) -> list[Document]:
        """All regions."""
        return document(regions_for(shared, access, local=is_local(request)).status())

    @routes.get(
        prefix + "/region/{name}/status", operation_id="sharedMemoryRegion",
        summary="One region of shared memory", responses=openapi.protocol_problems(403, 404),
    )  # fmt: skip
    async def one(name: Name, request: Request) -> list[Document]:
        """A list of one."""
        return document(regions_for(shared, access, local=is_local(request)).status(name))

    @routes.post(
        prefix + "/region/{name}/register", operation_id="sharedMemoryRegister",
        summary="Register shared memory", responses=openapi.protocol_problems(400, 403, 404, 409, 429),
        openapi_extra=openapi.body(RegionBody),
    )  # fmt: skip
    async def register(name: Name, request: Request) -> Document:
        """The object must be there, and hold all of the region."""
        given = await read_model(request, RegionBody)
        region = Region(name, given.key, given.offset, given.byte_size)
        regions_for(shared, access, local=is_local(request)).register(region)
        return {}

    @routes.post(
        prefix + "/region/{name}/unregister", operation_id="sharedMemoryUnregister",
        summary="Forget one region", responses=openapi.protocol_problems(403),
    )  # fmt: skip
    async def forget(name: Name, request: Request) -> Document:
        """One that is not registered is no error."""
        regions_for(shared, access, local=is_local(request)).unregister(name)
        return {}

    @routes.post(
        prefix + "/unregister", operation_id="sharedMemoryUnregisterAll", summary="Forget all regions",
        responses=openapi.protocol_problems(403),
    )  # fmt: skip
    async def forget_all(request: Request) -> Document:
        """Of all clients."""
        regions_for(shared, access, local=is_local(request)).unregister()
        return {}
