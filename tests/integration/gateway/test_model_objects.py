"""A real API server, a real gateway with its own service account's rights: ModelService objects are models."""

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from recmesh.crd.kinds import MODEL_FINALIZER
from recmesh.crd.objects import API_VERSION
from tests.integration.gateway.test_service import Service, predictions, running
from tests.support.kube import KubeCluster, account_of, with_kinds
from tests.support.oip_models import torch_model
from tests.support.servers import NatsServer, nats_server
from tests.support.waiting import until

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeCluster]:
    with with_kinds(tmp_path_factory.mktemp("kube") / "cluster") as made:
        yield made


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with nats_server(tmp_path_factory.mktemp("nats")) as server:
        yield server


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("gateway")
    for version, bias in (("1", 0.0), ("2", 10.0)):
        torch_model(made / "storage/models/tiny" / version, bias=bias)
    return made


@pytest.fixture(scope="module")
def settings(cluster: KubeCluster, root: Path) -> dict[str, str]:
    """Of a gateway in namespace `recmesh`, as whom the base's manifests say."""
    return {
        "RECMESH_GATEWAY_OBJECTS": "kubernetes", "RECMESH_KUBE_NAMESPACE": "recmesh",
        "RECMESH_KUBE_CONFIG": str(account_of(cluster, "gateway", namespace="recmesh", folder=root)),
    }


@pytest.fixture(scope="module")
def service(root: Path, nats: NatsServer, settings: dict[str, str]) -> Iterator[Service]:
    with running(Service(root, nats, **settings)) as made:
        yield made


def thing_of(name: str, **spec: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "recmesh"}
    return {"apiVersion": API_VERSION, "kind": "ModelService", "metadata": metadata, "spec": spec}


def apply(cluster: KubeCluster, name: str, **spec: Any) -> None:
    cluster.kubectl("apply", "--server-side", "-f", "-", body=thing_of(name, **spec))


def status(cluster: KubeCluster, name: str) -> dict[str, Any]:
    found: dict[str, Any] = cluster.get("msvc", name, "-n", "recmesh").get("status") or {}
    return found


def until_status(cluster: KubeCluster, service: Service, name: str, what: Any) -> dict[str, Any]:
    last: dict[str, Any] = {}

    def holds() -> bool:
        last.clear()
        last.update(status(cluster, name))
        return bool(what(last))

    try:
        until(holds, timeout_s=240.0, poll_s=0.3)
    except AssertionError:
        raise AssertionError(f"{json.dumps(last, indent=1)}\n{service.log.read_text()[-4000:]}") from None
    return last


@pytest.mark.long
def test_a_model_from_apply_to_delete(cluster: KubeCluster, service: Service) -> None:
    apply(cluster, "tiny", uri="models/tiny/1")
    told = until_status(cluster, service, "tiny", lambda told: told.get("phase") == "Ready" and told["ready"] == "1/1")
    assert (told["model"], told["version"], told["observedGeneration"]) == ("tiny", "1", 1)
    cluster.kubectl("wait", "--for=condition=Ready", "msvc/tiny", "-n", "recmesh", "--timeout=1s")
    assert predictions(service) == [3.5]
    assert cluster.get("msvc", "tiny", "-n", "recmesh")["metadata"]["finalizers"] == [MODEL_FINALIZER]
    row = cluster.kubectl("get", "msvc", "tiny", "-n", "recmesh", "--no-headers").split()
    assert row[:5] == ["tiny", "tiny", "1", "Ready", "1/1"]

    apply(cluster, "tiny", uri="models/tiny/2", serving={"dynamic_batching": {"max_queue_delay_microseconds": 0}},
          traffic={"versions": "all", "weights": {"1": 0, "2": 1}})
    told = until_status(
        cluster, service, "tiny", lambda told: told.get("version") == "2" and told["phase"] == "Ready"
    )
    assert predictions(service) == [13.5]
    assert httpx.get(f"{service.url}/v1/models/tiny/traffic", timeout=10.0).json()["versions"] == "all"
    until(lambda: "Ready" in cluster.kubectl("describe", "msvc", "tiny", "-n", "recmesh").partition("Events:")[2])

    said = cluster.kubectl("patch", "msvc", "tiny", "-n", "recmesh", "--type=merge", "-p",
                           json.dumps({"spec": {"model": "other"}}), fails=True)
    assert "spec.model" in said and "cannot be changed" in said
    cluster.kubectl("delete", "msvc", "tiny", "-n", "recmesh", "--timeout=60s")
    assert httpx.get(f"{service.url}/v1/models/tiny", timeout=10.0).status_code == 404


