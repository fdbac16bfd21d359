"""A mesh that other machines can reach, with certificates on all of its ports, and what strangers get there."""

import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from recmesh.cli.mesh import stop
from recmesh.client.rest import Client
from recmesh.pb import gateway_pb2, gateway_pb2_grpc, inference_pb2, inference_pb2_grpc
from recmesh.runtime.errors import InvalidArgument, NotFound, Unauthenticated, Unavailable
from recmesh.runtime.rpc import Tls, sync_channel
from tests.support.certificates import certificates
from tests.support.ports import listening
from tests.support.whole_mesh import WholeMesh

pytestmark = [pytest.mark.integration, pytest.mark.e2e]
KEY = "the-callers-key"
ELSEWHERE = "127.0.0.2"
"""Answers for who listens at all addresses, and for nobody who listens at 127.0.0.1: what other machines can reach."""
OPEN = {"/healthz", "/readyz", "/docs", "/openapi.json"}
PROBES = {"ServerLive", "ServerReady"}
"""Of the inference protocol: they say no more than gRPC's own health service."""
VERBS = ("get", "put", "post", "delete", "patch")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("closed")


@pytest.fixture(scope="module")
def tls(folder: Path) -> Tls:
    return certificates(folder / "tls", names=["recmesh", "127.0.0.1", ELSEWHERE, "localhost"])


@pytest.fixture(scope="module")
def mesh(folder: Path, tls: Tls) -> Iterator[WholeMesh]:
    made = WholeMesh(folder, RECMESH_CA_FILE=str(tls.ca), RECMESH_API_KEY=KEY)
    made.home.root.mkdir()
    made.home.config_file.write_text(f'''
listen = "0.0.0.0"
[env]
RECMESH_TLS_CERT = "{tls.cert}"
RECMESH_TLS_KEY = "{tls.key}"
RECMESH_TLS_CA = "{tls.ca}"
RECMESH_TLS_SERVER_NAME = "localhost"
RECMESH_HTTP_TLS_CERT = "{tls.cert}"
RECMESH_HTTP_TLS_KEY = "{tls.key}"
RECMESH_METRICS_KEY = "for-prometheus"
''')
    try:
        made.up()
        yield made
    finally:
        made.down()


@pytest.fixture(scope="module")
def url(mesh: WholeMesh) -> str:
    """Of the API, as other machines reach it."""
    return f"https://{ELSEWHERE}:{mesh.client.url.rpartition(':')[2]}"


def test_nothing_but_the_gateway_can_be_reached_from_elsewhere(mesh: WholeMesh) -> None:
    found = {}
    for handle in stop.living(mesh.home):
        for port, host in listening(handle.pid).items():
            found[port] = (handle.name, host)
    assert {name for name, _ in found.values()} >= {"nats", "valkey", "brain", "jobmaster", "shardsvc", "gateway"}
    for port, (name, host) in found.items():
        with socket.socket() as stranger:
            stranger.settimeout(10)
            reached = stranger.connect_ex((ELSEWHERE, port)) == 0
        assert reached == (name == "gateway"), (name, host, port)


def test_no_page_and_no_call_is_answered_without_a_key(mesh: WholeMesh, url: str, tls: Tls) -> None:
    with httpx.Client(base_url=url, verify=Tls(ca=tls.ca).client_context(), trust_env=False, timeout=60) as stranger:
        described = stranger.get("/openapi.json").json()["paths"]
        asked = [(verb, re.sub(r"\{[^}]+\}", "x", path)) for path, verbs in described.items()
                 for verb in VERBS if verb in verbs]
        pages = ["/", "/ops", "/ops/data", "/serving", "/metrics", "/ops//data", "//v1/jobs", "/%6fps/data"]
        asked += [("get", page) for page in pages]
        assert len(asked) > 50
        for verb, path in asked:
            if path not in OPEN:
                assert stranger.request(verb, path).status_code == 401, (verb, path)
                bad = {"Authorization": "Bearer for-prometheus"}
                wanted = 200 if path == "/metrics" else 401
                assert stranger.request(verb, path, headers=bad).status_code == wanted, (verb, path)
        assert stranger.get("/v1/jobs", headers={"Authorization": f"Bearer {KEY}"}).status_code == 200


@pytest.fixture(scope="module")
def rpc_address(mesh: WholeMesh) -> str:
    """Of gateway's gRPC, as other machines reach it."""
    http = int(mesh.client.url.rpartition(":")[2])
    [port] = set(listening(mesh.component("gateway").pid)) - {http}
    return f"{ELSEWHERE}:{port}"


def test_no_call_by_grpc_is_answered_without_a_certificate(rpc_address: str, tls: Tls) -> None:
    for who in (None, Tls(ca=tls.ca, server_name="localhost")):
        with sync_channel(rpc_address, tls=who) as channel, pytest.raises(Unavailable):
            stub = inference_pb2_grpc.GRPCInferenceServiceStub(channel)
            stub.ServerLive(inference_pb2.ServerLiveRequest(), timeout=3)


@pytest.mark.parametrize("token", [None, "for-prometheus"])
@pytest.mark.parametrize(("messages", "stubs"), [(inference_pb2, inference_pb2_grpc), (gateway_pb2, gateway_pb2_grpc)])
def test_no_call_by_grpc_is_answered_without_a_key(
    rpc_address: str, tls: Tls, token: str | None, messages: Any, stubs: Any
) -> None:
    """The certificate alone is not enough."""
    [(name, service)] = messages.DESCRIPTOR.services_by_name.items()
    with sync_channel(rpc_address, tls=tls, token=token) as channel:
        stub = getattr(stubs, f"{name}Stub")(channel)
        for method in (each for each in service.methods if each.name not in PROBES):
            request = getattr(messages, method.input_type.name)()
            with pytest.raises(Unauthenticated):
                given = iter([request]) if method.client_streaming else request
                answer = getattr(stub, method.name)(given, timeout=20)
                if method.server_streaming:
                    next(iter(answer))


def test_the_command_line_speaks_https_to_it(mesh: WholeMesh, tls: Tls, url: str) -> None:
    assert "There are no jobs" in mesh.ok("jobs")
    assert "There are no jobs" in mesh.ok("--ca-file", str(tls.ca), "jobs", RECMESH_URL=url, RECMESH_CA_FILE="")
    with Client(url, api_key=KEY, ca_file=str(tls.ca)) as client, pytest.raises(NotFound):
        client.job("absent")
    with Client(url, api_key=KEY, timeout_s=2.0) as client:
        with pytest.raises(InvalidArgument, match="is not trusted"):
            client.job("absent")
