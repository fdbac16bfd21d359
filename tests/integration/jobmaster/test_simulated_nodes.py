"""Whole jobs of TrainingJob objects on simulated nodes: a real mesh, a real API server, pods played by processes."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from recmesh.pb import jobmaster_pb2 as pb
from tests.integration.jobmaster.test_objects import conditions, reasons, small, thing_of, until_status
from tests.support.api_proxy import ApiProxy, proxied
from tests.support.kube import CRDS, KubeCluster, kube_cluster, tool
from tests.support.pod_player import PodPlayer
from tests.support.tiny_jobs import ROWS
from tests.support.training_mesh import TrainingMesh, training_mesh
from tests.support.waiting import until

pytestmark = [pytest.mark.integration, pytest.mark.long]

JOB, STUCK = "recmesh.dev/job", {"metadata": {"annotations": {"test.recmesh.dev/stuck": "true"}}}
OOM = {"metadata": {"annotations": {"test.recmesh.dev/fate": "OOMKilled"}}}


@dataclass
class World:
    cluster: KubeCluster
    mesh: TrainingMesh
    player: PodPlayer
    proxy: ApiProxy

    def apply(self, name: str, *, epochs: int = 50, step_s: float = 0.1, **roles: Any) -> None:
        """An object with one parameter server and one worker, as far as `roles` says nothing else."""
        thing = thing_of(small(self.mesh, name, epochs=epochs), step_s=step_s)
        for role, more in roles.items():
            thing["spec"]["roles"][role] |= more
        self.put(thing)

    def put(self, thing: dict[str, Any]) -> None:
        self.cluster.kubectl("apply", "--server-side", "-f", "-", body=thing)

    def pods(self, name: str, role: str = "") -> list[dict[str, Any]]:
        labels = f"{JOB}={name}" + (f",recmesh.dev/role={role}" if role else "")
        found: list[dict[str, Any]] = self.cluster.get("pods", "-n", "ads", "-l", labels)["items"]
        return found

    def living(self, name: str, role: str = "") -> list[str]:
        return sorted(pod["metadata"]["name"] for pod in self.pods(name, role) if pod["status"]["phase"] == "Running")

    def trains(self, name: str) -> pb.Job:
        return self.mesh.until_job(name, lambda job: job.phase == "Running" and job.progress.samples > 0)

    def delete(self, name: str) -> None:
        """As users do; nothing of it may be left."""
        self.cluster.kubectl("delete", "tj", name, "-n", "ads", "--timeout=55s")
        until(lambda: self.pods(name) == [])
        assert self.cluster.get("secrets", "-n", "ads", "-l", f"{JOB}={name}")["items"] == []
        assert name not in [job.job_id for job in self.mesh.jobs.List(pb.ListRequest(), timeout=10).jobs]
        assert not list(self.mesh.storage.glob(f"**/{name}/**/*")), "snapshots are left"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    tool()
    folder = tmp_path_factory.mktemp("kube")
    with kube_cluster(folder / "cluster", "--kwok", nodes=3) as cluster:
        cluster.kubectl("apply", "--server-side", "-f", str(CRDS))
        cluster.kubectl("wait", "--for=condition=Established", "--timeout=30s", "-f", str(CRDS))
        cluster.kubectl("create", "namespace", "ads")
        with proxied(cluster.kubeconfig, folder) as proxy:
            settings: dict[str, Any] = {
                "RECMESH_JOBMASTER_OBJECTS": "kubernetes", "RECMESH_JOBMASTER_CLUSTER": "kubernetes",
                "RECMESH_KUBE_CONFIG": str(proxy.kubeconfig), "RECMESH_KUBE_NAMESPACE": "ads",
                "RECMESH_KUBE_IMAGE": "registry.local/pause:1", "RECMESH_STALL_S": "0",
            }
            player = PodPlayer(cluster, "ads", folder / "pods")
            with training_mesh(tmp_path_factory.mktemp("mesh"), **settings) as mesh, player.playing():
                yield World(cluster, mesh, player, proxy)


@pytest.fixture(autouse=True)
def calm(world: World) -> Iterator[None]:
    yield
    world.proxy.refusals.clear()
    world.proxy.lost_answers.clear()
    world.proxy.delay_s, world.player.plays = 0.0, True
    for thing in world.cluster.get("tj", "-n", "ads")["items"]:
        world.cluster.kubectl("delete", "tj", thing["metadata"]["name"], "-n", "ads", "--timeout=55s")


def test_kubectl_scales_pods_up_and_down_and_each_sample_is_trained_once(world: World) -> None:
    world.apply("scaled", epochs=20, step_s=0.1)
    world.trains("scaled")
    world.cluster.kubectl("scale", "tj/scaled", "-n", "ads", "--replicas=4")
    until_status(world.cluster, "scaled", lambda told: told.get("ready_workers") == "4/4")
    assert len(world.living("scaled", "worker")) == 4
    world.cluster.kubectl("scale", "tj/scaled", "-n", "ads", "--replicas=2")
    until_status(world.cluster, "scaled", lambda told: told.get("ready_workers") == "2/2")
    until(lambda: len(world.living("scaled", "worker")) == 2, timeout_s=120.0)
    told = until_status(world.cluster, "scaled", lambda told: told.get("phase") == "Succeeded")
    assert told["samples"] == told["total"] == 20 * ROWS
    assert all(pod["status"]["phase"] != "Running" for pod in world.pods("scaled"))


def test_pods_that_others_evict_kill_and_delete_cost_a_job_time_alone(world: World) -> None:
    world.apply("struck", epochs=20, step_s=0.1, worker={"replicas": 3})
    until_status(world.cluster, "struck", lambda told: told.get("ready_workers") == "3/3")
    world.trains("struck")
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "struck-worker-0-1"}}
    path = "/api/v1/namespaces/ads/pods/struck-worker-0-1/eviction"
    world.cluster.kubectl("create", "--raw", path, "-f", "-", body=eviction)
    world.cluster.kubectl("delete", "pod", "struck-worker-1-1", "-n", "ads", "--wait=false")
    world.player.kill("struck-worker-2-1")
    until(lambda: world.living("struck", "worker") == [f"struck-worker-{index}-2" for index in range(3)],
          timeout_s=120.0)
    told = until_status(world.cluster, "struck", lambda told: told.get("phase") == "Succeeded")
    assert told["samples"] == told["total"] == 20 * ROWS


def test_what_no_node_takes_is_told_and_begins_once_one_does(world: World) -> None:
    world.apply("large", epochs=1, step_s=0.0, worker={"cpu": 12})
    told = until_status(world.cluster, "large", lambda told: "Insufficient cpu" in json.dumps(told))
    assert told["phase"] == "Starting" and "worker-0-1 does not run yet: unschedulable: 0/3" in json.dumps(told)
    assert conditions(told)["Running"][0] == "False"
    world.cluster.control("nodes", "1", "--prefix", "large", "--cpu", "16", "--memory", "16Gi")
    try:
        told = until_status(world.cluster, "large", lambda told: told.get("phase") == "Succeeded")
        assert told["samples"] == ROWS
    finally:
        world.cluster.kubectl("delete", "node", "large-0")


def test_pods_that_are_killed_for_memory_get_more_of_it_until_the_limit_of_tries(world: World) -> None:
    thing = thing_of(small(world.mesh, "hungry"))
    thing["spec"]["roles"]["worker"] |= {"memory": "256Mi", "memory_max": "4Gi", "pod_template": OOM}
    thing["spec"]["backoff_limit"] = 2
    world.put(thing)
    told = until_status(world.cluster, "hungry", lambda told: told.get("phase") == "Failed")
    assert "out of memory (OOMKilled)" in json.dumps(told)
    limits = [pod["spec"]["containers"][0]["resources"]["limits"]["memory"] for pod in world.pods("hungry", "worker")]
    sizes = sorted({int(limit.removesuffix("Mi")) for limit in limits})
    assert len(sizes) == 3 and sizes[0] == 256 and sizes[1] >= 1.5 * 256 and sizes[2] > sizes[1], limits


def _refused(world: World, name: str) -> None:
    thing = thing_of(small(world.mesh, name))
    thing["spec"]["data"]["source"]["files"] = ["/nowhere/*.parquet"]
    world.put(thing)
    until_status(world.cluster, name, lambda told: told.get("phase") == "Refused")


def _unschedulable(world: World, name: str) -> None:
    world.apply(name, worker={"cpu": 1000})
    until_status(world.cluster, name, lambda told: "Insufficient cpu" in json.dumps(told))


def _stuck(world: World, name: str) -> None:
    world.apply(name, ps={"pod_template": STUCK}, worker={"pod_template": STUCK})
    until(lambda: len(world.pods(name)) == 2)


def _starting(world: World, name: str) -> None:
    world.player.plays = False
    world.apply(name)
    until(lambda: len(world.living(name)) == 2)


def _running(world: World, name: str) -> None:
    world.apply(name)
    world.trains(name)


def _scaling(world: World, name: str) -> None:
    _running(world, name)
    world.player.plays = False
    world.cluster.kubectl("scale", f"tj/{name}", "-n", "ads", "--replicas=3")
    until_status(world.cluster, name, lambda told: told.get("phase") == "Scaling")


def _recovering(world: World, name: str) -> None:
    _running(world, name)
    world.player.plays = False
    world.player.kill(f"{name}-ps-0-1")
    until_status(world.cluster, name, lambda told: told.get("phase") == "Recovering")


def _suspended(world: World, name: str) -> None:
    _running(world, name)
    world.cluster.kubectl("patch", "tj", name, "-n", "ads", "--type=merge", "-p", '{"spec": {"suspend": true}}')
    until_status(world.cluster, name, lambda told: told.get("phase") == "Suspended")


def _succeeded(world: World, name: str) -> None:
    world.apply(name, epochs=1, step_s=0.0)
    until_status(world.cluster, name, lambda told: told.get("phase") == "Succeeded")


def _retrying(world: World, name: str) -> None:
    world.apply(name, worker={"pod_template": {"metadata": {"annotations": {"test.recmesh.dev/fate": "Error"}}}})
    until(lambda: len(world.pods(name, "worker")) >= 2)


STAGES = (
    _refused, _unschedulable, _stuck, _starting, _running, _scaling, _recovering, _retrying, _suspended, _succeeded,
)


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: str(stage.__name__).strip("_"))
def test_a_job_is_deleted_at_every_stage_and_leaves_nothing(world: World, stage: Any) -> None:
    name = f"gone-{stage.__name__.strip('_')}"
    stage(world, name)
    world.delete(name)


def test_a_deletion_is_carried_out_by_the_next_jobmaster_where_this_one_dies(world: World) -> None:
    _running(world, "orphan")
    world.mesh.services["jobmaster"].kill()
    world.cluster.kubectl("delete", "tj", "orphan", "-n", "ads", "--wait=false")
    world.mesh.services["jobmaster"].start()
    world.delete("orphan")


def test_conflicts_and_lost_answers_change_nothing_of_a_jobs_end(world: World) -> None:
    """Every other write is answered with a conflict, or carried out and its answer lost, while others write, too."""
    world.proxy.refusals["PATCH"] = [409] * 25
    world.proxy.lost_answers.update(POST=4, PATCH=6, DELETE=2)
    world.apply("fought", epochs=3, step_s=0.05, worker={"replicas": 2})
    for number in range(20):
        world.cluster.kubectl("annotate", "tj", "fought", "-n", "ads", "--overwrite", f"somebody/s={number}")
        if number == 10:
            world.trains("fought")
            world.cluster.kubectl("scale", "tj/fought", "-n", "ads", "--replicas=3")
    told = until_status(world.cluster, "fought", lambda told: told.get("phase") == "Succeeded")
    assert told["samples"] == told["total"] == 3 * ROWS and told["observedGeneration"] == 2
    assert world.proxy.refusals["PATCH"] == [] and world.proxy.lost_answers["PATCH"] <= 0, "there was a storm"
    assert "Completed" in reasons(world.cluster, "fought")
    names = [pod["metadata"]["name"] for pod in world.pods("fought")]
    assert len(names) == len(set(names))
    world.delete("fought")


def test_a_job_outlasts_a_restart_of_the_api_server_and_its_pods_are_watched_again(world: World) -> None:
    world.apply("lonely", epochs=20, step_s=0.1, worker={"replicas": 2})
    until_status(world.cluster, "lonely", lambda told: told.get("ready_workers") == "2/2")
    before = world.trains("lonely").progress.samples
    world.cluster.control("kill", "kube-apiserver")
    world.mesh.until_job("lonely", lambda job: job.progress.samples > before)
    world.cluster.control("start", "kube-apiserver")
    world.cluster.kubectl("delete", "pod", "lonely-worker-1-1", "-n", "ads", "--wait=false")
    until(lambda: world.living("lonely", "worker") == ["lonely-worker-0-1", "lonely-worker-1-2"],
          timeout_s=120.0)
    told = until_status(world.cluster, "lonely", lambda told: told.get("phase") == "Succeeded")
    assert told["samples"] == told["total"] == 20 * ROWS


def test_a_slow_api_server_delays_and_does_no_more(world: World) -> None:
    world.proxy.delay_s = 0.7
    world.apply("slowly", epochs=2, step_s=0.0, worker={"replicas": 3})
    told = until_status(world.cluster, "slowly", lambda told: told.get("phase") == "Succeeded")
    assert told["samples"] == 2 * ROWS
    world.delete("slowly")
