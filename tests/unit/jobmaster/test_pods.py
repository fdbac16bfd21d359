"""The pod of a start order, and what a pod tells of itself."""

from dataclasses import replace
from typing import Any

import pytest

from recmesh.runtime.errors import InvalidArgument
from recmesh.runtime.kube import Object
from recmesh.spec.job import TrainingJob
from services.jobmaster.__main__ import check, role_environment
from services.jobmaster.cluster import StartOrder
from services.jobmaster.cluster.kubernetes.known import KnownPods
from services.jobmaster.cluster.kubernetes.pods import (
    PodSettings,
    gpu_violations,
    merged,
    pod_name,
    pod_of,
    secret_of,
)
from services.jobmaster.cluster.kubernetes.reading import Pod, Size, read
from services.jobmaster.cluster.kubernetes.room import free
from services.jobmaster.config import JobmasterSettings
from services.jobmaster.domain.exits import Exit, judge
from services.jobmaster.domain.job import RoleState

SETTINGS = PodSettings(namespace="ml", image="recmesh/trainer")
ORDER = StartOrder("ads", "worker-0-2", "worker", 0, {"A": "1", "RECMESH_TOKEN": "t"}, cpu=1.5, memory_bytes=1 << 30)


def observed(version: int = 5, uid: str = "u1", order: StartOrder = ORDER, **status: Any) -> Object:
    pod = pod_of(order, SETTINGS)
    pod["metadata"] |= {"uid": uid, "resourceVersion": str(version)}
    return pod | {"status": status}


def state(**states: Any) -> list[dict[str, Any]]:
    return [{"name": "sidecar", "state": {}}, {"name": "role", "state": states}]


def seen(pod: Object, **how: bool) -> Pod:
    found = read(pod, **how)
    assert found is not None
    return found


def end(pod: Object, **how: bool) -> Exit:
    found = seen(pod, **how).exit
    assert found is not None
    return found


def test_the_same_order_makes_the_same_pod_and_another_attempt_another_name() -> None:
    assert pod_of(ORDER, SETTINGS) == pod_of(ORDER, SETTINGS)
    assert pod_name("ads", "worker-0-2") == "ads-worker-0-2"
    found = seen(observed(phase="Running", containerStatuses=state(running={})))
    assert (found.job_id, found.name, found.exit, found.begun) == ("ads", "worker-0-2", None, True)
    assert found.wanted == Size(1.5, 1 << 30)


def test_all_roles_mount_the_certificates_that_are_theirs_and_speak_by_them() -> None:
    of_jobmaster = {f"RECMESH_TLS_{name}": f"/jobmaster/{name}" for name in ("CERT", "KEY", "CA")}
    order = replace(ORDER, env={**of_jobmaster, "RECMESH_TLS_SERVER_NAME": "recmesh"})
    for role in ("ps", "worker", "data", "evaluator", "finisher"):
        pod = pod_of(replace(order, role=role), replace(SETTINGS, tls_secret="roles-tls"))
        container = pod["spec"]["containers"][0]
        env = {item["name"]: item.get("value") for item in container["env"]}
        assert {name: env[name] for name in env if name.startswith("RECMESH_TLS_")} == {
            "RECMESH_TLS_CERT": "/tls/tls.crt", "RECMESH_TLS_KEY": "/tls/tls.key", "RECMESH_TLS_CA": "/tls/ca.crt",
            "RECMESH_TLS_SERVER_NAME": "recmesh",
        }
        assert {"name": "recmesh-tls", "mountPath": "/tls", "readOnly": True} in container["volumeMounts"]
        volume = {"name": "recmesh-tls", "secret": {"secretName": "roles-tls", "defaultMode": 0o440}}
        assert volume in pod["spec"]["volumes"]
    plain = pod_of(order, SETTINGS)
    env = {item["name"]: item.get("value") for item in plain["spec"]["containers"][0]["env"]}
    assert env["RECMESH_TLS_CERT"] == "/jobmaster/CERT"       # for a template that mounts something there
    assert not [volume for volume in plain["spec"]["volumes"] if volume["name"] == "recmesh-tls"]


def test_pods_name_their_scheduler_and_how_many_they_are_to_be_where_that_is_known() -> None:
    plain = pod_of(ORDER, SETTINGS)
    assert "schedulerName" not in plain["spec"] and "annotations" not in plain["metadata"]
    settings, order = replace(SETTINGS, scheduler="recmesh-scheduler"), replace(ORDER, instances=7)
    pod = pod_of(order, settings)
    assert pod["spec"]["schedulerName"] == "recmesh-scheduler"
    assert pod["metadata"]["annotations"] == {"recmesh.dev/instances": "7"}
    template = {"metadata": {"annotations": {"team": "ads"}}, "spec": {"schedulerName": "own"}}
    pod = pod_of(replace(order, template=template), settings)
    assert pod["spec"]["schedulerName"] == "own"
    assert pod["metadata"]["annotations"] == {"recmesh.dev/instances": "7", "team": "ads"}


