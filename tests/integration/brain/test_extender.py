"""A real kube-scheduler that asks brain, with the manifests, rights and configuration of infra/components/placement."""

import contextlib
import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from recmesh.runtime.clock import system_clock
from recmesh.runtime.kube import NODES, PODS, Access, connect
from services.brain.app.placing import Placing
from services.brain.domain.topology.model import Rules
from services.brain.peers.cluster import LivingPods
from tests.support.kube import ROOT, KubeCluster, kube_cluster, tool
from tests.support.overlays import objects_in
from tests.support.servers import free_port, nats_server
from tests.support.service_process import ServiceProcess, service
from tests.support.waiting import until

pytestmark = pytest.mark.integration
COMPONENT = ROOT / "infra" / "components" / "placement"
SCHEDULER = "recmesh-scheduler"
RULES = Rules()
RACKS = {"r1": "p1", "r2": "p1", "r3": "p2"}
"""Racks of two nodes with 8 cores and 2 GPUs each, and their network pods."""


@dataclass
class World:
    cluster: KubeCluster
    brain: ServiceProcess
    scheduler: subprocess.Popen[bytes]

    def submit(self, *pods: dict[str, Any]) -> None:
        self.cluster.kubectl("create", "-f", "-", body={"apiVersion": "v1", "kind": "List", "items": list(pods)})

    def pods(self, namespace: str) -> dict[str, dict[str, Any]]:
        return {item["metadata"]["name"]: item for item in self.cluster.get("pods", "-n", namespace)["items"]}

    def placed(self, namespace: str, many: int) -> dict[str, str]:
        """Nodes by pod, once so many pods have one."""
        found: dict[str, str] = {}

        def there() -> bool:
            found.clear()
            nodes = {name: pod["spec"].get("nodeName", "") for name, pod in self.pods(namespace).items()}
            found.update({name: node for name, node in nodes.items() if node})
            return len(found) >= many

        until(there, timeout_s=60)
        return found

    def refusal(self, namespace: str, name: str) -> str:
        """Why the pod has no node, in the scheduler's words."""
        said = ""

        def told() -> bool:
            nonlocal said
            conditions = self.pods(namespace)[name].get("status", {}).get("conditions", [])
            said = next((item["message"] for item in conditions if item["type"] == "PodScheduled"), "")
            return bool(said)

        until(told, timeout_s=60)
        return said


def pod(
    namespace: str,
    name: str,
    *,
    app: str = "ads",
    asks: dict[str, str] | None = None,
    selector: dict[str, str] | None = None,
    **notes: str,
) -> dict[str, Any]:
    requests = {"cpu": "1"} | ({"nvidia.com/gpu": "1"} if asks is None else asks)
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "namespace": namespace, "labels": {"recmesh.dev/job": app} if app else {},
            "annotations": {f"recmesh.dev/{key.replace('_', '-')}": value for key, value in notes.items()},
        },
        "spec": {
            "schedulerName": SCHEDULER, "nodeSelector": selector or {},
            "containers": [{"name": "role", "image": "i", "resources": {"requests": requests, "limits": requests}}],
        },
    }  # fmt: skip


def kubeconfig_of(cluster: KubeCluster, account: str, path: Path) -> Path:
    """A kubeconfig with the rights of a service account alone."""
    config = json.loads(cluster.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": cluster.kubectl("create", "token", account, "-n", "recmesh").strip()}
    path.write_text(json.dumps(config))
    path.chmod(0o600)
    return path


def manifests(cluster: KubeCluster, folder: Path) -> list[dict[str, Any]]:
    """The overlay `dev` with the component."""
    folder.mkdir()
    parts = {"resources": [ROOT / "infra" / "overlays" / "dev"], "components": [COMPONENT, COMPONENT / "policies"]}
    kustomization = {key: [os.path.relpath(each, folder.resolve()) for each in paths] for key, paths in parts.items()}
    (folder / "kustomization.yaml").write_text(json.dumps(kustomization | {"namespace": "recmesh"}))
    return objects_in(cluster.kubectl("kustomize", str(folder)))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeCluster]:
    if os.environ.get("KUBECONFIG"):
        pytest.skip("a scheduler of its own needs a cluster of its own, and KUBECONFIG names another")
    tool()
    with kube_cluster(tmp_path_factory.mktemp("extender") / "cluster", "--kwok") as made:
        for rack, network_pod in RACKS.items():
            made.control(
                "nodes", "2", "--prefix", rack, "--cpu", "8", "--memory", "16Gi", "--gpu", "2",
                "--label", f"recmesh.dev/switch={rack}", "--label", f"recmesh.dev/network-pod={network_pod}",
            )  # fmt: skip
        made.kubectl("wait", "--for=condition=Ready", "node", "--all", "--timeout=30s")
        yield made


