"""The component that lets KEDA in, added to `prod` as a user adds it, and the examples that go with it."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from recmesh.runtime import variables
from services.forecaster.config import ForecasterSettings
from tests.support.infra import Object, name_of, of_kind, pods_of, variables_of
from tests.support.kube import KubeCluster
from tests.support.overlays import ROOT, Cluster, kubectl_of, objects_in, of

KINDS = Path(__file__).with_name("keda.yaml")
CERT_MANAGER = Path(__file__).with_name("cert-manager.yaml")
EXAMPLES = ROOT / "examples" / "keda"
OWN = {"keda", "keda-authority", "forecaster-keda", "forecaster-client"}
"""Names of what the component adds."""


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> list[Object]:
    folder = tmp_path_factory.mktemp("mine")
    infra = os.path.relpath(ROOT / "infra", folder.resolve())
    (folder / "kustomization.yaml").write_text(yaml.safe_dump({
        "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "namespace": "recmesh",
        "resources": [f"{infra}/overlays/prod"], "components": [f"{infra}/components/keda"],
    }))  # fmt: skip
    done = subprocess.run(
        [kubectl_of(folder), "kustomize", folder], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    documents = done.stdout.split("\n---\n")       # kinds are large, and others look at them
    return objects_in("\n---\n".join(text for text in documents if "\nkind: CustomResourceDefinition\n" not in text))


@pytest.fixture(scope="module")
def pod(objects: list[Object]) -> Object:
    """forecaster's."""
    return next(item for item in pods_of(objects) if name_of(item) == "forecaster-x")


@pytest.fixture(scope="module")
def cluster(simulated_cluster: KubeCluster) -> Iterator[Cluster]:
    """With KEDA's and cert-manager's kinds, and the namespace."""
    made = of(simulated_cluster)
    made.kubectl("apply", "--server-side", "-f", str(KINDS), "-f", str(CERT_MANAGER))
    made.kubectl("wait", "--for=condition=Established", "--timeout=30s", "-f", str(KINDS), "-f", str(CERT_MANAGER))
    made.kubectl("apply", "-f", str(ROOT / "infra" / "overlays" / "prod" / "namespace.yaml"))
    yield made


def dry_run(cluster: Cluster, things: list[Object]) -> subprocess.CompletedProcess[str]:
    given = json.dumps({"apiVersion": "v1", "kind": "List", "items": things})
    return cluster.try_kubectl(
        "apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict", "-f", "-", given=given
    )


def examples() -> list[Object]:
    return [each for file in sorted(EXAMPLES.glob("*.yaml")) for each in objects_in(file.read_text())]


def external_trigger() -> dict[str, Any]:
    triggers = [each for item in of_kind(examples(), "ScaledObject") for each in item["spec"]["triggers"]]
    return next(each for each in triggers if each["type"].startswith("external"))


def test_the_api_server_takes_the_component_and_the_examples(cluster: Cluster, objects: list[Object]) -> None:
    added = [item for item in objects if name_of(item) in OWN or name_of(item) == "forecaster"]
    things = [*added, *examples()]
    done = dry_run(cluster, things)
    assert done.returncode == 0, done.stderr
    assert "violate" not in done.stderr       # pod security `restricted`
    assert done.stdout.count("serverside-applied") == len(things)
    wrong = json.loads(json.dumps(of_kind(examples(), "ScaledObject")[0]))
    wrong["spec"]["maxReplicas"] = 3
    assert "maxReplicas" in dry_run(cluster, [wrong]).stderr


def test_the_listener_has_certificates_of_an_authority_that_nothing_else_trusts(
    objects: list[Object], pod: Object
) -> None:
    assert variables.unknown(variables_of(objects)) == {}
    [container] = pod["spec"]["containers"]
    env = {item["name"]: item["value"] for item in container["env"] if "value" in item}
    tls = ForecasterSettings.from_env(env, "RECMESH_").keda_tls
    assert tls is not None and tls.cert is not None and tls.key is not None and tls.ca is not None
    folder = str(tls.cert.parent)
    mounted = next(item["name"] for item in container["volumeMounts"] if item["mountPath"] == folder)
    secret = next(item["secret"]["secretName"] for item in pod["spec"]["volumes"] if item["name"] == mounted)
    assert [file.name for file in (tls.cert, tls.key, tls.ca)] == ["tls.crt", "tls.key", "ca.crt"]   # of cert-manager
    by_secret = {item["spec"]["secretName"]: item["spec"] for item in of_kind(objects, "Certificate")}
    issuers = {name: each["issuerRef"]["name"] for name, each in by_secret.items()}
    assert {name for name, issuer in issuers.items() if issuer == "keda-authority"} == {
        secret, "recmesh-forecaster-client",
    }
    assert by_secret[secret]["usages"][-1] == "server auth"
    assert by_secret["recmesh-forecaster-client"]["usages"][-1] == "client auth"


def test_the_example_calls_the_listener_by_a_name_of_its_certificate(objects: list[Object], pod: Object) -> None:
    host, _, port = external_trigger()["metadata"]["scalerAddress"].partition(":")
    [listener] = [item["spec"] for item in of_kind(objects, "Certificate") if name_of(item) == "forecaster-keda"]
    assert host in listener["dnsNames"]
    service = next(item for item in of_kind(objects, "Service") if name_of(item) == "forecaster")
    target = {item["port"]: item["targetPort"] for item in service["spec"]["ports"]}[int(port)]
    [container] = pod["spec"]["containers"]
    number = {item["name"]: item["containerPort"] for item in container["ports"]}[target]
    address = next(item["value"] for item in container["env"] if item["name"] == "RECMESH_KEDA_ADDRESS")
    assert address == f"0.0.0.0:{number}"
    assert {item["name"] for item in service["spec"]["ports"]} == {"rpc", "http", "keda"}, "and those that it had"
    policy = next(item["spec"] for item in of_kind(objects, "NetworkPolicy") if name_of(item) == "keda")
    assert policy["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert [each["port"] for rule in policy["ingress"] for each in rule["ports"]] == [target]


def test_the_examples_certificate_is_where_the_component_puts_it(objects: list[Object]) -> None:
    secrets = {item["spec"]["secretName"] for item in of_kind(objects, "Certificate")}
    named = external_trigger()["authenticationRef"]["name"]
    found = next(item for item in of_kind(examples(), "TriggerAuthentication") if name_of(item) == named)
    asked = {item["parameter"]: (item["name"], item["key"]) for item in found["spec"]["secretTargetRef"]}
    assert set(asked) == {"caCert", "tlsClientCert", "tlsClientKey"}        # as KEDA's external scaler names them
    [by_hand] = of_kind(examples(), "Secret")
    for name, key in asked.values():
        assert name in secrets and name == name_of(by_hand) and key in by_hand["stringData"]