def test_roles_with_the_same_secrets_share_one_and_it_is_nowhere_else() -> None:
    order = replace(ORDER, secrets=frozenset({"RECMESH_TOKEN", "UNSET"}))
    secret = secret_of(order, SETTINGS, None)
    other = secret_of(replace(order, name="ps-0-1", role="ps", env={"RECMESH_TOKEN": "t"}), SETTINGS, None)
    assert secret is not None and secret == other
    assert secret_of(ORDER, SETTINGS, None) is None
    pod = pod_of(order, SETTINGS, secret=secret["metadata"]["name"])
    env = {item["name"]: item for item in pod["spec"]["containers"][0]["env"]}
    assert "value" not in env["RECMESH_TOKEN"] and env["A"]["value"] == "1"


def test_all_but_parameter_servers_mount_the_storage_where_it_is_a_claim() -> None:
    settings = replace(SETTINGS, storage_claim="storage", storage_path="/storage")

    def mounted(role: str) -> tuple[list[str], list[str]]:
        made = pod_of(replace(ORDER, name=f"{role}-0-1", role=role), settings)["spec"]
        claims = [item["persistentVolumeClaim"]["claimName"] for item in made["volumes"] if "emptyDir" not in item]
        return claims, [item["mountPath"] for item in made["containers"][0]["volumeMounts"]]

    own = ["/work", "/snapshots", "/tmp"]
    assert mounted("ps") == ([], own)
    for role in ("worker", "data", "evaluator", "finisher"):
        assert mounted(role) == (["storage"], [*own, "/storage"])


def test_a_role_runs_its_models_image_else_its_own_else_that_of_all_roles() -> None:
    settings = JobmasterSettings.from_env({"RECMESH_KUBE_IMAGES": '{"ps": "recmesh/ps"}'}, "RECMESH_")
    with pytest.raises(InvalidArgument, match="RECMESH_KUBE_IMAGES"):
        JobmasterSettings.from_env({"RECMESH_KUBE_IMAGES": '{"server": "recmesh/ps"}'}, "RECMESH_")
    pods = replace(SETTINGS, images={str(role): each for role, each in settings.kube_images.items()})

    def image(role: str, own: str = "") -> str:
        made = pod_of(replace(ORDER, name=f"{role}-0-1", role=role, image=own), pods)
        return str(made["spec"]["containers"][0]["image"])

    assert (image("ps"), image("worker"), image("ps", "mine")) == ("recmesh/ps", "recmesh/trainer", "mine")


def test_templates_join_lists_by_name_and_add_the_rest() -> None:
    own = {"containers": [{"name": "role", "env": [{"name": "A", "value": "1"}], "image": "i"}], "kept": {"x": 1}}
    given = {"containers": [{"name": "role", "env": [{"name": "A", "value": "2"}, {"name": "B"}]}, {"name": "side"}],
             "kept": {"y": 2}, "added": [1]}  # fmt: skip
    assert merged(own, given) == {
        "containers": [
            {"name": "role", "env": [{"name": "A", "value": "2"}, {"name": "B"}], "image": "i"}, {"name": "side"},
        ],
        "kept": {"x": 1, "y": 2}, "added": [1],
    }  # fmt: skip


@pytest.mark.parametrize(("template", "path"), [
    ({"spec": {"restartPolicy": "Always"}}, "roles.ps.pod_template.spec.restartPolicy"),
    ({"spec": {"containers": [{"name": "role", "image": "x"}]}}, "roles.ps.pod_template.spec.containers.0.image"),
    ({"spec": {"containers": [{"image": "x"}]}}, "roles.ps.pod_template.spec.containers.0"),
    ({"spec": {"volumes": {}}}, "roles.ps.pod_template.spec.volumes"),
    ({"spec": 3}, "roles.ps.pod_template.spec"),
    ({"metadata": {"name": "x"}}, "roles.ps.pod_template.metadata.name"),
    ({"metadata": {"labels": {"recmesh.dev/job": "x"}}}, "roles.ps.pod_template.metadata.labels"),
    ({"metadata": {"annotations": {"a": 1}}}, "roles.ps.pod_template.metadata.annotations"),
    ({"kind": "Pod"}, "roles.ps.pod_template.kind"),
])  # fmt: skip
def test_what_is_recmeshs_own_in_a_template_is_refused_by_its_path(template: dict[str, Any], path: str) -> None:
    spec = {
        "name": "ads", "model": {"zoo": "wide_deep"}, "roles": {"ps": {"pod_template": template}},
        "data": {"source": {"files": ["a.parquet"]}, "features": [{"name": "user"}]},
    }
    with pytest.raises(Exception) as raised:
        TrainingJob.parse(spec)
    assert [item.path for item in raised.value.violations] == [path]    # type: ignore[attr-defined]  # a MeshError


