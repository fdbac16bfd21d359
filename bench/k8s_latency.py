"""From `kubectl apply` of a TrainingJob to pods and to the first step, from a change to its effect, on real nodes.

The mesh is the dev overlay (docs/KUBERNETES.md) of the cluster that KUBECONFIG names, as its users have it: objects
are changed by kubectl, and what became of them is read from pods and from the API. Nothing of it is made or removed
here but jobs of the rounds, their file, and a second jobmaster: `takeover_s` is from the end of one's pod, by force and
without notice, until the other one has carried out a change of every object.
"""

import contextlib
import json
import os
import shutil
import statistics
import subprocess
import time
import uuid
from base64 import b64decode
from collections.abc import Callable, Iterator
from typing import Any

import yaml

from bench.figures import Result
from bench.mesh import ROOT, say
from recmesh.client.rest import Client
from recmesh.client.views import Job

FLIGHTS = ROOT / "examples" / "flights"
FILE = "/storage/datasets/flights.parquet"
ROUNDS, QUICK_ROUNDS = 5, 1
LONG_S = 300.0
POLL_S = 0.1
SIZES = ("300m", "350m")
SUSPENDED = 12
"""Jobs of the takeover: by hashed name, so that both jobmasters have some."""
SHARED_S = 15.0
"""From a jobmaster's start until both hold half of the buckets: leases of 6 s, and some looks."""


def run(*, quick: bool) -> Result:
    """Medians over rounds, each of a job of its own; `restarts_by_resize` is of all, `takeover_s` the longest."""
    rounds = [Round().measured() for _ in range(QUICK_ROUNDS if quick else ROUNDS)]
    figures = {
        name: statistics.median(each[name] for each in rounds) for name in rounds[0] if name != "restarts_by_resize"
    }
    figures["restarts_by_resize"] = sum(each["restarts_by_resize"] for each in rounds)
    with two_jobmasters():
        takes = takeovers(len(rounds))
    figures |= {"takeover_s": max(takes), "takeover_p50_s": statistics.median(takes)}
    nodes = json.loads(kubectl("get", "nodes", "-o", "json"))["items"]
    return Result("k8s_latency", figures, {
        "rounds": len(rounds), "nodes": len(nodes), "kubelet": nodes[0]["status"]["nodeInfo"]["kubeletVersion"],
        "job": "1 parameter server, 2 workers, then 3; torch_dcn_v2; images on the node",
        "takeover": f"2 jobmasters, {SUSPENDED} suspended jobs, pod deleted by force",
        "quick": f"{QUICK_ROUNDS} round instead of {ROUNDS}" if quick else "",
    })  # fmt: skip


def kubectl(*arguments: str, given: str = "") -> str:
    """In the mesh's namespace; RuntimeError has kubectl's own words."""
    done = subprocess.run([*_kubectl(), *arguments], input=given, capture_output=True, text=True, timeout=120,
                          check=False)  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"kubectl {' '.join(arguments[:3])}: {done.stderr.strip()}")
    return done.stdout


@contextlib.contextmanager
def kubectl_lines(*arguments: str) -> Iterator[Iterator[str]]:
    """What it writes, as it comes; ended with the block."""
    process = subprocess.Popen([*_kubectl(), *arguments], stdout=subprocess.PIPE, text=True)
    try:
        yield iter(process.stdout or ())
    finally:
        process.kill()
        process.wait()


def _kubectl() -> list[str]:
    program = os.environ.get("KUBECTL") or shutil.which("kubectl")
    if program is None or not os.environ.get("KUBECONFIG"):
        raise RuntimeError("give KUBECONFIG (and KUBECTL) of a cluster that has the dev overlay")
    return [program, "-n", "recmesh"]


def since(began: float, condition: Callable[[], object]) -> float:
    """Seconds from `began` until it holds. TimeoutError."""
    while not condition():
        if time.monotonic() - began > LONG_S:
            raise TimeoutError(f"not within {LONG_S:g} s: {condition}")
        time.sleep(POLL_S)
    return time.monotonic() - began


@contextlib.contextmanager
def two_jobmasters() -> Iterator[None]:
    """Within the block; as many as before after it."""
    before = json.loads(kubectl("get", "deploy/jobmaster", "-o", "json"))["spec"]["replicas"]
    kubectl("scale", "deploy/jobmaster", "--replicas=2")
    try:
        since(time.monotonic(), lambda: len(jobmasters()) == 2)
        yield
    finally:
        kubectl("scale", "deploy/jobmaster", f"--replicas={before}")


def jobmasters() -> list[str]:
    """Names of those that are ready and stay."""
    found = json.loads(kubectl("get", "pods", "-l", "app.kubernetes.io/name=jobmaster", "-o", "json"))["items"]
    return [
        item["metadata"]["name"] for item in found if "deletionTimestamp" not in item["metadata"] and any(
            each["type"] == "Ready" and each["status"] == "True" for each in item["status"].get("conditions", [])
        )
    ]


