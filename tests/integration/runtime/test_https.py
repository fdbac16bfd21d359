"""An HTTP server of the mesh with certificates."""

from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from recmesh.runtime.errors import InvalidArgument
from recmesh.runtime.ops import HttpServer
from recmesh.runtime.tls import Tls
from tests.support.certificates import certificates

pytestmark = [pytest.mark.integration, pytest.mark.asyncio]


async def hello(request: Request) -> Response:
    return PlainTextResponse("hello")


APP = Starlette(routes=[Route("/", hello)])


async def test_only_clients_with_a_certificate_of_its_authority_are_let_in(tmp_path: Path) -> None:
    tls = certificates(tmp_path)
    server = HttpServer("test", "127.0.0.1:0", APP, tls=tls)
    await server.start()
    try:
        url = f"https://localhost:{server.port}"
        assert server.address.startswith("https://")
        async with httpx.AsyncClient(verify=tls.client_context(), trust_env=False) as known:
            assert (await known.get(url)).text == "hello"
        async with httpx.AsyncClient(verify=Tls(ca=tls.ca).client_context(), trust_env=False) as stranger:
            with pytest.raises((httpx.ReadError, httpx.ConnectError, httpx.RemoteProtocolError)):
                await stranger.get(url)
    finally:
        await server.stop()


async def test_a_missing_certificate_is_named(tmp_path: Path) -> None:
    for tls, setting in ((Tls(ca=tmp_path / "ca.pem"), "tls_cert"), (Tls(tmp_path / "a", tmp_path / "b"), "tls_cert")):
        server = HttpServer("test", "127.0.0.1:0", APP, tls=tls)
        with pytest.raises(InvalidArgument) as caught:
            await server.start()
        assert caught.value.violations[0].path == setting
        await server.stop()