@pytest.fixture(scope="module")
def objects(cluster: KubeCluster, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return manifests(cluster, tmp_path_factory.mktemp("overlay") / "placement")


@pytest.fixture(scope="module")
def world(
    cluster: KubeCluster, objects: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("placement")
    rights = ("Namespace", "ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
    needed = sorted((item for item in objects if item["kind"] in rights), key=lambda item: item["kind"] != "Namespace")
    cluster.kubectl("apply", "-f", "-", body={"apiVersion": "v1", "kind": "List", "items": needed})
    port = free_port()
    config = yaml.safe_load((COMPONENT / "scheduler-config.yaml").read_text())
    config["extenders"][0]["urlPrefix"] = f"http://127.0.0.1:{port}"
    config["clientConnection"] = {"kubeconfig": str(kubeconfig_of(cluster, "scheduler", folder / "scheduler.json"))}
    (folder / "scheduler.yaml").write_text(json.dumps(config))
    assert cluster.folder is not None
    env = {
        "RECMESH_PLACEMENT_ADDRESS": f"127.0.0.1:{port}",
        "RECMESH_KUBE_CONFIG": str(kubeconfig_of(cluster, "brain", folder / "brain.json")),
    }
    with contextlib.ExitStack() as stack:
        nats = stack.enter_context(nats_server(folder / "nats"))
        brain = stack.enter_context(service("brain", folder / "brain", env=env | {"RECMESH_NATS_URL": nats.url}))
        command = [
            str((cluster.folder / "bin" / "kubectl").resolve()), "kube-scheduler", f"--config={folder}/scheduler.yaml",
            f"--secure-port={free_port()}", "--bind-address=127.0.0.1", "--authentication-skip-lookup=true",
        ]  # fmt: skip
        with (folder / "scheduler.log").open("wb") as log:
            scheduler = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            yield World(cluster, brain, scheduler)
        finally:
            scheduler.kill()
            scheduler.wait(10)


def rack(node: str) -> str:
    return node.partition("-")[0]


def test_the_api_server_takes_the_component_and_brain_may_only_look(
    cluster: KubeCluster, world: World, objects: list[dict[str, Any]]
) -> None:
    mine = [
        item for item in objects if "scheduler" in item["metadata"]["name"] or item["metadata"]["name"] == "placement"
    ]
    assert {item["kind"] for item in mine} == {
        "ServiceAccount", "ConfigMap", "Deployment", "ClusterRoleBinding", "NetworkPolicy",
    }  # fmt: skip
    changed = [item for item in objects if item["metadata"]["name"] in ("brain", "jobmaster")]
    given = {"apiVersion": "v1", "kind": "List", "items": [*mine, *changed]}
    done = cluster.kubectl("apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-", body=given)
    assert "violate" not in done
    brain = next(item for item in changed if (item["kind"], item["metadata"]["name"]) == ("Deployment", "brain"))
    jobmaster = next(
        item for item in changed if (item["kind"], item["metadata"]["name"]) == ("Deployment", "jobmaster")
    )
    env = {each["name"]: each.get("value") for each in jobmaster["spec"]["template"]["spec"]["containers"][0]["env"]}
    config = next(item for item in mine if item["kind"] == "ConfigMap")["data"]["scheduler-config.yaml"]
    assert env["RECMESH_KUBE_SCHEDULER"] == yaml.safe_load(config)["profiles"][0]["schedulerName"] == SCHEDULER
    assert brain["spec"]["template"]["spec"]["automountServiceAccountToken"] is True
    service = next(item for item in changed if (item["kind"], item["metadata"]["name"]) == ("Service", "brain"))
    assert {each["port"] for each in service["spec"]["ports"]} == {7000, 7100, 8000}
    for verb, thing, may in (
        ("watch", "nodes", True),
        ("list", "pods", True),
        ("delete", "pods", False),
        ("get", "secrets", False),
    ):
        command = [str(cluster.folder / "bin" / "kubectl") if cluster.folder else "kubectl", "--kubeconfig"]
        asked = subprocess.run(
            [*command, str(cluster.kubeconfig), "auth", "can-i", verb, thing, "-A",
             "--as=system:serviceaccount:recmesh:brain"], capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip
        assert asked.stdout.strip() == ("yes" if may else "no"), (verb, thing)


def test_a_job_stays_under_one_switch_then_in_one_network_pod_and_is_told_why_not_beyond(world: World) -> None:
    space = world.cluster.namespace()
    world.submit(*(pod(space, f"w{number}", instances="4") for number in range(4)))
    first = world.placed(space, 4)
    assert len({rack(node) for node in first.values()}) == 1
    world.submit(*(pod(space, f"x{number}") for number in range(2)))
    placed = world.placed(space, 6)
    assert Counter(rack(node) for node in placed.values()) == {"r1": 4, "r2": 2}
    world.submit(*(pod(space, f"y{number}") for number in range(3)))
    world.placed(space, 8)  # two more fit, and the third is refused what is free in p2
    last = next(name for name, item in world.pods(space).items() if not item["spec"].get("nodeName"))
    said = world.refusal(space, last)
    assert "2 recmesh: ads lives in network pod p1" in said and "4 Insufficient nvidia.com/gpu" in said
    world.cluster.kubectl("delete", "pods", "--all", "-n", space, "--grace-period=0", "--force", "--wait=true")


def test_no_more_than_d_of_an_application_come_to_a_node_though_they_are_asked_for_at_once(world: World) -> None:
    space = world.cluster.namespace()
    given = [
        pod(space, f"w{number}", asks={}, most_per_node="1", selector={"recmesh.dev/network-pod": "p1"})
        for number in range(5)
    ]
    world.submit(*given, *(pod(space, f"o{number}", app="other", asks={}) for number in range(4)))
    placed = world.placed(space, 8)
    mine = [node for name, node in placed.items() if name.startswith("w")]
    assert len(mine) == len(set(mine)) == 4
    last = next(name for name in (f"w{number}" for number in range(5)) if name not in placed)
    assert "4 recmesh: 1 of ads are on the node: no more are allowed" in world.refusal(space, last)
    assert len({rack(node) for name, node in placed.items() if name.startswith("o")}) == 1
    world.cluster.kubectl("delete", "pods", "--all", "-n", space, "--grace-period=0", "--force", "--wait=true")


def test_mig_slices_and_bandwidth_are_resources_and_a_switch_promises_no_more_than_its_share(world: World) -> None:
    space = world.cluster.namespace()
    amounts = {"nvidia.com/mig-1g.10gb": "7", "recmesh.dev/nic": "100"}
    for name in ("r3-0", "r3-1"):
        status = {"status": {"capacity": amounts, "allocatable": amounts}}
        world.cluster.kubectl("patch", "node", name, "--subresource=status", "--type=merge", "-p", json.dumps(status))
        world.cluster.kubectl("label", "node", name, "recmesh.dev/switch-capacity=100")
    asks = {"nvidia.com/mig-1g.10gb": "2", "recmesh.dev/nic": "30"}
    world.submit(pod(space, "h0", asks=asks))
    world.submit(pod(space, "h1", asks=asks))
    assert set(world.placed(space, 2).values()) == {"r3-0"} or set(world.placed(space, 2).values()) == {"r3-1"}
    world.submit(pod(space, "h2", asks=asks))
    assert "switch r3 has promised 60 of its 100 recmesh.dev/nic: 30 more would pass 0.8 of it" in world.refusal(
        space, "h2"
    )
    world.cluster.kubectl("delete", "pod", "h0", "-n", space, "--grace-period=0", "--force")
    assert "h2" in world.placed(space, 2)  # a refused pod is tried again once there is room
    world.cluster.kubectl("delete", "pods", "--all", "-n", space, "--grace-period=0", "--force", "--wait=true")


@pytest.mark.asyncio
async def test_a_refusal_does_not_rest_on_pods_that_only_a_late_watch_still_has(world: World) -> None:
    """brain's view is as of a list, and no watch tells it more; its questions go to the API server."""
    space = world.cluster.namespace()
    world.submit(*(pod(space, f"w{number}", asks={}, most_per_node="1", app="late") for number in range(2)))
    nodes = world.placed(space, 2)
    client = await connect(Access(world.cluster.kubeconfig), field_manager="test")
    try:
        placing = Placing(RULES, clock=system_clock, living=LivingPods(client, RULES.app_labels))
        placing.take_nodes((await client.list(NODES))[0])
        placing.take_pods((await client.list(PODS))[0])
        asked = world.cluster.get("pod", "w0", "-n", space)     # as one that has no node yet
        asked["metadata"]["uid"], names = "other", [nodes["w1"]]
        assert (await placing.filter(asked, names)).names == []
        world.cluster.kubectl("delete", "pod", "w1", "-n", space, "--grace-period=0", "--force")
        assert (await placing.filter(asked, names)).names == names
    finally:
        await client.close()
    world.cluster.kubectl("delete", "pods", "--all", "-n", space, "--grace-period=0", "--force", "--wait=true")


def test_the_page_and_the_metrics_tell_and_without_brain_pods_are_placed_all_the_same(world: World) -> None:
    space = world.cluster.namespace()
    world.submit(pod(space, "seen"), pod(space, "no-application", app=""))
    node = world.placed(space, 2)["seen"]
    page = httpx.get(world.brain.address("ops") + "/data").json()["Placement of pods"]
    assert any(f"{space}/seen" in str(row) and node in str(row) and "first" in str(row) for row in page)
    assert not any("no-application" in str(row) for row in page)
    metrics = httpx.get(world.brain.address("ops") + "/metrics").text
    assert 'recmesh_brain_placement_seconds_count{verb="filter"}' in metrics
    assert 'recmesh_brain_placement_decisions_total{reason="first"}' in metrics
    assert "recmesh_brain_placement_overruled_total 0.0" in metrics
    world.brain.kill()
    world.submit(pod(space, "meanwhile"))
    world.placed(space, 3)
    world.brain.start()  # knows by its watches what was placed without it
    rest = [rack(each) for name, each in world.placed(space, 3).items() if name in ("seen", "meanwhile")]
    until(lambda: "recmesh_brain_placement_nodes 6.0" in httpx.get(world.brain.address("ops") + "/metrics").text)
    world.submit(pod(space, "after", asks={}))
    assert rack(world.placed(space, 4)["after"]) in rest