def takeovers(rounds: int) -> list[float]:
    """Seconds of each round."""
    put_file()
    names = [f"still-{number}" for number in range(SUSPENDED)]
    things = [training_job(name, suspend=True) for name in names]
    kubectl("apply", "-f", "-", given=json.dumps({"apiVersion": "v1", "kind": "List", "items": things}))

    def objects() -> list[Any]:
        return [each for each in json.loads(kubectl("get", "tj", "-o", "json"))["items"]
                if each["metadata"]["name"] in names]  # fmt: skip

    def carried_out() -> bool:
        return all(each.get("status", {}).get("observedGeneration") == each["metadata"]["generation"]
                   for each in objects())  # fmt: skip

    found = []
    try:
        since(time.monotonic(), lambda: all(each.get("status", {}).get("phase") == "Suspended" for each in objects()))
        for number in range(rounds):
            since(time.monotonic(), lambda: len(jobmasters()) == 2)
            time.sleep(SHARED_S)
            victim = jobmasters()[number % 2]
            began = time.monotonic()
            kubectl("delete", "pod", victim, "--grace-period=0", "--force", "--wait=false")
            change = json.dumps({"spec": {"roles": {"worker": {"replicas": 1 + number % 2}}}})
            kubectl("patch", "tj", *names, "--type=merge", "-p", change)
            found.append(since(began, carried_out))
            say(f"{victim} is no more: all objects reconciled after {found[-1]:.1f} s")
    finally:
        kubectl("delete", "tj", *names, "--timeout=100s")
    return found


def put_file() -> None:
    """The rows, where all jobs find them."""
    pod = json.loads(kubectl("get", "pods", "-l", "app.kubernetes.io/name=shardsvc", "-o", "json"))["items"][0]
    name = pod["metadata"]["name"]
    kubectl("exec", name, "--", "mkdir", "-p", FILE.rpartition("/")[0])
    kubectl("cp", str(FLIGHTS / "flights.parquet"), f"{name}:{FILE}")


def training_job(name: str, **fields: Any) -> dict[str, Any]:
    """The object of one."""
    spec = yaml.safe_load((FLIGHTS / "job.yaml").read_text())
    del spec["name"], spec["evaluation"]
    spec["data"]["source"]["files"] = [FILE]
    spec["training"]["epochs"] = 50
    spec["roles"] = {
        "ps": {"replicas": 1, "cpu": "300m", "memory": "768Mi"},
        "worker": {"replicas": 2, "max": 3, "cpu": SIZES[0], "memory": "1Gi"},
    }
    return {
        "apiVersion": "recmesh.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": name},
        "spec": spec | fields,
    }  # fmt: skip


class Round:
    """One job from its object's beginning to its end."""

    def __init__(self) -> None:
        self._name = f"latency-{uuid.uuid4().hex[:6]}"
        service = json.loads(kubectl("get", "service", "gateway", "-o", "json"))["spec"]
        key = json.loads(kubectl("get", "secret", "recmesh", "-o", "json"))["data"]["public-api-key"]
        self._client = Client(f"http://{service['clusterIP']}:8000", api_key=b64decode(key).decode())

    def measured(self) -> dict[str, float]:
        """Its figures; the object is deleted in any case."""
        put_file()
        began = time.monotonic()
        kubectl("apply", "-f", "-", given=json.dumps(training_job(self._name)))
        try:
            found = {"apply_to_pods_s": since(began, lambda: len(self._running()) == 3)}
            found["apply_to_first_step_s"] = since(began, lambda: self._job().progress.samples)
            since(began, lambda: self._trains() == 2)
            began = time.monotonic()
            kubectl("scale", f"tj/{self._name}", "--replicas=3")
            found["scale_to_pod_s"] = since(began, lambda: len(self._running("worker")) == 3)
            found["scale_to_effect_s"] = since(began, lambda: self._trains() == 3)
            before = set(self._running("worker"))
            began = time.monotonic()
            kubectl("patch", "tj", self._name, "--type=merge", "-p",
                    json.dumps({"spec": {"roles": {"worker": {"cpu": SIZES[1]}}}}))
            found["resize_in_place_s"] = since(began, lambda: self._limits() == [SIZES[1]] * 3)
            pods = self._running("worker")
            restarts = sum(each["status"]["containerStatuses"][0]["restartCount"] for each in pods.values())
            found["restarts_by_resize"] = float(restarts + len(before - set(pods)))
        finally:
            kubectl("delete", "tj", self._name, "--timeout=100s")
            self._client.close()
        say(", ".join(f"{name} {value:.1f}" for name, value in found.items()))
        return found

    def _running(self, role: str = "") -> dict[str, Any]:
        labels = f"recmesh.dev/job={self._name}" + (f",recmesh.dev/role={role}" if role else "")
        found = json.loads(kubectl("get", "pods", "-l", labels, "-o", "json"))["items"]
        return {item["metadata"]["uid"]: item for item in found if item["status"].get("phase") == "Running"}

    def _limits(self) -> list[str]:
        """Of CPU, as the kubelet has set them."""
        told = [each["status"]["containerStatuses"][0] for each in self._running("worker").values()]
        return [each.get("resources", {}).get("limits", {}).get("cpu", "") for each in told]

    def _job(self) -> Job:
        return self._client.job(self._name)

    def _trains(self) -> int:
        """Workers that have trained something."""
        return sum(each.role == "worker" and each.samples > 0 for each in self._job().roles)
