"""A job on a mesh whose every gRPC connection is mutual TLS: of services, parameter servers, executors, workers."""

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from recmesh.runtime.process import find
from recmesh.runtime.rpc import Tls
from tests.support.certificates import certificates
from tests.support.ports import listening
from tests.support.tiny_jobs import ROWS, tiny_job
from tests.support.training_mesh import TrainingMesh, training_mesh
from tests.support.waiting import until

pytestmark = [pytest.mark.integration, pytest.mark.long]
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"
"""What a client without TLS begins with: HTTP/2's preface, and empty settings."""


@pytest.fixture
def tls(tmp_path: Path) -> Tls:
    return certificates(tmp_path / "tls")


@pytest.fixture
def mesh(tmp_path: Path, tls: Tls) -> Iterator[TrainingMesh]:
    with training_mesh(tmp_path / "mesh", tls=tls) as made:
        yield made


def job_of(mesh: TrainingMesh, name: str, **training: Any) -> dict[str, Any]:
    """Two parameter servers, two workers, two data executors, snapshots every second. Slow, until `hurry`."""
    spec = tiny_job(mesh, name, **training)
    spec["roles"]["worker"]["env"] = {
        "STEP_S": "0.2", "HURRY": str(mesh.folder / "hurry"), "PYTHONPATH": spec["model"].pop("code"),
    }  # fmt: skip
    spec["roles"]["data"] = {"replicas": 2}
    spec["data"]["task_rows"] = 200
    spec["checkpoint"] = {"every_s": 1}
    return spec


def hurry(mesh: TrainingMesh) -> None:
    """What is left goes at full speed."""
    (mesh.folder / "hurry").touch()


def grpc_ports(mesh: TrainingMesh) -> dict[int, str]:
    """All that services and roles listen at, but pages (HTTP); by whom."""
    pages = {int(each.address("ops").rpartition(":")[2].strip("/")) for each in mesh.services.values()}
    found: dict[int, str] = {}
    for name, service in mesh.services.items():
        found |= dict.fromkeys(listening(service.pid).keys() - pages, name)
    for handle in find(mesh.folder / "run" / "jobs", recursive=True):
        if handle.alive():
            found |= dict.fromkeys(listening(handle.pid), handle.name)
    return found


def answer_in_clear(port: int) -> bytes:
    """What a client without TLS gets."""
    with socket.create_connection(("127.0.0.1", port), 10) as plain:
        plain.sendall(PREFACE)
        try:
            return plain.recv(64)
        except ConnectionError:
            return b""


def is_let_in(port: int, context: ssl.SSLContext) -> bool:
    """Whether the handshake, of both sides, ends well: with TLS 1.3 a client hears of its refusal after its own end."""
    context.set_alpn_protocols(["h2"])
    with socket.create_connection(("127.0.0.1", port), 10) as plain:
        try:
            with context.wrap_socket(plain, server_hostname="localhost") as secure:
                secure.sendall(PREFACE)
                return bool(secure.recv(64))
        except OSError:
            return False


def test_a_job_is_trained_to_its_end_and_no_port_of_it_answers_without_a_certificate(
    mesh: TrainingMesh, tls: Tls
) -> None:
    job_id = mesh.submit(job_of(mesh, "secret", epochs=10))
    mesh.until_job(job_id, lambda job: job.phase == "Running" and job.progress.samples >= 500 and job.snapshot >= 1)
    ports = grpc_ports(mesh)
    by_whom = {name.partition("-")[0] for name in ports.values()}
    assert by_whom >= {"shardsvc", "ckptcache", "jobmaster", "ps", "data"}, ports
    for port, name in ports.items():
        assert not answer_in_clear(port).startswith(b"\x00\x00"), f"{name} speaks HTTP/2 without TLS at {port}"
        assert not is_let_in(port, Tls(ca=tls.ca).client_context()), f"{name} asks for no certificate at {port}"
        assert is_let_in(port, tls.client_context()), f"{name} at {port} refuses a certificate of the mesh"
    hurry(mesh)
    assert mesh.until_phase(job_id, "Succeeded").progress.samples == 10 * ROWS


def test_a_parameter_server_that_dies_is_restored_from_snapshots_over_tls(mesh: TrainingMesh) -> None:
    job_id = mesh.submit(job_of(mesh, "restored", epochs=10))
    mesh.until_job(job_id, lambda job: job.snapshot >= 1 and job.progress.samples >= 500)
    mesh.kill_role(job_id, "ps", 0)
    hurry(mesh)
    mesh.until_job(job_id, lambda job: job.gen > 1)
    assert mesh.until_phase(job_id, "Succeeded").progress.samples == 10 * ROWS


def test_roles_and_services_go_on_with_renewed_certificates(mesh: TrainingMesh, tls: Tls, tmp_path: Path) -> None:
    """Of the same authority, which services and roles go on to trust; the new certificates are what strangers see."""

    def serial(port: int) -> str:
        with socket.create_connection(("127.0.0.1", port), 10) as plain, tls.client_context().wrap_socket(
            plain, server_hostname="localhost"
        ) as secure:
            shown: Any = secure.getpeercert()
            return str(shown["serialNumber"])

    job_id = mesh.submit(job_of(mesh, "renewed", epochs=10))
    mesh.until_job(job_id, lambda job: job.phase == "Running" and job.progress.samples >= 500)
    ports, before = grpc_ports(mesh), {}
    for port in ports:
        before[port] = serial(port)
    assert tls.ca is not None
    certificates(tmp_path / "next", authority=tls.ca.parent)
    for name in ("cert.pem", "key.pem"):
        (tmp_path / "next" / name).replace(tls.ca.parent / name)
    for port, name in ports.items():
        until(lambda port=port: serial(port) != before[port], timeout_s=30.0)  # type: ignore[misc]
        assert name
    hurry(mesh)
    mesh.kill_role(job_id, "worker", 0)      # another one, with the new certificate, takes its place
    assert mesh.until_phase(job_id, "Succeeded").progress.samples == 10 * ROWS