def test_accelerators_are_whole_devices_of_kinds_that_the_cluster_has() -> None:
    assert gpu_violations("worker", gpu=2.0, kind="", settings=SETTINGS) == []
    (half,) = gpu_violations("worker", gpu=0.5, kind="", settings=SETTINGS)
    assert half.path == "roles.worker.gpu"
    (other,) = gpu_violations("worker", gpu=1.0, kind="tpu", settings=SETTINGS)
    assert other.path == "roles.worker.gpu_kind" and "it has: gpu" in other.reason


DRAINING = RoleState(role="worker", index=0, stage="draining")
RUNNING = RoleState(role="worker", index=0, stage="running")


def terminated(code: int, reason: str = "Error", message: str = "") -> list[dict[str, Any]]:
    return state(terminated={"exitCode": code, "reason": reason, "message": message})


def test_an_exit_code_beyond_128_is_a_signal_and_the_message_names_the_batch() -> None:
    killed = end(observed(phase="Failed", containerStatuses=terminated(137, message="0 50 100\n")))
    assert (killed.signal, killed.code, killed.knows_batch, killed.batch) == (9, None, True, (0, 50, 100))
    mistaken = end(observed(phase="Failed", containerStatuses=terminated(64, message="idle")))
    assert (mistaken.code, mistaken.knows_batch, mistaken.batch) == (64, True, None)
    silent = end(observed(phase="Failed", containerStatuses=terminated(1)))
    assert not silent.knows_batch and judge(RUNNING, silent).kind == "crash"


@pytest.mark.parametrize(("status", "how", "cause", "words"), [
    ({"phase": "Failed", "reason": "Evicted", "message": "low on memory"}, {}, "evicted", "low on memory"),
    ({"phase": "Failed", "reason": "OutOfcpu", "message": "no cpu left"}, {}, "refused", "OutOfcpu: no cpu left"),
    ({"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler",
                      "message": "preempted for urgent"}], "containerStatuses": terminated(143)},
     {"gone": True}, "preempted", "preempted for urgent"),
    ({"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}]},
     {"gone": True}, "node lost", "node lost"),
    ({"phase": "Running", "containerStatuses": state(running={})}, {"gone": True}, "deleted", "by others"),
    ({"phase": "Running", "containerStatuses": terminated(143)}, {"gone": True}, "deleted", "by others"),
])  # fmt: skip
def test_what_others_do_to_a_pod_is_no_failure(
    status: dict[str, Any], how: dict[str, bool], cause: str, words: str
) -> None:
    found = end(observed(**status), **how)
    assert found.cause == cause and words in found.reason
    assert judge(RUNNING, found).kind == "retry" and not judge(RUNNING, found).counts
    assert judge(DRAINING, found).kind == "commanded"


def test_what_we_deleted_ended_by_a_signal() -> None:
    assert end(observed(phase="Running"), gone=True, ours=True) == Exit(signal=9, reason="its pod was deleted")
    found = end(observed(phase="Running", containerStatuses=terminated(0, "Completed")), gone=True, ours=True)
    assert judge(RUNNING, found).kind == "done"


def test_a_pod_that_does_not_run_says_why() -> None:
    unschedulable = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}]
    assert seen(observed(phase="Pending", conditions=unschedulable)).waiting == "unschedulable: 0/3 nodes"
    pull = state(waiting={"reason": "ImagePullBackOff", "message": 'Back-off pulling image "x"'})
    found = seen(observed(phase="Pending", containerStatuses=pull))
    assert (found.waiting, found.begun) == ('ImagePullBackOff: Back-off pulling image "x"', False)
    made = seen(observed(phase="Pending", containerStatuses=state(waiting={"reason": "ContainerCreating"})))
    assert (made.waiting, made.begun) == ("", False)


def test_a_pod_of_others_is_none_of_ours() -> None:
    pod = observed(phase="Running")
    del pod["metadata"]["labels"]["recmesh.dev/attempt"]
    assert read(pod) is None


class Heard:
    def __init__(self) -> None:
        self.ends: list[Pod] = []
        self.jobs: list[str] = []
        self.known = KnownPods(self.ends.append)
        self.known.on_change = self.jobs.append

    @property
    def exit(self) -> Exit | None:
        (pod,) = self.known.of("ads")
        return pod.exit


def running(version: int = 5, uid: str = "u1") -> Object:
    return observed(version, uid, phase="Running", containerStatuses=state(running={}))


def test_news_that_come_late_change_nothing() -> None:
    heard = Heard()
    heard.known.take(observed(7, phase="Succeeded", containerStatuses=terminated(0, "Completed")))
    heard.known.take(running(6))
    heard.known.take(running(8), gone=True)
    assert heard.exit == Exit(code=0)
    assert heard.jobs == ["ads"]


