"""`/v1/code`: users' packed code."""

import re
from typing import Annotated

from fastapi import APIRouter, Header, Request, Response
from pydantic import BaseModel, Field

from recmesh.runtime.errors import InvalidArgument, Violation
from services.gateway.rest import openapi
from services.gateway.store.code import CodeStore


class CodeStored(BaseModel):
    """Where code was stored."""

    digest: str = Field(examples=["sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"])
    """What a job's `model.code` names."""
    sha256: str
    size_bytes: int
    created: bool
    """False: it was there already."""


def router(code: CodeStore) -> APIRouter:
    """The routes."""
    routes = APIRouter(prefix="/v1/code", tags=["code"])

    @routes.post(
        "", status_code=201, operation_id="uploadCode", summary="Store packed code",
        responses=openapi.problems(400, 413),
        openapi_extra=openapi.binary("application/gzip", "A tar.gz of the folder with the code"),
    )  # fmt: skip
    async def upload(
        request: Request,
        response: Response,
        x_content_sha256: Annotated[
            str, Header(description="When given, the content must have this digest")
        ] = "",
    ) -> CodeStored:
        """Named by its content, so that sending it again changes nothing. Archives that reach out of their
        folder (absolute paths, `..`, links out, devices) are refused.
        """
        if x_content_sha256 and not re.fullmatch(r"[0-9a-f]{64}", x_content_sha256):
            raise InvalidArgument(
                "the announced digest is not a SHA-256 in lower-case hexadecimal", reason="INVALID_REQUEST",
                violations=[Violation("header.x-content-sha256", "is not 64 hexadecimal digits")],
            )  # fmt: skip
        stored = await code.save(request.stream(), expected_sha256=x_content_sha256)
        if not stored.created:
            response.status_code = 200
        return CodeStored(
            digest=f"sha256:{stored.sha256}",
            sha256=stored.sha256,
            size_bytes=stored.size_bytes,
            created=stored.created,
        )

    return routes
