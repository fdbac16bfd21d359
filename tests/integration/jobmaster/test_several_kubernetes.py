"""One jobmaster over two Kubernetes clusters, each with an API server and simulated nodes of its own, by the contexts
of one kubeconfig: where jobs go, and what becomes of them while one of the clusters is away."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from recmesh.pb import jobmaster_pb2 as pb
from recmesh.runtime.errors import InvalidArgument
from tests.integration.jobmaster.test_objects import small
from tests.support.kube import KubeCluster, kube_cluster
from tests.support.pod_player import PodPlayer
from tests.support.tiny_jobs import ROWS
from tests.support.training_mesh import TrainingMesh, training_mesh
from tests.support.waiting import until

pytestmark = [pytest.mark.integration, pytest.mark.long]

NODES = {"east": (2, ()), "west": (1, ("--gpu", "2"))}
"""How many, of 8 cores each, and what else they have."""
GPUS = {"east": {"gpu": "nvidia.com/gpu"}, "west": {"gpu": "nvidia.com/gpu", "a100": "nvidia.com/gpu"}}


@dataclass
class World:
    clusters: dict[str, KubeCluster]
    mesh: TrainingMesh

    def submit(
        self, name: str, *, worker: dict[str, Any] | None = None, epochs: int = 1, step_s: float = 0.0, **more: Any
    ) -> str:
        """One parameter server and one worker, of a core each where `worker` says nothing else."""
        job = small(self.mesh, name, epochs=epochs) | more
        asked = {"replicas": 1, "cpu": 1, "memory": "512Mi", "env": {"STEP_S": str(step_s)}} | (worker or {})
        job["roles"] = {"ps": {"replicas": 1, "cpu": 1, "memory": "512Mi"}, "worker": asked}
        return self.mesh.submit(job)

    def home(self, job_id: str) -> str:
        """The cluster in which it has pods; empty while it has none."""
        found = {role.handle.partition("/")[0] for role in self.mesh.job(job_id).roles if role.handle}
        assert len(found) <= 1, f"{job_id} is in {found}"
        return next(iter(found), "")

    def until_home(self, job_id: str) -> str:
        until(lambda: bool(self.home(job_id)), timeout_s=120.0)
        return self.home(job_id)

    def trains(self, job_id: str) -> pb.Job:
        return self.mesh.until_job(job_id, lambda job: job.phase == "Running" and job.progress.samples > 0)

    def samples(self, job_id: str) -> int:
        count: int = self.mesh.job(job_id).progress.samples
        return count

    def pods(self, cluster: str, job_id: str) -> list[str]:
        found = self.clusters[cluster].get("pods", "-n", "ads", "-l", f"recmesh.dev/job={job_id}")["items"]
        return sorted(pod["metadata"]["name"] for pod in found)


def merged(clusters: dict[str, KubeCluster], path: Path) -> Path:
    """One kubeconfig with a context for each."""
    made: dict[str, Any] = {"apiVersion": "v1", "kind": "Config", "clusters": [], "users": [], "contexts": []}
    for name, cluster in clusters.items():
        own = json.loads(cluster.kubeconfig.read_text())
        made["clusters"].append({"name": name, "cluster": own["clusters"][0]["cluster"]})
        made["users"].append({"name": name, "user": own["users"][0]["user"]})
        made["contexts"].append({"name": name, "context": {"cluster": name, "user": name}})
    path.write_text(json.dumps(made))
    path.chmod(0o600)
    return path


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("kube")
    with ExitStack() as stack:
        clusters: dict[str, KubeCluster] = {}
        for name, (count, more) in NODES.items():
            cluster = clusters[name] = stack.enter_context(kube_cluster(folder / name, "--kwok"))
            cluster.control("nodes", str(count), "--prefix", name, "--cpu", "8", "--memory", "16Gi", *more)
            cluster.kubectl("create", "namespace", "ads")
            cluster.kubectl("wait", "--for=create", "serviceaccount/default", "-n", "ads", "--timeout=30s")
            cluster.kubectl("wait", "--for=condition=Ready", "node", "--all", "--timeout=30s")
        entries = [
            {"name": name, "kind": "kubernetes", "labels": {"region": name}, "settings": {
                "KUBE_CONTEXT": name, "KUBE_GPUS": json.dumps(GPUS[name]),
            }} for name in clusters
        ]  # fmt: skip
        settings: dict[str, Any] = {
            "RECMESH_JOBMASTER_CLUSTER": "several", "RECMESH_CLUSTERS": json.dumps(entries),
            "RECMESH_KUBE_CONFIG": str(merged(clusters, folder / "kubes")), "RECMESH_KUBE_NAMESPACE": "ads",
            "RECMESH_KUBE_IMAGE": "registry.local/pause:1", "RECMESH_STALL_S": "0",
        }
        mesh = stack.enter_context(training_mesh(tmp_path_factory.mktemp("mesh"), **settings))
        for name, cluster in clusters.items():
            stack.enter_context(PodPlayer(cluster, "ads", folder / f"pods-{name}").playing())
        yield World(clusters, mesh)


@pytest.fixture(autouse=True)
def empty(world: World) -> Iterator[None]:
    """Jobs of one test take no room from another's."""
    yield
    for job in world.mesh.jobs.List(pb.ListRequest(), timeout=10).jobs:
        world.mesh.jobs.Delete(pb.JobRequest(job_id=job.job_id), timeout=30)
    until(lambda: not world.mesh.jobs.List(pb.ListRequest(), timeout=10).jobs, timeout_s=120.0)
    for cluster in world.clusters.values():
        assert cluster.get("pods", "-n", "ads")["items"] == []


