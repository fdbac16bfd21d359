"""CNs and HNs as pods of a real API server without nodes: what a kubelet does, the test does with real processes."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from recmesh.runtime.errors import Unauthenticated, Unavailable
from recmesh.runtime.kube import PODS, Access, KubeClient, connect
from recmesh.runtime.tls import Tls
from recmesh.serving.settings import ServingSettings
from recmesh.serving.tensors import Tensor
from recmesh.serving.transport import ConnectionLost
from recmesh.serving.transport.endpoints import Endpoint, dial
from services.gateway.config import child_environment
from services.gateway.runtimes.pods import PodSettings, ServingPods, objects
from services.gateway.runtimes.pool import Runtimes
from services.gateway.runtimes.process import Limits
from tests.support import split_models
from tests.support.certificates import certificates
from tests.support.kube import KubeCluster, kube_cluster, tool

pytestmark = [pytest.mark.integration, pytest.mark.asyncio, pytest.mark.long]
TOKEN = "of-this-mesh"
KUBELET = "test.recmesh.dev/kubelet"
"""A finalizer: pods without a node are else gone as soon as they are deleted."""
WAIT_S = 120.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeCluster]:
    if not os.environ.get("KUBECONFIG"):
        tool()
    with kube_cluster(tmp_path_factory.mktemp("kube") / "cluster") as made:
        yield made


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return split_models.torch_model(tmp_path_factory.mktemp("models") / "1", post=True)


class Kubelet:
    """Runs the command of each pod at an address of its own (127.0.x.y), and tells the API server what became of it."""

    def __init__(self, client: KubeClient, namespace: str, *, secret: Path | None = None) -> None:
        """`secret`: the folder of what pods mount at /tls."""
        self._client, self._namespace, self._secret = client, namespace, secret
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._ready: set[str] = set()
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        self._task.cancel()
        for process in self.processes.values():
            process.kill()
            process.wait()

    async def _run(self) -> None:
        while True:
            pods, _ = await self._client.list(PODS, namespace=self._namespace, labels=objects.SELECTOR)
            for pod in pods:
                await self._one(pod)
            await asyncio.sleep(0.2)

    async def _one(self, pod: dict[str, Any]) -> None:
        name, status = pod["metadata"]["name"], pod.get("status") or {}
        process = self.processes.get(name)
        if process is None and "deletionTimestamp" not in pod["metadata"]:
            ip = f"127.0.{os.getpid() % 200 + 1}.{len(self.processes) + 1}"
            container = pod["spec"]["containers"][0]
            command = [sys.executable, *container["command"][1:]]
            command = [part.replace("0.0.0.0", ip) for part in command]
            environment = {item["name"]: item["value"] for item in container["env"] if "value" in item}
            if self._secret is not None:
                [mount] = [each for each in container["volumeMounts"] if each["name"] == "tls"]
                path, secret = f"{mount['mountPath']}/", f"{self._secret}/"
                environment |= {
                    each: value.replace(path, secret, 1) for each, value in environment.items() if "_TLS_" in each
                }
            self.processes[name] = subprocess.Popen(  # noqa: ASYNC220 (it takes a millisecond)
                command, env={**os.environ, **environment, "RECMESH_API_KEY": TOKEN}, stdout=subprocess.DEVNULL
            )
            await self._hold(name, [KUBELET])
            await self._tell(name, {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}]})
        elif process is not None and process.poll() is not None and status.get("phase") not in ("Failed", "Succeeded"):
            code = process.returncode if process.returncode >= 0 else 128 - process.returncode
            ended = {
                "name": objects.CONTAINER, "image": "", "imageID": "", "ready": False, "restartCount": 0,
                "state": {"terminated": {"exitCode": code}},
            }
            phase = "Failed" if code else "Succeeded"
            await self._tell(name, {"phase": phase, "conditions": [], "containerStatuses": [ended]})
        elif process is not None and "deletionTimestamp" in pod["metadata"]:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            else:
                await self._hold(name, [])
        elif process is not None and name not in self._ready and await asyncio.to_thread(_answers, status["podIP"]):
            self._ready.add(name)
            await self._tell(name, {"conditions": [{"type": "Ready", "status": "True"}]})

    async def _hold(self, name: str, finalizers: list[str]) -> None:
        await self._client.patch(PODS, name, {"metadata": {"finalizers": finalizers}}, namespace=self._namespace)

    async def _tell(self, name: str, status: dict[str, Any]) -> None:
        await self._client.patch(PODS, name, {"status": status}, namespace=self._namespace, subresource="status")


def _answers(address: str) -> bool:
    try:
        socket.create_connection((address, objects.HTTP_PORT), timeout=1.0).close()
    except OSError:
        return False
    return True


@pytest_asyncio.fixture
async def client(cluster: KubeCluster) -> AsyncIterator[KubeClient]:
    made = await connect(Access(cluster.kubeconfig), field_manager="test")
    yield made
    await made.close()


async def gateway(
    cluster: KubeCluster, namespace: str, holder: str, *, tls: Tls | None = None
) -> tuple[ServingPods, Runtimes]:
    settings = PodSettings(
        namespace=namespace, holder=holder, images={"cn": "recmesh/cn", "hn": "recmesh/hn", "hn-cuda": "x"},
        grace_s=600, tls_secret="serving-tls" if tls else "", tls_name=tls.server_name if tls else "",
    )  # fmt: skip
    kube = await connect(Access(cluster.kubeconfig), field_manager="recmesh-gateway")
    pods = ServingPods(kube, settings, token=TOKEN, tls=tls)
    await pods.start()
    made = Runtimes(
        environment=child_environment(os.environ), limits=Limits(backoff_s=(0.1,)), log=print, pods=pods
    )
    return pods, made


async def predict(runtimes: Runtimes) -> float:
    inputs = [Tensor.of("x", np.array([0.5], np.float32)), Tensor.of("id", np.array([3], np.int64))]
    tensors, _ = await runtimes.infer("torch", "ctr/1", inputs, ["predictions"], timeout_s=30.0, priority=100)
    return float(tensors[0].array[0])


async def test_a_model_runs_in_pods_that_outlive_their_gateway_and_are_replaced(
    cluster: KubeCluster, client: KubeClient, model: Path
) -> None:
    namespace = cluster.namespace()
    cluster.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    kubelet = Kubelet(client, namespace)
    pods, runtimes = await gateway(cluster, namespace, "gateway-a")
    try:
        await runtimes.load("torch", "ctr/1", model, settings=ServingSettings(), timeout_s=WAIT_S)
        first = await predict(runtimes)
        made = set(pods.pods)
        assert sorted(pod["metadata"]["labels"][objects.KIND] for pod in pods.pods.values()) == ["cn", "hn"]

        # another gateway in its place: the same pods, and not one of them is started again
        await runtimes.stop()
        await pods.stop()
        pods, runtimes = await gateway(cluster, namespace, "gateway-b")
        await runtimes.load("torch", "ctr/1", model, settings=ServingSettings(), timeout_s=WAIT_S)
        assert await predict(runtimes) == first and set(pods.pods) == made
        assert {pod["metadata"]["labels"][objects.HOLDER] for pod in pods.pods.values()} == {"gateway-b"}
        assert all(process.poll() is None for process in kubelet.processes.values())

        # told to go: it serves until another has its place, so every request is answered
        for kind in ("cn", "hn"):
            old = next(name for name, pod in pods.pods.items() if pod["metadata"]["labels"][objects.KIND] == kind)
            await client.delete(PODS, old, namespace=namespace)
            async with asyncio.timeout(WAIT_S):
                while old in pods.pods:
                    assert await predict(runtimes) == first
                    await asyncio.sleep(0.05)
            assert await predict(runtimes) == first
        assert len(kubelet.processes) == len(made) + 2, "who says that it is ready lets its gateway in"

        # killed: another runs the model, and the CN finds it at its new address
        hn = next(name for name, pod in pods.pods.items() if pod["metadata"]["labels"][objects.KIND] == "hn")
        kubelet.processes[hn].kill()
        async with asyncio.timeout(WAIT_S):
            while runtimes.serves("torch", "ctr/1"):  # noqa: ASYNC110 (another process is waited for)
                await asyncio.sleep(0.05)
            while not runtimes.serves("torch", "ctr/1"):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert await predict(runtimes) == first

        # not wanted any more: no pod is left that lives
        await runtimes.unload("torch", "ctr/1")
        async with asyncio.timeout(WAIT_S):
            while any(objects.is_living(pod) for pod in pods.pods.values()):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        await pods.sweep(0.0, unused_s=0.0)
    finally:
        await runtimes.stop()
        await pods.stop()
        await kubelet.stop()


async def test_gateway_cn_and_hn_show_each_other_certificates_and_speak_to_nobody_without(
    cluster: KubeCluster, client: KubeClient, model: Path, tmp_path: Path
) -> None:
    own = certificates(tmp_path / "gateway")
    theirs = certificates(tmp_path / "serving", names=["recmesh-serving"], authority=tmp_path / "gateway")
    for given, name in ((theirs.cert, "tls.crt"), (theirs.key, "tls.key"), (theirs.ca, "ca.crt")):
        assert given is not None
        given.rename(tmp_path / "serving" / name)
    namespace = cluster.namespace()
    cluster.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    kubelet = Kubelet(client, namespace, secret=tmp_path / "serving")
    tls = own.expecting("recmesh-serving")
    pods, runtimes = await gateway(cluster, namespace, "gateway-a", tls=tls)
    try:
        await runtimes.load("torch", "ctr/1", model, settings=ServingSettings(), timeout_s=WAIT_S)
        first = await predict(runtimes)
        for pod in pods.pods.values():
            is_hn = pod["metadata"]["labels"][objects.KIND] == "hn"
            for port in (objects.CONTROL_PORT, *([objects.DATA_PORT] if is_hn else [])):
                endpoint = Endpoint.parse(f"tcp:{pod['status']['podIP']}:{port}")
                await asyncio.to_thread(_is_kept_out, endpoint, None)                    # in clear
                await asyncio.to_thread(_is_kept_out, endpoint, Tls(ca=own.ca, server_name="recmesh-serving"))
                await asyncio.to_thread(_is_kept_out, endpoint, own)                     # it is no service
            told = await asyncio.to_thread(_metrics_of, pod["status"]["podIP"], Tls(ca=own.ca))
            assert f"recmesh_{pod['metadata']['labels'][objects.KIND]}_" in told

        # killed: the CN finds the next one by TLS, too, and the gateway finds both
        hn = next(name for name, pod in pods.pods.items() if pod["metadata"]["labels"][objects.KIND] == "hn")
        kubelet.processes[hn].kill()
        async with asyncio.timeout(WAIT_S):
            while runtimes.serves("torch", "ctr/1"):  # noqa: ASYNC110 (another process is waited for)
                await asyncio.sleep(0.05)
            while not runtimes.serves("torch", "ctr/1"):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert await predict(runtimes) == first
    finally:
        await runtimes.stop()
        await pods.stop()
        await kubelet.stop()


def _metrics_of(ip: str, tls: Tls) -> str:
    """As Prometheus asks for them: by https, expecting the name of pods of models."""
    with (
        socket.create_connection((ip, objects.HTTP_PORT), timeout=30.0) as plain,
        tls.client_context().wrap_socket(plain, server_hostname="recmesh-serving") as secured,
    ):
        secured.sendall(f"GET /metrics HTTP/1.0\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode())
        return b"".join(iter(lambda: secured.recv(65536), b"")).decode()


def _is_kept_out(endpoint: Endpoint, who: Tls | None) -> None:
    """The right token alone is not enough."""
    with pytest.raises((Unauthenticated, Unavailable, ConnectionLost, OSError)):
        transport = dial(endpoint, token=TOKEN, timeout_s=5.0, tls=who)
        message = transport.receive()               # with TLS 1.3 a client hears of its refusal after its own handshake
        transport.close()
        if message is None:
            raise ConnectionLost("it was closed")
