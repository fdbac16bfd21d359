"""Both overlays: what they say fits together, and a real API server takes all under the strictest pod security."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from recmesh.runtime import variables
from services.gateway.config import PREFIX, Config
from services.gateway.domain.devices import Wish
from services.gateway.runtimes.pods import PodSettings
from services.gateway.runtimes.pods.objects import pod_of
from services.jobmaster.__main__ import role_environment
from services.jobmaster.cluster import StartOrder
from services.jobmaster.cluster.kubernetes.pods import PodSettings as RolePodSettings
from services.jobmaster.cluster.kubernetes.pods import pod_of as role_pod_of
from services.jobmaster.config import JobmasterSettings
from tests.support.infra import (
    WORKLOADS,
    Object,
    containers,
    name_of,
    of_kind,
    pods_of,
    reaches,
    settings_of,
    targets,
    template_of,
    variables_of,
)
from tests.support.kube import KubeCluster
from tests.support.overlays import ROOT, Cluster, kustomized, manifest, of

SERVICES = {"brain", "jobmaster", "forecaster", "shardsvc", "ckptcache", "gateway"}
OVERLAYS = ("dev", "prod")
PROBES = ("startupProbe", "readinessProbe", "livenessProbe")
GIVEN = {"dev": {"recmesh"}, "prod": {"recmesh", "postgres"}}
"""Secrets that are no manifest: `dev` makes its own in the cluster, those of `prod` are the user's."""
CERT_MANAGER = Path(__file__).with_name("cert-manager.yaml")
COMPOSE = ROOT / "infra" / "compose.yaml"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kube")


