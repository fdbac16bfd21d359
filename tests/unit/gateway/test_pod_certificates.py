"""What a gateway with certificates needs for pods of models, and what those pods get."""

from dataclasses import replace

import pytest

from recmesh.runtime.errors import InvalidArgument
from services.gateway.config import PREFIX, Config
from services.gateway.domain.devices import Wish
from services.gateway.runtimes.pods import PodSettings
from services.gateway.runtimes.pods.objects import DIGEST, pod_of

PODS = {
    "RECMESH_GATEWAY_RUNTIME": "kubernetes", "RECMESH_GATEWAY_CN_IMAGE": "cn", "RECMESH_GATEWAY_HN_IMAGE": "hn",
    "RECMESH_API_KEY": "k",
}  # fmt: skip
OWN = {
    "RECMESH_TLS_CERT": "/tls/tls.crt", "RECMESH_TLS_KEY": "/tls/tls.key", "RECMESH_TLS_CA": "/tls/ca.crt",
    "RECMESH_TLS_SERVER_NAME": "recmesh",
}  # fmt: skip
SECRET = {"RECMESH_GATEWAY_POD_TLS_SECRET": "serving-tls"}


@pytest.mark.parametrize(("more", "expected"), [
    ({}, None), (OWN | SECRET, "recmesh"),
    (OWN | SECRET | {"RECMESH_GATEWAY_POD_TLS_NAME": "recmesh-serving"}, "recmesh-serving"),
])  # fmt: skip
def test_a_gateway_expects_of_pods_what_their_certificate_is_issued_for(
    more: dict[str, str], expected: str | None
) -> None:
    tls = Config.from_env(PODS | more, PREFIX).pod_tls
    assert (tls.server_name if tls else None) == expected


@pytest.mark.parametrize("more", [
    OWN, SECRET, OWN | SECRET | {"RECMESH_TLS_SERVER_NAME": ""}, OWN | {"RECMESH_GATEWAY_POD_TLS_NAME": "x"},
])  # fmt: skip
def test_certificates_on_one_side_alone_are_refused_at_the_start(more: dict[str, str]) -> None:
    with pytest.raises(InvalidArgument) as raised:
        Config.from_env(PODS | more, PREFIX)
    assert "RECMESH_GATEWAY_POD_TLS_SECRET" in raised.value.violations[0].reason


def test_pods_mount_their_certificates_and_those_without_are_not_taken_over() -> None:
    images = {"cn": "cn", "hn": "hn"}
    plain = PodSettings(namespace="n", holder="g", images=images)
    secured = replace(plain, tls_secret="serving-tls", tls_name="recmesh-serving")
    for kind in ("cn", "hn"):
        pods = [
            pod_of([f"recmesh.serving.{kind}"], {}, each, name="p", fleet="f", kind=kind, wish=Wish())
            for each in (plain, secured)
        ]
        env = [{item["name"]: item.get("value") for item in pod["spec"]["containers"][0]["env"]} for pod in pods]
        assert not [name for name in env[0] if "TLS" in name]
        assert env[1] | {
            "RECMESH_TLS_CERT": "/tls/tls.crt", "RECMESH_TLS_KEY": "/tls/tls.key", "RECMESH_TLS_CA": "/tls/ca.crt",
            "RECMESH_TLS_SERVER_NAME": "recmesh-serving",
        } == env[1]
        container, volumes = pods[1]["spec"]["containers"][0], pods[1]["spec"]["volumes"]
        assert {"name": "tls", "mountPath": "/tls", "readOnly": True} in container["volumeMounts"]
        assert {"name": "tls", "secret": {"secretName": "serving-tls", "defaultMode": 0o440}} in volumes
        assert len({pod["metadata"]["labels"][DIGEST] for pod in pods}) == 2
