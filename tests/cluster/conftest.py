"""One cluster with a real node, the images, and the mesh of the dev overlay, for all tests here."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.jobs import FILE, FLIGHTS, TrainedJob, training_job
from tests.cluster.mesh import OVERLAY, SERVICES, STORES, Mesh, memory, volumes
from tests.support.overlays import ROOT, Cluster, node_cluster, why_no_node

IMAGES = "RECMESH_TEST_IMAGES"
"""Files of `infra/images -o`, with colons between them, for machines that build images elsewhere."""
CLUSTER = "RECMESH_TEST_CLUSTER"
"""The folder of a cluster that `kube-cluster up --node` has started and that has the images; it stays up."""
TARGETS = (
    "stores", "ps", "data", "worker", "cn", "hn", "gateway",
    "brain", "jobmaster", "forecaster", "shardsvc", "ckptcache",
)  # fmt: skip
"""Of infra/Dockerfile, those with layers of others first."""


@pytest.fixture(scope="session")
def images() -> list[str]:
    """Made by docker, by name. Skips, saying why, where none can be made."""
    if not shutil.which("docker") or subprocess.run(["docker", "info"], capture_output=True, check=False).returncode:
        pytest.skip(f"no images: docker does not answer, and {IMAGES} names no file of them")
    if not shutil.which("debootstrap"):
        pytest.skip("no images: apt-get install -y --no-install-recommends debootstrap")
    print(flush=True)
    began = time.monotonic()
    done = subprocess.run([ROOT / "infra" / "images", "--base", *TARGETS], timeout=2400, check=False)
    assert done.returncode == 0, "the images were not built"
    print(f"images built after {time.monotonic() - began:.0f} s", flush=True)
    return [f"recmesh/{each}:0.1.0" for each in TARGETS]


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """With the images on its node."""
    if given := os.environ.get(CLUSTER):
        yield Cluster(f"{given}/bin/kubectl", Path(given) / "kubeconfig", Path(given))
        return
    if why := why_no_node():          # before any image is built
        pytest.skip(why)
    files = os.environ.get(IMAGES)
    images: list[str] = [] if files else request.getfixturevalue("images")
    folder = tmp_path_factory.mktemp("cluster")
    with node_cluster(folder / "kube") as made:
        began = time.monotonic()
        for each in (files or "").split(":"):
            if each:
                made.load(Path(each))
        if images:
            made.load_from_docker(images)
        print(f"images on the node after {time.monotonic() - began:.0f} s", flush=True)
        yield made


@pytest.fixture(scope="session")
def mesh(cluster: Cluster) -> Mesh:
    """`kubectl apply -k infra/overlays/dev`, all ready."""
    assert cluster.folder is not None
    volumes(cluster, cluster.folder / "volumes")
    began = time.monotonic()
    cluster.kubectl("apply", "-k", OVERLAY)
    made = Mesh(cluster)
    made.until_ready(*STORES, *SERVICES)
    print(f"\nall ready {time.monotonic() - began:.0f} s after kubectl apply -k")
    print(made.kubectl("get", "pods", "-o", "wide"))
    print(memory())
    return made


@pytest.fixture(scope="session")
def job(mesh: Mesh) -> TrainedJob:
    """Its file is put on the storage as a user would; then the object is applied."""
    mesh.kubectl("exec", "deploy/shardsvc", "--", "mkdir", "-p", "/storage/datasets")
    pod = mesh.pods("shardsvc")[0]["metadata"]["name"]
    mesh.kubectl("cp", str(FLIGHTS / "flights.parquet"), f"{pod}:{FILE}")
    made = TrainedJob(mesh)
    made.apply(training_job())
    print()
    return made
