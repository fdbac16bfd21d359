"""The dev overlay in its namespace, as users see it: kubectl, and Services' own addresses."""

import contextlib
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from base64 import b64decode
from pathlib import Path
from typing import Any

import psutil

from recmesh.client.rest import Client
from tests.support.overlays import ROOT, Cluster
from tests.support.waiting import until

OVERLAY = str(ROOT / "infra" / "overlays" / "dev")
SERVICES = ("brain", "jobmaster", "forecaster", "shardsvc", "ckptcache", "gateway")
STORES = ("nats", "valkey")
CLAIMS = ("storage", "brain", "forecaster", "nats", "valkey")
READY_S = 240.0
KINDS = {
    "pods": "/api/v1", "secrets": "/api/v1", "services": "/api/v1", "events": "/apis/events.k8s.io/v1",
    "trainingjobs": "/apis/recmesh.dev/v1alpha1",
}  # fmt: skip
"""Where the API server has them."""


class Mesh:
    """The overlay in its namespace."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._gateway: tuple[str, ...] = ()

    def kubectl(self, *arguments: str, given: str = "", timeout_s: float = 120) -> str:
        return self.cluster.kubectl("-n", "recmesh", *arguments, given=given, timeout_s=timeout_s)

    def get(self, kind: str, name: str = "", *, labels: str = "") -> Any:
        """An object, or a list: asked of the API server itself, as kubectl takes half a second of CPU to start."""
        path = f"{KINDS[kind]}/namespaces/recmesh/{kind}" + (f"/{name}" if name else "")
        query = f"?labelSelector={urllib.parse.quote(labels)}" if labels else ""
        server = self.cluster.server
        request = urllib.request.Request(server.url + path + query, headers={"Authorization": f"Bearer {server.token}"})
        with urllib.request.urlopen(request, timeout=60, context=server.tls) as answer:
            return json.load(answer)

    def pods(self, name: str) -> list[Any]:
        """Of a service or store, the ones that do not end."""
        found = self.get("pods", labels=f"app.kubernetes.io/name={name}")["items"]
        return [item for item in found if "deletionTimestamp" not in item["metadata"]]

    def ready(self, name: str) -> bool:
        """Whether it has a pod, and all its pods are ready."""
        pods = self.pods(name)
        return bool(pods) and all(
            any(item["type"] == "Ready" and item["status"] == "True" for item in pod["status"].get("conditions", []))
            for pod in pods
        )

    def until_ready(self, *names: str) -> None:
        """All of them; AssertionError shows pods, events and logs."""
        try:
            until(lambda: all(map(self.ready, names)), timeout_s=READY_S, poll_s=1)
        except AssertionError:
            shown = [self.kubectl("get", "pods", "-o", "wide"), self.kubectl("get", "events")]
            shown += [f"{name}: {self.logs(f'app.kubernetes.io/name={name}')}" for name in names]
            raise AssertionError("\n".join(shown)) from None

    def logs(self, labels: str, *, lines: int = 20) -> str:
        """What its pods wrote last."""
        done = self.cluster.try_kubectl("-n", "recmesh", "logs", "-l", labels, f"--tail={lines}", "--prefix")
        return done.stdout + done.stderr

    def secret(self, key: str) -> str:
        return b64decode(self.get("secrets", "recmesh")["data"][key]).decode()

    def address(self, service: str) -> str:
        """Of its HTTP port, through the Service's own address, which this machine reaches."""
        spec = self.get("services", service)["spec"]
        port = next(item["port"] for item in spec["ports"] if item["name"] == "http")
        return f"http://{spec['clusterIP']}:{port}"

    def ask(self, service: str, path: str, *, key: str = "") -> tuple[int, bytes]:
        """(status, body) of a GET."""
        request = urllib.request.Request(self.address(service) + path)
        if key:
            request.add_header("Authorization", f"Bearer {key}")
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()
        except OSError as error:
            return 0, str(error).encode()

    def client(self) -> Client:
        """Of the API, with its key."""
        if not self._gateway:                          # a Service and an immutable Secret: asked for once
            self._gateway = (self.address("gateway"), self.secret("public-api-key"))
        return Client(self._gateway[0], api_key=self._gateway[1])

    def end_pods_of(self, name: str) -> float:
        """Deletes them; seconds until others are there and ready."""
        before = {pod["metadata"]["uid"] for pod in self.pods(name)}
        began = time.monotonic()
        self.kubectl("delete", "pod", "-l", f"app.kubernetes.io/name={name}", "--wait=false")
        until(lambda: self.ready(name) and not before & {pod["metadata"]["uid"] for pod in self.pods(name)},
              timeout_s=READY_S, poll_s=0.5)
        return time.monotonic() - began


def volumes(cluster: Cluster, folder: Path) -> None:
    """What a storage class would make: a volume for each claim, in a folder of the node, which is this machine."""
    there = {item["metadata"]["name"] for item in cluster.get("pv")["items"]}
    for claim in CLAIMS:
        if f"test-{claim}" in there:
            continue
        place = folder / claim
        place.mkdir(parents=True)
        cluster.kubectl("apply", "-f", "-", given=json.dumps({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": f"test-{claim}"},
            "spec": {
                "capacity": {"storage": "20Gi"}, "accessModes": ["ReadWriteOnce"],
                "claimRef": {"namespace": "recmesh", "name": claim}, "local": {"path": str(place)},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                    {"key": "kubernetes.io/hostname", "operator": "In", "values": ["real-0"]},
                ]}]}},
            },
        }))  # fmt: skip


def in_containers() -> list[int]:
    """Processes that run in pods of this machine."""
    found = set()
    for procs in Path("/sys/fs/cgroup").glob("**/kubepods/**/cgroup.procs"):
        with contextlib.suppress(OSError):             # a pod that has just ended
            found |= {int(pid) for pid in procs.read_text().split()}
    return sorted(found)


def memory() -> str:
    """What the larger processes in pods hold."""
    lines = []
    for pid in in_containers():
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            role = process.environ().get("RECMESH_ROLE", "")
            what = f"{' '.join(process.cmdline())[:60]} {role}"
            lines.append((process.memory_info().rss >> 20, what))
    return "\n".join(f"{size:5} MiB  {what}" for size, what in sorted(lines, reverse=True) if size >= 8)