def test_a_list_knows_what_is_gone_and_not_what_came_after_it() -> None:
    heard = Heard()
    heard.known.take(running(5))
    heard.known.take_all([], 4)
    assert heard.exit is None
    heard.known.take_all([], 9)
    assert heard.exit is not None and heard.exit.cause == "deleted"
    heard.known.take_all([], 12)
    assert heard.jobs == ["ads", "ads"]


def test_an_end_with_words_is_told_with_them() -> None:
    heard = Heard()
    heard.known.take(running(5))
    heard.known.take(observed(6, phase="Failed", containerStatuses=terminated(64)))
    heard.known.take(observed(7, phase="Failed", containerStatuses=terminated(64)), gone=True)
    assert heard.exit is None and len(heard.ends) == 1
    heard.known.ended(heard.ends[0], "no such column: clicks")
    assert heard.exit == Exit(code=64, last_line="no such column: clicks")


def test_a_forgotten_job_does_not_come_back_by_late_news_and_its_name_is_free() -> None:
    heard = Heard()
    heard.known.take(observed(5, phase="Succeeded", containerStatuses=terminated(0, "Completed")))
    heard.known.forget("ads")
    heard.known.take(running(6))
    heard.known.take(running(7), gone=True)
    assert heard.known.jobs() == []
    heard.known.take(running(9, uid="u2"))
    assert heard.exit is None


def test_room_is_what_ready_nodes_have_less_what_pods_ask_for() -> None:
    def node(name: str, *, ready: str = "True", **spec: Any) -> Object:
        status = {"conditions": [{"type": "Ready", "status": ready}],
                  "allocatable": {"cpu": "4", "memory": "8Gi", "nvidia.com/gpu": "2"}}  # fmt: skip
        return {"metadata": {"name": name}, "spec": spec, "status": status}

    taint = [{"key": "gpu", "effect": "NoSchedule"}]
    nodes = [node("a"), node("b", ready="False"), node("c", unschedulable=True), node("d", taints=taint)]
    init = [{"resources": {"requests": {"cpu": "2"}}}]
    asks = {"resources": {"requests": {"cpu": "500m", "memory": "1Gi", "nvidia.com/gpu": "1"}}}
    pods: list[Object] = [
        {"spec": {"nodeName": "a", "containers": [asks, {}], "initContainers": init}, "status": {"phase": "Running"}},
        {"spec": {"nodeName": "a", "containers": [asks]}, "status": {"phase": "Succeeded"}},
        {"spec": {"nodeName": "b", "containers": [asks]}}, {"spec": {"containers": [asks]}},
    ]
    found = free(nodes, pods, {"gpu": "nvidia.com/gpu"})
    assert (found.cpu, found.memory_bytes, found.gpus) == (2.0, 7 << 30, {"gpu": 1.0})
    assert (found.node_cpu, found.node_memory_bytes) == (2.0, 7 << 30), "nobody has more of it in one place"
    assert free([], pods, {}).node_cpu == 0.0


def test_pods_need_an_image_and_an_address_that_they_reach() -> None:
    with pytest.raises(InvalidArgument) as raised:
        check(JobmasterSettings.from_env({"RECMESH_JOBMASTER_CLUSTER": "kubernetes"}, "RECMESH_"))
    assert [item.path for item in raised.value.violations] == ["RECMESH_KUBE_IMAGE", "RECMESH_JOBMASTER_RPC"]
    with pytest.raises(InvalidArgument) as raised:
        check(JobmasterSettings.from_env({
            "RECMESH_JOBMASTER_CLUSTER": "kubernetes", "RECMESH_KUBE_IMAGE": "i", "RECMESH_JOBMASTER_RPC": "j:7000",
            "RECMESH_KUBE_STORAGE_CLAIM": "storage", "RECMESH_STORAGE_URI": "s3://bucket",
        }, "RECMESH_"))
    assert [item.path for item in raised.value.violations] == ["RECMESH_STORAGE_URI"]
    env = {"PATH": "/bin", "RECMESH_LOG_LEVEL": "info", "RECMESH_SHM_DIR": "/dev/shm/x", "RECMESH_API_KEY": "k"}
    here = role_environment(env, JobmasterSettings.from_env(env, "RECMESH_"))
    assert here.keys() == {"PATH", "RECMESH_LOG_LEVEL", "RECMESH_TOKEN", "RECMESH_SHM_DIR"}
    env |= {"RECMESH_JOBMASTER_CLUSTER": "kubernetes"}
    assert role_environment(env, JobmasterSettings.from_env(env, "RECMESH_")).keys() == {
        "RECMESH_LOG_LEVEL", "RECMESH_TOKEN",
    }  # fmt: skip