@pytest.fixture(scope="module", params=OVERLAYS)
def overlay(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def objects(overlay: str, folder: Path) -> list[Object]:
    return kustomized(overlay, folder)


@pytest.fixture(scope="module")
def cluster(simulated_cluster: KubeCluster, folder: Path) -> Iterator[Cluster]:
    """With cert-manager's kinds, ours, and the namespace with what pods and bindings refer to."""
    made = of(simulated_cluster)
    crds = ROOT / "infra" / "base" / "crds"
    made.kubectl("apply", "--server-side", "-f", str(CERT_MANAGER), "-f", str(crds))
    made.kubectl("wait", "--for=condition=Established", "--timeout=30s", "-f", str(CERT_MANAGER), "-f", str(crds))
    needed = [
        item for overlay in OVERLAYS for item in kustomized(overlay, folder)
        if item["kind"] in ("Namespace", "ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
    ]
    by_name = {(item["kind"], name_of(item)): item for item in needed}     # both overlays have most of them
    items = sorted(by_name.values(), key=lambda item: item["kind"] != "Namespace")
    given = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    made.kubectl("apply", "-f", "-", given=given)
    yield made
    made.kubectl("delete", "--wait=false", "-f", "-", given=given)


def test_the_api_server_takes_every_object(
    cluster: Cluster, overlay: str, objects: list[Object], folder: Path
) -> None:
    done = cluster.try_kubectl(
        "apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-", given=manifest(overlay, folder)
    )
    assert done.returncode == 0, done.stderr
    assert "violate" not in done.stderr       # pod security warns of templates, and refuses pods
    assert done.stdout.count("serverside-applied") == len(objects)


def test_pods_are_admitted_where_restricted_is_enforced(
    cluster: Cluster, objects: list[Object]
) -> None:
    space = next(item for item in of_kind(objects, "Namespace"))
    assert space["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    pods = {"apiVersion": "v1", "kind": "List", "items": pods_of(objects)}
    cluster.kubectl("create", "--dry-run=server", "-f", "-", given=json.dumps(pods))
    free = pods_of(objects)[0]
    free["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
    refused = cluster.try_kubectl("create", "--dry-run=server", "-f", "-", given=json.dumps(free))
    assert "violates PodSecurity" in refused.stderr


def test_a_misspelt_field_of_another_operators_kind_is_refused(
    cluster: Cluster, folder: Path
) -> None:
    certificate = of_kind(kustomized("prod", folder), "Certificate")[0]
    certificate["spec"]["dnsName"] = ["x"]
    refused = cluster.try_kubectl(
        "apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-", given=json.dumps(certificate)
    )
    assert "dnsName" in refused.stderr


@pytest.mark.parametrize(("account", "verb", "thing", "may"), [
    ("jobmaster", "create", "pods", True),
    ("jobmaster", "patch", "pods/resize", True),
    ("jobmaster", "get", "pods/log", True),
    ("jobmaster", "create", "secrets", True),
    ("jobmaster", "get", "secrets", False),
    ("jobmaster", "patch", "trainingjobs.recmesh.dev/status", True),
    ("jobmaster", "create", "events.events.k8s.io", True),
    ("jobmaster", "patch", "modelservices.recmesh.dev", False),
    ("jobmaster", "patch", "trainingdatasets.recmesh.dev/status", True),
    ("jobmaster", "delete", "trainingdatasets.recmesh.dev", False),
    ("jobmaster", "create", "jobmetrics.recmesh.dev", True),
    ("jobmaster", "list", "jobmetrics.recmesh.dev", False),
    ("gateway", "watch", "modelservices.recmesh.dev", True),
    ("gateway", "patch", "modelservices.recmesh.dev/status", True),
    ("gateway", "delete", "modelservices.recmesh.dev", False),
    ("gateway", "patch", "trainingjobs.recmesh.dev", False),
    ("jobmaster", "create", "pods/exec", False),
    ("jobmaster", "delete", "deployments.apps", False),
    ("keys", "create", "secrets", True),
    ("keys", "get", "secrets", False),
    ("brain", "list", "pods", False),
    ("gateway", "create", "pods", True),
    ("gateway", "patch", "pods", True),
    ("gateway", "deletecollection", "pods", False),
    ("gateway", "get", "pods/log", False),
    ("gateway", "get", "deployments.apps/gateway", True),
    ("gateway", "get", "deployments.apps/brain", False),
    ("gateway", "patch", "deployments.apps/gateway", False),
    ("gateway", "get", "secrets", False),
    ("gateway", "get", "trainingjobs.recmesh.dev", False),
    ("ckptcache", "list", "nodes", False),
])  # fmt: skip
def test_rights_are_the_least(
    cluster: Cluster, account: str, verb: str, thing: str, may: bool
) -> None:
    kind, _, part = thing.partition("/")
    what = [thing] if kind == "deployments.apps" else [kind, f"--subresource={part}"]      # of which one has a name
    asked = cluster.try_kubectl(
        "auth", "can-i", verb, *what, "-n", "recmesh", f"--as=system:serviceaccount:recmesh:{account}",
    )
    assert asked.stdout.strip() == ("yes" if may else "no"), asked.stderr


def test_jobmaster_may_look_at_its_own_namespace_and_at_no_other(cluster: Cluster) -> None:
    account = "--as=system:serviceaccount:recmesh:jobmaster"
    assert cluster.try_kubectl("get", "namespace", "recmesh", account).returncode == 0
    assert "forbidden" in cluster.try_kubectl("get", "namespace", "default", account).stderr


def test_only_those_that_call_the_api_server_have_a_token(objects: list[Object]) -> None:
    accounts = {
        name_of(item): item.get("automountServiceAccountToken", True) for item in of_kind(objects, "ServiceAccount")
    }
    with_token = set()
    for workload in of_kind(objects, *WORKLOADS):
        spec = template_of(workload)["spec"]
        if spec.get("automountServiceAccountToken", accounts.get(spec.get("serviceAccountName", ""), True)):
            with_token.add(name_of(workload))
    assert with_token - {"keys"} == {"jobmaster", "gateway"}


def test_every_service_is_there_with_its_probes(objects: list[Object]) -> None:
    by_name = {name: container for name, container in containers(objects)}
    assert SERVICES | {"nats", "valkey"} <= set(by_name)
    for name, container in by_name.items():
        if name == "keys":                    # ends by itself
            continue
        ports = {item["name"]: item["containerPort"] for item in container["ports"]}
        for kind in PROBES:
            probe = container[kind]
            assert (probe.get("httpGet") or probe["tcpSocket"])["port"] in ports, (name, kind)
        if name in SERVICES:
            scheme = "HTTPS" if "RECMESH_HTTP_TLS_CERT" in {item["name"] for item in container["env"]} else "HTTP"
            assert {container[kind]["httpGet"].get("scheme", "HTTP") for kind in PROBES} == {scheme}
            asked = container["readinessProbe"]["httpGet"]
            assert (asked["path"], asked["port"]) == ("/readyz", "http")
            assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
        assert container["resources"]["requests"].keys() >= {"cpu", "memory"}
        assert "memory" in container["resources"]["limits"]


def test_settings_are_known(objects: list[Object]) -> None:
    assert variables.unknown(variables_of(objects)) == {}
    assert {"RECMESH_API_KEY", "RECMESH_NATS_URL", "RECMESH_VALKEY_URL"} <= variables_of(objects)


def test_addresses_are_those_of_services_and_lead_to_ports(objects: list[Object]) -> None:
    services = {name_of(item): {port["port"]: port["targetPort"] for port in item["spec"]["ports"]}
                for item in of_kind(objects, "Service")}
    assert services.keys() >= SERVICES | {"nats", "valkey"}
    def ports(pod: Object) -> list[str]:
        return [port["name"] for each in pod["spec"]["containers"] for port in each.get("ports", [])]

    pods = [(pod["metadata"]["labels"], ports(pod)) for pod in pods_of(objects)]
    for item in of_kind(objects, "Service"):
        behind = [names for labels, names in pods if item["spec"]["selector"].items() <= labels.items()]
        assert len(behind) == 1, name_of(item)
        assert set(services[name_of(item)].values()) <= set(behind[0])
    settings = next(item["data"] for item in of_kind(objects, "ConfigMap") if name_of(item).startswith("recmesh-"))
    for name in SERVICES:
        assert settings[f"RECMESH_{name.upper()}_RPC"] == f"{name}:7000"
    for host, port in re.findall(r"//(?:[\w-]+\.)?([\w-]+):(\d+)", settings["RECMESH_NATS_URL"]):
        assert int(port) in services[host]


def test_what_pods_refer_to_is_there(overlay: str, objects: list[Object]) -> None:
    claims = {name_of(item) for item in of_kind(objects, "PersistentVolumeClaim")}
    maps = {name_of(item) for item in of_kind(objects, "ConfigMap")}
    secrets = GIVEN[overlay] | {item["spec"]["secretName"] for item in of_kind(objects, "Certificate")}
    accounts = {name_of(item) for item in of_kind(objects, "ServiceAccount")} | {"default"}
    for pod in pods_of(objects):
        assert pod["spec"].get("serviceAccountName", "default") in accounts
        volumes = {item["name"]: item for item in pod["spec"]["volumes"]}
        for item in volumes.values():
            claim = item.get("persistentVolumeClaim", {}).get("claimName", "storage")
            assert claim in claims or claim.startswith("template-")
            assert item.get("configMap", {}).get("name", next(iter(maps))) in maps
            assert item.get("secret", {}).get("secretName", "recmesh") in secrets
        for container in pod["spec"]["containers"]:
            assert {item["name"] for item in container["volumeMounts"]} <= volumes.keys()
            for item in container.get("env", []):
                assert item.get("valueFrom", {}).get("secretKeyRef", {}).get("name", "recmesh") in secrets
            assert re.fullmatch(r"recmesh/(\w+):0\.1\.0", container["image"]), container["image"]
            assert container["image"].removeprefix("recmesh/").partition(":")[0] in targets()


def serving_pods(objects: list[Object]) -> list[Object]:
    """A CN and an HN, as the gateway would make them by its settings in the overlay."""
    config = Config.from_env(settings_of(objects, "gateway"), PREFIX)
    settings = PodSettings(
        namespace="recmesh", holder="gateway-x", images={"cn": config.cn_image, "hn": config.hn_image},
        secret=config.pod_secret, storage_claim=config.kube_storage_claim, storage_path=str(config.storage_root),
        resources={"cn": config.cn_resources, "hn": config.hn_resources},
        tls_secret=config.pod_tls_secret, tls_name=config.pod_tls.server_name if config.pod_tls else "",
    )  # fmt: skip
    return [
        pod_of([f"recmesh.serving.{kind}"], {}, settings, name=f"{kind}-x", fleet="f", kind=kind, wish=Wish())
        for kind in ("cn", "hn")
    ]


def test_pods_of_models_are_admitted_and_find_what_they_need(cluster: Cluster, objects: list[Object]) -> None:
    pods = serving_pods(objects)
    cluster.kubectl("create", "--dry-run=server", "-f", "-", given=json.dumps(
        {"apiVersion": "v1", "kind": "List", "items": pods}
    ))  # fmt: skip
    claims = {name_of(item) for item in of_kind(objects, "PersistentVolumeClaim")}
    for pod in pods:
        container = pod["spec"]["containers"][0]
        assert container["image"].partition(":")[0].removeprefix("recmesh/") in targets()
        assert container["volumeMounts"][1] == {"name": "storage", "mountPath": "/storage", "readOnly": True}
        assert pod["spec"]["volumes"][1]["persistentVolumeClaim"]["claimName"] in claims
        assert container["resources"]["requests"].keys() == {"cpu", "memory"}
    assert settings_of(objects, "gateway")["RECMESH_GATEWAY_POD_OWNER"] in map(name_of, of_kind(objects, "Deployment"))


def test_images_of_roles_can_be_made(objects: list[Object]) -> None:
    settings = settings_of(objects, "jobmaster")
    by_role = json.loads(settings["RECMESH_KUBE_IMAGES"])
    assert by_role.keys() == {"ps", "data"}
    for image in (settings["RECMESH_KUBE_IMAGE"], *by_role.values()):
        assert re.fullmatch(r"recmesh/(\w+):0\.1\.0", image), image
        assert image.removeprefix("recmesh/").partition(":")[0] in targets()


@pytest.mark.parametrize(("source", "target", "port", "may"), [
    ("gateway", "cn", "control", True),
    ("gateway", "hn", "control", True),
    ("cn", "hn", "data", True),
    ("cn", "hn", "control", False),
    ("hn", "cn", "data", False),
    ("brain", "hn", "control", False),
    ("cn", "gateway", "rpc", False),
    ("hn", "nats", "nats", False),
    ("jobmaster", "brain", "rpc", True),
    ("gateway", "jobmaster", "rpc", True),
    ("ckptcache", "ckptcache", "rpc", True),
    ("brain", "nats", "nats", True),
    ("nats", "nats", "routes", True),
    ("shardsvc", "valkey", "valkey", True),
    ("brain", "valkey", "valkey", False),
    ("valkey", "nats", "nats", False),
    ("brain", "nats", "routes", False),
    ("nats", "brain", "rpc", False),
    ("gateway", "brain", "http", False),
])  # fmt: skip
def test_policies_let_through_what_the_mesh_needs_and_no_more(
    folder: Path, source: str, target: str, port: str, may: bool
) -> None:
    objects = kustomized("prod", folder)
    assert reaches([*objects, *serving_pods(objects)], source, target, port) is may


def test_calls_in_prod_are_tls(folder: Path) -> None:
    objects = kustomized("prod", folder)
    names = {item["spec"]["secretName"]: item["spec"]["dnsNames"] for item in of_kind(objects, "Certificate")
             if "dnsNames" in item["spec"]}
    for workload in of_kind(objects, *WORKLOADS):
        spec = template_of(workload)["spec"]
        secret = next(item["secret"]["secretName"] for item in spec["volumes"] if item["name"] == "tls")
        assert name_of(workload) in names[secret] and "recmesh" in names[secret]
    for name, container in containers(objects):
        if name in SERVICES:
            env = {item["name"]: item.get("value") for item in container["env"]}
            assert env["RECMESH_TLS_CA"] == "/tls/ca.crt" and env["RECMESH_TLS_SERVER_NAME"] == "recmesh"
            mounts = [item["mountPath"] for item in container["volumeMounts"]]
            for setting in ("RECMESH_HTTP_TLS_CERT", "RECMESH_HTTP_TLS_KEY"):
                assert str(Path(env[setting] or "").parent) in mounts
    pods = serving_pods(objects)
    assert len(pods) == 2
    for pod in [*pods, role_pod(objects)]:
        env = {item["name"]: item.get("value") for item in pod["spec"]["containers"][0]["env"]}
        [secret] = [item["secret"]["secretName"] for item in pod["spec"]["volumes"] if "secret" in item]
        assert env["RECMESH_TLS_CERT"] == "/tls/tls.crt"
        expected = env.get("RECMESH_TLS_ROLE_NAME") or env["RECMESH_TLS_SERVER_NAME"]
        assert expected in names[secret]
        assert "recmesh" not in names[secret]      # nothing of it can be taken for a service
    jobmaster = settings_of(objects, "jobmaster")
    assert jobmaster["RECMESH_TLS_ROLE_NAME"] in names[jobmaster["RECMESH_KUBE_TLS_SECRET"]]


def role_pod(objects: list[Object]) -> Object:
    """A worker, as jobmaster would make it by its settings in the overlay."""
    env = settings_of(objects, "jobmaster")
    settings = JobmasterSettings.from_env(env, PREFIX)
    order = StartOrder("ads", "worker-0-1", "worker", 0, role_environment(env, settings))
    return role_pod_of(order, RolePodSettings(
        namespace="recmesh", image=settings.kube_image, tls_secret=settings.kube_tls_secret
    ))  # fmt: skip


def test_budgets_and_the_autoscaler_name_what_is_there(folder: Path) -> None:
    objects = kustomized("prod", folder)
    labels = [item["metadata"]["labels"] for item in pods_of(objects)]
    for budget in of_kind(objects, "PodDisruptionBudget"):
        assert any(budget["spec"]["selector"]["matchLabels"].items() <= each.items() for each in labels)
    scaled = of_kind(objects, "HorizontalPodAutoscaler")[0]["spec"]["scaleTargetRef"]["name"]
    target = next(item for item in of_kind(objects, "Deployment") if name_of(item) == scaled)
    assert "replicas" not in target["spec"]


def _compose() -> dict[str, Any]:
    text = re.sub(r"\$\{\w+:[?-]([^}]*)\}", r"\1", COMPOSE.read_text())
    loaded: dict[str, Any] = yaml.safe_load(text)
    return loaded


def test_the_compose_file_has_every_service_with_known_settings() -> None:
    composed = _compose()
    assert composed["services"].keys() == SERVICES | {"nats", "valkey"}
    given = {name for item in composed["services"].values() for name in item["environment"]}
    assert variables.unknown(given) == {}
    for name, item in composed["services"].items():
        assert item["read_only"] is True and item["cap_drop"] == ["ALL"], name
        if "build" in item:
            assert item["build"]["target"] in targets()
        for volume in item.get("volumes", []):
            source = volume.partition(":")[0]
            assert source in composed["volumes"] or (COMPOSE.parent / source).exists(), volume
    assert composed["services"]["gateway"]["ports"] == ["127.0.0.1:8000:8000"]


def test_extras_of_images_exist() -> None:
    asked = re.findall(r"/src/infra/install ((?:[a-z0-9-]+ ?)+)", (ROOT / "infra" / "Dockerfile").read_text())
    known = (ROOT / "pyproject.toml").read_text()
    assert asked
    for extra in {name for line in asked for name in line.split()} - {"core"}:
        assert re.search(rf"^{re.escape(extra)} = \[", known, re.MULTILINE), extra
