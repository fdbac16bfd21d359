"""Certificates that are replaced while servers and channels live: gRPC, HTTP, and TCP between CN and HN."""

import asyncio
import importlib
import shutil
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from recmesh.runtime.errors import InvalidArgument, Unavailable
from recmesh.runtime.ops import HttpServer
from recmesh.runtime.rpc import RpcServer, Tls, channel, sync_channel, sync_server
from recmesh.runtime.tls import Renewed, renewing
from tests.support.certificates import certificates

pytestmark = pytest.mark.integration
FILES = ("cert.pem", "key.pem", "ca.pem")


class Echo(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # generic in the stubs only
    """Answers what it is asked, on asyncio."""

    def service(self, handler_call_details: Any) -> Any:
        async def answer(request: bytes, context: Any) -> bytes:
            return request

        return grpc.unary_unary_rpc_method_handler(answer)


class EchoOfThreads(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # generic in the stubs only
    """The same for threads."""

    def service(self, handler_call_details: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(lambda request, context: request)


@pytest.fixture
def live(tmp_path: Path) -> Tls:
    """The files that servers read; by the first authority."""
    return certificates(tmp_path / "live")


@pytest.fixture
def renewed(tmp_path: Path) -> Tls:
    """What they are replaced by: all of another authority, so that no mixture of both can be taken for right."""
    return certificates(tmp_path / "renewed")


@pytest.fixture
def looking(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Channels look at files for each call."""
    for module in ("channel", "sync"):
        monkeypatch.setattr(importlib.import_module(f"recmesh.runtime.rpc.{module}"), "LOOK_S", 0.0)
    yield


def replace(live: Tls, by: Tls) -> None:
    """As the kubelet does: each file is another one at once."""
    assert live.ca is not None and by.ca is not None
    for name in FILES:
        shutil.copy(by.ca.parent / name, live.ca.parent / f"{name}.new")
        (live.ca.parent / f"{name}.new").replace(live.ca.parent / name)


def shown(port: int, who: Tls, *, alpn: str = "") -> bytes:
    """The certificate that the server at the port shows to a new connection."""
    context = who.client_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if alpn:
        context.set_alpn_protocols([alpn])
    with socket.create_connection(("127.0.0.1", port), 10) as plain, context.wrap_socket(plain) as secure:
        found = secure.getpeercert(binary_form=True)
    assert found is not None
    return found


def of(tls: Tls) -> bytes:
    """The certificate in its file."""
    assert tls.cert is not None
    return ssl.PEM_cert_to_DER_cert(tls.cert.read_text()[tls.cert.read_text().index("-----BEGIN") :])


@pytest.mark.asyncio
@pytest.mark.usefixtures("looking")
async def test_a_server_and_a_channel_of_asyncio_take_renewed_files_without_a_restart(live: Tls, renewed: Tls) -> None:
    server = RpcServer("test", "127.0.0.1:0", [lambda made: made.add_generic_rpc_handlers([Echo()])], tls=live)
    await server.start()
    try:
        async with channel(server.address, tls=live) as old:
            ask = old.unary_unary("/test/Echo", None, None)
            assert await ask(b"before", timeout=30.0) == b"before"
            assert await asyncio.to_thread(shown, server.port, live, alpn="h2") == of(live)
            before = of(live)
            replace(live, renewed)
            assert await asyncio.to_thread(shown, server.port, renewed, alpn="h2") == of(renewed) != before
            assert await ask(b"after", timeout=30.0) == b"after"     # by a new connection, with the new certificate
            async with channel(server.address, tls=renewed) as new:
                assert await new.unary_unary("/test/Echo", None, None)(b"new", timeout=30.0) == b"new"
    finally:
        await server.stop()


@pytest.mark.usefixtures("looking")
def test_a_server_and_a_channel_of_threads_take_renewed_files_without_a_restart(live: Tls, renewed: Tls) -> None:
    add = [lambda made: made.add_generic_rpc_handlers([EchoOfThreads()])]
    server = sync_server("test", "127.0.0.1:0", add, tls=live)
    try:
        with sync_channel(server.address, tls=live) as old:
            ask: Any = old.unary_unary("/test/Echo", None, None)
            assert ask(b"before", timeout=30.0) == b"before"
            replace(live, renewed)
            assert shown(server.port, renewed, alpn="h2") == of(renewed)
            assert ask(b"after", timeout=30.0) == b"after"
            assert ask.future(b"once more", timeout=30.0).result() == b"once more"
    finally:
        server.stop(0.0)


@pytest.mark.asyncio
async def test_who_has_a_certificate_of_the_old_authority_alone_is_kept_out_after_the_renewal(
    live: Tls, renewed: Tls, tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    assert live.ca is not None
    shutil.copytree(live.ca.parent, kept)
    outdated = Tls(kept / "cert.pem", kept / "key.pem", renewed.ca, "localhost")
    server = RpcServer("test", "127.0.0.1:0", [lambda made: made.add_generic_rpc_handlers([Echo()])], tls=live)
    await server.start()
    try:
        replace(live, renewed)
        async with channel(server.address, tls=outdated) as old:
            with pytest.raises(Unavailable):
                await old.unary_unary("/test/Echo", None, None)(b"", timeout=3.0)
        async with channel(server.address) as plain:
            with pytest.raises(Unavailable):
                await plain.unary_unary("/test/Echo", None, None)(b"", timeout=3.0)
    finally:
        await server.stop()


@pytest.mark.asyncio
async def test_an_http_server_takes_renewed_files_without_a_restart(live: Tls, renewed: Tls) -> None:
    async def hello(request: Request) -> Response:
        return PlainTextResponse(request.url.scheme)

    serving = Tls(live.cert, live.key)
    server = HttpServer("test", "127.0.0.1:0", Starlette(routes=[Route("/", hello)]), tls=serving)
    await server.start()
    try:
        url, first = f"https://localhost:{server.port}", of(live)
        async with httpx.AsyncClient(verify=Tls(ca=live.ca).client_context(), trust_env=False) as client:
            assert (await client.get(url)).text == "https"
            replace(live, renewed)
            assert (await client.get(url)).text == "https"           # the connection that it has goes on
        assert await asyncio.to_thread(shown, server.port, Tls()) == of(renewed) != first
        async with httpx.AsyncClient(verify=Tls(ca=renewed.ca).client_context(), trust_env=False) as client:
            assert (await client.get(url)).text == "https"
    finally:
        await server.stop()


def test_a_listening_socket_takes_renewed_files_and_its_new_authority(live: Tls, renewed: Tls) -> None:
    context = renewing(live, least=ssl.TLSVersion.TLSv1_3)
    listener = socket.create_server(("127.0.0.1", 0))
    ended = threading.Event()

    def serve() -> None:
        while not ended.is_set():
            plain, _ = listener.accept()
            try:
                with context.wrap_socket(plain, server_side=True) as secure:
                    secure.sendall(b"hello")
            except OSError:
                plain.close()

    threading.Thread(target=serve, daemon=True).start()
    port = listener.getsockname()[1]

    def greeted(who: Tls) -> bytes:
        client = who.client_context()
        client.check_hostname = False
        with socket.create_connection(("127.0.0.1", port), 10) as plain, client.wrap_socket(plain) as secure:
            return secure.recv(5)

    try:
        assert greeted(live) == b"hello"
        replace(live, renewed)
        assert greeted(renewed) == b"hello"
        with pytest.raises(OSError):
            greeted(Tls(ca=renewed.ca))
    finally:
        ended.set()
        socket.create_connection(("127.0.0.1", port), 10).close()
        listener.close()


def test_files_that_do_not_fit_each_other_change_nothing_until_they_do(live: Tls, renewed: Tls) -> None:
    newest = Renewed(live, live.read)
    first = newest.now()
    assert renewed.cert is not None and renewed.key is not None and live.cert is not None and live.key is not None
    shutil.copy(renewed.cert, live.cert)
    assert newest.now() == first
    shutil.copy(renewed.key, live.key)
    assert newest.now()[:2] == renewed.read()[:2]
    live.cert.unlink()
    assert newest.now()[:2] == renewed.read()[:2]


def test_files_are_looked_at_no_more_often_than_said(live: Tls, renewed: Tls) -> None:
    now = [100.0]
    newest = Renewed(live, live.read, every_s=5.0, clock=lambda: now[0])
    first = newest.now()
    replace(live, renewed)
    now[0] = 104.9
    assert newest.now() == first
    now[0] = 105.0
    assert newest.now() == renewed.read()


@pytest.mark.parametrize("spoilt", FILES[:2])
def test_a_server_does_not_start_on_files_that_are_no_certificates(live: Tls, spoilt: str) -> None:
    assert live.ca is not None
    (live.ca.parent / spoilt).write_text("no certificate")
    with pytest.raises(InvalidArgument, match="no pair of PEM files"):
        sync_server("test", "127.0.0.1:0", [], tls=live)
