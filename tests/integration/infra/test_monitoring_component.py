"""The component with dashboards, alerts and collector, added to both overlays as a user adds it."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from recmesh.runtime import variables
from tests.support.infra import Object, containers, name_of, of_kind, pods_of, reaches, settings_of, variables_of
from tests.support.kube import KubeCluster
from tests.support.overlays import ROOT, Cluster, kubectl_of, objects_in, of

OPERATOR = Path(__file__).with_name("prometheus-operator.yaml")
SERVICES = {"brain", "jobmaster", "forecaster", "shardsvc", "ckptcache", "gateway"}


@pytest.fixture(scope="module", params=["dev", "prod"])
def objects(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Object]:
    folder = tmp_path_factory.mktemp("mine")
    infra = os.path.relpath(ROOT / "infra", folder.resolve())
    parts = ["monitoring", *(["monitoring/tls"] if request.param == "prod" else [])]
    (folder / "kustomization.yaml").write_text(yaml.safe_dump({
        "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "namespace": "recmesh",
        "resources": [f"{infra}/overlays/{request.param}"], "components": [f"{infra}/{part}" for part in parts],
    }))  # fmt: skip
    done = subprocess.run(
        [kubectl_of(folder), "kustomize", folder], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    documents = done.stdout.split("\n---\n")       # kinds are large, and others look at them
    return objects_in("\n---\n".join(text for text in documents if "\nkind: CustomResourceDefinition\n" not in text))


@pytest.fixture(scope="module")
def cluster(simulated_cluster: KubeCluster) -> Iterator[Cluster]:
    """With the operator's kinds and the namespace."""
    made = of(simulated_cluster)
    made.kubectl("apply", "--server-side", "-f", str(OPERATOR))
    made.kubectl("wait", "--for=condition=Established", "--timeout=30s", "-f", str(OPERATOR))
    made.kubectl("apply", "-f", str(ROOT / "infra" / "overlays" / "dev" / "namespace.yaml"))
    yield made


def own(objects: list[Object]) -> list[Object]:
    """What the component adds."""
    kinds, names = ("PodMonitor", "PrometheusRule"), ("grafana-", "otel-", "to-otel-")
    return [item for item in objects if item["kind"] in kinds or name_of(item).startswith(names)]


def dry_run(cluster: Cluster, things: list[Object]) -> subprocess.CompletedProcess[str]:
    given = json.dumps({"apiVersion": "v1", "kind": "List", "items": things})
    return cluster.try_kubectl(
        "apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-", given=given
    )


def test_the_api_server_takes_all_of_it(cluster: Cluster, objects: list[Object]) -> None:
    assert len(own(objects)) == 16
    done = dry_run(cluster, own(objects))
    assert done.returncode == 0, done.stderr
    assert "violate" not in done.stderr       # pod security `restricted`
    assert done.stdout.count("serverside-applied") == 16


def test_a_misspelt_field_of_the_operators_kinds_is_refused(cluster: Cluster, objects: list[Object]) -> None:
    monitor = json.loads(json.dumps(of_kind(objects, "PodMonitor")[0]))
    monitor["spec"]["podMetricsEndpoints"][0]["intervall"] = "15s"
    assert "intervall" in dry_run(cluster, [monitor]).stderr


def test_pods_of_services_are_found_by_the_monitors_once_each(objects: list[Object]) -> None:
    pods = {name_of(item).removesuffix("-x"): item for item in pods_of(objects)}
    found: dict[str, str] = {}
    for monitor in of_kind(objects, "PodMonitor"):
        selector, ports = monitor["spec"]["selector"], [item["port"] for item in monitor["spec"]["podMetricsEndpoints"]]
        for name, pod in pods.items():
            labels = pod["metadata"]["labels"]
            left_out = any(labels.get(item["key"]) in item["values"] for item in selector.get("matchExpressions", []))
            if selector["matchLabels"].items() <= labels.items() and not left_out:
                assert name not in found
                found[name] = name_of(monitor)
                named = {port["name"] for each in pod["spec"]["containers"] for port in each["ports"]}
                assert set(ports) <= named
    assert found == dict.fromkeys(SERVICES, "recmesh") | {"gateway": "recmesh-gateway"}


def test_metrics_are_asked_for_as_the_pods_serve_them(objects: list[Object]) -> None:
    container = next(each for name, each in containers(objects) if name == "brain")
    env = {item["name"]: item for item in container["env"]}
    asked = env["RECMESH_METRICS_KEY"]["valueFrom"]["secretKeyRef"]
    for monitor in of_kind(objects, "PodMonitor"):
        [endpoint] = monitor["spec"]["podMetricsEndpoints"]
        assert endpoint["authorization"]["credentials"] == {"name": asked["name"], "key": asked["key"]}
        is_tls = "RECMESH_HTTP_TLS_CERT" in env
        assert endpoint.get("scheme", "http") == ("https" if is_tls else "http")
        if is_tls:
            ca = endpoint["tlsConfig"]["ca"]["secret"]
            [certificate] = [x for x in of_kind(objects, "Certificate") if x["spec"]["secretName"] == ca["name"]]
            assert endpoint["tlsConfig"]["serverName"] in certificate["spec"]["dnsNames"]
            if name_of(monitor) == "recmesh-serving":        # by their own, which the gateway has them mount
                assert ca["name"] == settings_of(objects, "gateway")["RECMESH_GATEWAY_POD_TLS_SECRET"]


def test_dashboards_are_there_for_grafana(objects: list[Object]) -> None:
    maps = [
        item for item in of_kind(objects, "ConfigMap")
        if item["metadata"].get("labels", {}).get("grafana_dashboard") == "1"
    ]
    assert {json.loads(text)["uid"] for item in maps for text in item["data"].values()} == {
        f"recmesh-{name}" for name in ("overview", *SERVICES)
    }


def test_spans_reach_the_collector(objects: list[Object]) -> None:
    assert variables.unknown(variables_of(objects)) == {}
    settings = next(item["data"] for item in of_kind(objects, "ConfigMap") if name_of(item).startswith("recmesh-"))
    host, _, port = settings["RECMESH_OTLP_ENDPOINT"].partition(":")
    service = next(item for item in of_kind(objects, "Service") if name_of(item) == host)
    assert int(port) in [item["port"] for item in service["spec"]["ports"]]
    assert reaches(objects, "brain", "otel-collector", "otlp")
    pod = next(item for item in pods_of(objects) if name_of(item) == "otel-collector-x")
    mounted = next(item["configMap"]["name"] for item in pod["spec"]["volumes"] if item["name"] == "config")
    kept = next(item["data"] for item in of_kind(objects, "ConfigMap") if name_of(item) == mounted)
    assert pod["spec"]["containers"][0]["args"] == [f"--config=/etc/otel/{next(iter(kept))}"]
