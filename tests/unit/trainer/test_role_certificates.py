"""How a role speaks to others where it has certificates."""

from pathlib import Path

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from recmesh.runtime.errors import InvalidArgument, Unavailable
from recmesh.runtime.rpc import sync_server
from recmesh.trainer.role import Identity
from tests.support.certificates import certificates

ENV = {"RECMESH_ROLE": "worker", "RECMESH_JOB_ID": "j", "RECMESH_JOBMASTER": "127.0.0.1:1"}


@pytest.mark.long
def test_a_role_takes_only_roles_for_roles_and_only_services_for_services(tmp_path: Path) -> None:
    of_service, folder = certificates(tmp_path / "service"), tmp_path / "role"
    of_role = certificates(folder, names=["recmesh-role"], authority=tmp_path / "service")
    identity = Identity.from_env(ENV | {
        "RECMESH_TLS_CERT": str(of_role.cert), "RECMESH_TLS_KEY": str(of_role.key), "RECMESH_TLS_CA": str(of_role.ca),
        "RECMESH_TLS_SERVER_NAME": "recmesh", "RECMESH_TLS_ROLE_NAME": "recmesh-role",
    })  # fmt: skip
    service = sync_server("service", "127.0.0.1:0", [], tls=of_service)
    role = sync_server("role", "127.0.0.1:0", [], tls=of_role)
    try:
        for connect, address, other in (
            (identity.to_service, service.address, role.address), (identity.to_role, role.address, service.address)
        ):  # fmt: skip
            for where, is_right in ((address, True), (other, False)):
                with connect(where) as channel:
                    try:
                        health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=3.0)
                    except Unavailable:
                        assert not is_right, where
                    else:
                        assert is_right, where
    finally:
        service.stop(0.0)
        role.stop(0.0)


def test_a_role_names_the_certificate_that_it_cannot_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"tls_ca: cannot read .*gone\.pem"):
        Identity.from_env(ENV | {"RECMESH_TLS_CA": str(tmp_path / "gone.pem")})