def test_jobs_that_come_together_go_where_there_is_room_for_each(world: World) -> None:
    """East has room for two of them, west for one; nothing of them is placed yet when the last one is chosen for."""
    names = [world.submit(f"wide-{number}", worker={"cpu": 5}) for number in range(3)]
    assert sorted(world.until_home(name) for name in names) == ["east", "east", "west"]
    for name in names:
        assert world.mesh.until_phase(name, "Succeeded").progress.samples == ROWS


def test_a_job_goes_where_its_gpus_are_where_its_labels_say_or_is_refused_by_what_lacks(world: World) -> None:
    fast = world.submit("fast", worker={"gpu": 1, "gpu_kind": "a100"})
    pinned = world.submit("pinned", labels={"cluster.name": "west"})
    free = world.submit("free")
    assert (world.until_home(fast), world.until_home(pinned), world.until_home(free)) == ("west", "west", "east")
    for name in (fast, pinned, free):
        world.mesh.until_phase(name, "Succeeded")
    with pytest.raises(InvalidArgument) as raised:
        world.submit("none", worker={"gpu": 1, "gpu_kind": "h100"})
    violation, = raised.value.violations
    assert violation.path == "roles.worker.gpu_kind"
    assert "east: this cluster has no 'h100'; it has: gpu" in violation.reason
    assert "west: this cluster has no 'h100'; it has: a100, gpu" in violation.reason
    with pytest.raises(InvalidArgument, match="no cluster has what labels") as raised:
        world.submit("none", labels={"cluster.region": "north"})
    with pytest.raises(InvalidArgument, match="no 'a100'"):
        world.submit("none", worker={"gpu": 1, "gpu_kind": "a100"}, labels={"cluster.name": "east"})


def test_a_job_that_no_cluster_has_room_for_waits_and_says_what_lacks(world: World) -> None:
    name = world.submit("large", worker={"cpu": 12})
    job = world.mesh.until_job(name, lambda job: "Insufficient cpu" in " ".join(job.notes))
    home = world.home(name)
    assert job.phase == "Starting"
    cluster = world.clusters[home]
    cluster.control("nodes", "1", "--prefix", "large", "--cpu", "16", "--memory", "16Gi")
    try:
        assert world.mesh.until_phase(name, "Succeeded").progress.samples == ROWS
    finally:
        cluster.kubectl("delete", "node", "large-0")


def test_a_job_goes_to_the_cluster_that_has_a_node_large_enough(world: World) -> None:
    """East has more in all, and none that takes it."""
    world.clusters["west"].control("nodes", "1", "--prefix", "large", "--cpu", "13", "--memory", "16Gi")
    world.clusters["east"].control("nodes", "2", "--prefix", "small", "--cpu", "8", "--memory", "16Gi")
    try:
        name = world.submit("tall", worker={"cpu": 12})
        assert world.until_home(name) == "west"
        world.mesh.until_phase(name, "Succeeded")
    finally:
        world.clusters["west"].kubectl("delete", "node", "large-0")
        world.clusters["east"].kubectl("delete", "node", "small-0", "small-1")


def test_a_cluster_that_is_away_stops_no_job_of_the_other_and_loses_none_of_its_own(world: World) -> None:
    long: dict[str, Any] = {"epochs": 40, "step_s": 0.05}
    here = world.submit("here", labels={"cluster.name": "east"}, **long)
    there = world.submit("there", labels={"cluster.name": "west"}, **long)
    world.trains(here), world.trains(there)
    # East is nearly full: without the outage a new one would go west.
    world.submit("filling", worker={"cpu": 6}, labels={"cluster.name": "east"}, **long)
    world.trains("filling")
    world.clusters["west"].control("kill", "kube-apiserver")
    try:
        new = world.submit("new", worker={"cpu": 2})
        assert world.until_home(new) == "east"
        assert world.mesh.until_phase(new, "Succeeded").progress.samples == ROWS
        before = {name: world.samples(name) for name in (here, there)}
        until(lambda: all(world.samples(name) > before[name] for name in before), timeout_s=60.0)

        world.mesh.services["jobmaster"].kill()
        world.mesh.services["jobmaster"].start()
        before = {here: world.trains(here).progress.samples}
        until(lambda: world.samples(here) > before[here], timeout_s=60.0)
        assert world.mesh.job(there).phase not in ("Failed", "Recovering")
    finally:
        world.clusters["west"].control("start", "kube-apiserver")
    for name in (here, there):
        job = world.mesh.until_phase(name, "Succeeded", timeout_s=300.0)
        assert job.progress.samples == 40 * ROWS
        assert sum(role.restarts for role in job.roles) == 0, "nothing of it was started twice"
    assert world.pods("east", there) == world.pods("west", here) == []


def test_another_jobmaster_finds_each_job_where_it_is(world: World) -> None:
    homes = {
        world.submit(f"kept-{name}", labels={"cluster.name": name}, epochs=20, step_s=0.05): name
        for name in world.clusters
    }
    for job_id in homes:
        world.trains(job_id)
    world.mesh.services["jobmaster"].kill()
    world.mesh.services["jobmaster"].start()
    for job_id, name in homes.items():
        assert world.trains(job_id).job_id == job_id and world.home(job_id) == name
        world.mesh.jobs.Scale(pb.ScaleRequest(job_id=job_id, role="worker", replicas=2), timeout=30)
        world.mesh.until_job(job_id, lambda job: sum(role.role == "worker" for role in job.roles) == 2)
        pod = f"{job_id}-worker-1-1"
        until(lambda: pod in world.pods(name, job_id), timeout_s=60.0)  # noqa: B023  # it is called in this turn
        world.mesh.until_phase(job_id, "Succeeded")