def test_what_is_wrong_is_told_and_may_be_mended(cluster: KubeCluster, service: Service) -> None:
    apply(cluster, "bad", uri="models/none/1", traffic={"shadows": 1})
    told = until_status(cluster, service, "bad", lambda told: told.get("phase") == "Refused")
    assert "traffic.shadows: is not known" in told["message"]
    apply(cluster, "bad", uri="models/none/1")
    told = until_status(cluster, service, "bad", lambda told: told.get("reason") == "NoModelFolder")
    assert "models/none/1 is not there" in told["message"]
    apply(cluster, "bad", uri="models/tiny/1", load=False)
    until_status(cluster, service, "bad", lambda told: told.get("phase") == "Unloaded")
    cluster.kubectl("delete", "msvc", "bad", "-n", "recmesh", "--timeout=60s")


@pytest.mark.long
def test_two_gateways_serve_it_and_the_death_of_the_one_that_tells_is_made_good(
    cluster: KubeCluster, service: Service, root: Path, nats: NatsServer, settings: dict[str, str], tmp_path: Path
) -> None:
    with running(Service(tmp_path, nats, RECMESH_STORAGE_URI=str(root / "storage"), **settings)) as second:
        apply(cluster, "tiny", uri="models/tiny/1")
        until_status(cluster, service, "tiny", lambda told: told.get("ready") == "2/2")
        assert predictions(service) == predictions(second) == [3.5]
        managers = {
            item["manager"] for item in cluster.get("msvc", "tiny", "-n", "recmesh", "--show-managed-fields")
            ["metadata"]["managedFields"] if item.get("subresource") == "status"
        }
        assert managers == {"recmesh-gateway-objects"}
        service.end(signal.SIGKILL)
        until_status(cluster, second, "tiny", lambda told: told.get("ready") == "1/1")
        cluster.kubectl("delete", "msvc", "tiny", "-n", "recmesh", "--timeout=60s")
        assert httpx.get(f"{second.url}/v1/models/tiny", timeout=10.0).status_code == 404
    service.start()
    until(lambda: service.answers("/readyz"), timeout_s=240.0)


@pytest.mark.long
def test_of_two_objects_with_rules_of_one_model_the_older_s_count_until_it_is_deleted(
    cluster: KubeCluster, service: Service
) -> None:
    def rules() -> Any:
        return httpx.get(f"{service.url}/v1/models/tiny/traffic", timeout=10.0).json()["versions"]

    def synced(told: dict[str, Any]) -> tuple[str, str]:
        found = [item for item in told.get("conditions", []) if item["type"] == "Synced"]
        return (found[0]["reason"], found[0].get("message", "")) if found else ("", "")

    apply(cluster, "older", model="tiny", uri="models/tiny/1", traffic={"versions": "all"})
    until_status(cluster, service, "older", lambda told: told.get("phase") == "Ready" and "traffic" in told)
    time.sleep(1.1)     # the API server writes times by seconds
    apply(cluster, "another", model="tiny", uri="models/tiny/2", traffic={"versions": {"latest": 2}})
    told = until_status(
        cluster, service, "another", lambda told: told.get("phase") == "Ready" and synced(told)[0] == "TrafficConflict"
    )
    assert "are those of ModelService recmesh/older," in synced(told)[1] and "traffic" not in told
    assert rules() == "all"
    cluster.kubectl("delete", "msvc", "older", "-n", "recmesh", "--timeout=60s")
    assert rules() == {"latest": 2}
    told = until_status(cluster, service, "another", lambda told: synced(told)[0] == "Synced")
    assert told["traffic"]["versions"] == {"latest": 2}
    cluster.kubectl("delete", "msvc", "another", "-n", "recmesh", "--timeout=60s")


@pytest.mark.long
def test_objects_do_not_hold_up_the_deletion_of_the_gateways_namespace(cluster: KubeCluster, service: Service) -> None:
    apply(cluster, "tiny", uri="models/tiny/1")
    until_status(cluster, service, "tiny", lambda told: told.get("phase") == "Ready")
    # As Kubernetes does it: the namespace is told to go, its pods end, and only then its objects.
    assert service.process is not None
    cluster.kubectl("delete", "namespace", "recmesh", "--wait=false")
    service.end(signal.SIGTERM)
    cluster.kubectl("wait", "--for=delete", "namespace/recmesh", "--timeout=60s")
