"""A server that cannot be trusted is told at once, with the setting to look at; one that restarts is tried again."""

import os
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from recmesh.cli.exit_codes import ExitCode, exit_code
from recmesh.client import Client
from recmesh.client.trust import refusal
from recmesh.runtime.errors import InvalidArgument, Unavailable
from tests.support.certificates import certificates

pytestmark = pytest.mark.integration


class Counted(ThreadingHTTPServer):
    """An empty mesh, that counts who calls."""

    daemon_threads = True
    calls = 0

    def get_request(self) -> Any:
        self.calls += 1
        return super().get_request()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that does not trust it is no news."""


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b'{"models": []}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Not on stderr."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`here` with a server's certificate of localhost, `other` with another authority."""
    made = tmp_path_factory.mktemp("certificates")
    for name in ("here", "other"):
        certificates(made / name, names=("localhost",))
    return made


def serving(folder: Path | None) -> Iterator[Counted]:
    server = Counted(("127.0.0.1", 0), Handler)
    if folder is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "here/cert.pem", folder / "here/key.pem")
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def server(folder: Path) -> Iterator[Counted]:
    yield from serving(folder)


@pytest.fixture
def plain() -> Iterator[Counted]:
    yield from serving(None)


def test_whom_its_authority_vouches_for_is_spoken_to(server: Counted, folder: Path) -> None:
    with Client(f"https://localhost:{server.server_port}", ca_file=str(folder / "here/ca.pem")) as mesh:
        assert mesh.models() == []


@pytest.mark.parametrize(("host", "ca", "field", "words"), [
    ("localhost", "other", "ca_file", "other/ca.pem does not vouch for it"),
    ("localhost", "", "ca_file", "RECMESH_CA_FILE"),
    ("127.0.0.1", "here", "url", "name that is in its certificate"),
])
def test_a_certificate_that_is_not_trusted_is_told_at_the_first_try_with_the_setting(
    host: str, ca: str, field: str, words: str, server: Counted, folder: Path
) -> None:
    ca_file = str(folder / ca / "ca.pem") if ca else ""
    with (
        Client(f"https://{host}:{server.server_port}", ca_file=ca_file) as mesh,
        pytest.raises(InvalidArgument, match="is not trusted") as refused,
    ):
        mesh.models()
    assert refused.value.violations[0].path == field and words in refused.value.violations[0].reason
    assert server.calls == 1


def test_an_address_where_nobody_speaks_tls_is_told_at_the_first_try(plain: Counted) -> None:
    with Client(f"https://localhost:{plain.server_port}") as mesh, pytest.raises(InvalidArgument) as refused:
        mesh.models()
    assert refused.value.violations[0].path == "url" and "http://" in refused.value.violations[0].reason
    assert plain.calls == 1


def test_a_certificate_that_ran_out_is_the_mesh_s_fault() -> None:
    over = ssl.SSLCertVerificationError(1, "certificate verify failed")
    over.verify_code, over.verify_message = 10, "certificate has expired"
    error = httpx.ConnectError("failed")
    error.__cause__ = over
    found = refusal(error, url="https://mesh", ca_file="")
    assert isinstance(found, Unavailable) and "certificate has expired" in found.message
    assert exit_code(found) is ExitCode.UNREACHABLE


def test_a_handshake_that_ended_is_tried_again() -> None:
    tries = 0

    def answer(request: httpx.Request) -> httpx.Response:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise httpx.ConnectError("failed") from ssl.SSLEOFError(8, "EOF occurred in violation of protocol")
        return httpx.Response(200, json={"models": []})

    with Client("https://mesh", transport=httpx.MockTransport(answer)) as mesh:
        assert mesh.models() == [] and tries == 3


def test_the_command_says_what_is_wrong_and_ends_with_the_code_of_wrong_input(server: Counted, folder: Path) -> None:
    env = {
        "PATH": os.environ["PATH"], "RECMESH_URL": f"https://localhost:{server.server_port}",
        "RECMESH_CA_FILE": str(folder / "other/ca.pem"),
    }  # fmt: skip
    command = [sys.executable, "-m", "recmesh.cli.main", "models"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env, timeout=120)
    assert done.returncode == ExitCode.USAGE and server.calls == 1, done.stderr
    assert "other/ca.pem does not vouch" in done.stderr and "RECMESH_CA_FILE" in done.stderr
    assert "trying again" not in done.stderr and "Traceback" not in done.stderr
