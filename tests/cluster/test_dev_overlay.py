"""`kubectl apply -k infra/overlays/dev` on one real node: the whole mesh in pods."""

import json

import pytest

from tests.cluster.mesh import SERVICES, Mesh

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


def test_every_service_answers_through_its_service(mesh: Mesh) -> None:
    for name in SERVICES:
        status, body = mesh.ask(name, "/readyz")
        assert status == 200 and json.loads(body)["ready"] is True, (name, body)
        assert mesh.ask(name, "/healthz")[0] == 200


def test_the_api_wants_its_key_and_answers_of_all_services(mesh: Mesh) -> None:
    assert mesh.ask("gateway", "/v1/jobs")[0] == 401
    status, body = mesh.ask("gateway", "/v1/jobs", key=mesh.secret("public-api-key"))
    assert status == 200, body


def test_pods_are_as_little_as_promised(mesh: Mesh) -> None:
    tried = "id -u; touch /x 2>&1 || true; touch /tmp/x && echo wrote; ls /var/run/secrets 2>&1 || true"
    shown = mesh.kubectl("exec", "deploy/brain", "--", "sh", "-c", tried)
    assert shown.splitlines()[0] == "10001" and "Read-only" in shown and "wrote" in shown
    assert "kubernetes.io" not in shown               # no token of the API server
