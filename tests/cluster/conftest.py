"""One cluster with a real node, the images, and the mesh of the dev overlay, for all tests here."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.mesh import OVERLAY, SERVICES, STORES, Mesh, memory, volumes
from tests.support.overlays import ROOT, TOOLS, Cluster, node_cluster

IMAGES = "RECMESH_TEST_IMAGES"
"""Files of `infra/images -o`, with colons between them, for machines that build images elsewhere."""
CLUSTER = "RECMESH_TEST_CLUSTER"
"""The folder of a cluster that `kube-cluster up --node` has started and that has the images; it stays up."""
TARGETS = ("brain", "jobmaster", "forecaster", "shardsvc", "ckptcache", "gateway", "stores", "worker")


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The images, as files. Skips, saying why, where none can be made."""
    if not (TOOLS / "kube-cluster").exists():
        pytest.skip(f"no Kubernetes: {TOOLS}/kube-cluster is not there")
    if given := os.environ.get(IMAGES):
        return [Path(each) for each in given.split(":")]
    has_docker = shutil.which("docker") is not None
    if not has_docker or subprocess.run(["docker", "info"], capture_output=True, check=False).returncode:
        pytest.skip(f"no images: docker does not answer, and {IMAGES} names no file of them")
    made = tmp_path_factory.mktemp("images") / "recmesh.tar"
    done = subprocess.run(
        [ROOT / "infra" / "images", "-o", made, "--base", *TARGETS], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return [made]


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """With the images on its node."""
    if given := os.environ.get(CLUSTER):
        yield Cluster(f"{given}/bin/kubectl", Path(given) / "kubeconfig", Path(given))
        return
    images: list[Path] = request.getfixturevalue("images")
    folder = tmp_path_factory.mktemp("cluster")
    with node_cluster(folder / "kube") as made:
        for each in images:
            made.load(each)
        yield made


@pytest.fixture(scope="session")
def mesh(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Mesh:
    """`kubectl apply -k infra/overlays/dev`, all ready."""
    volumes(cluster, tmp_path_factory.mktemp("volumes"))
    began = time.monotonic()
    cluster.kubectl("apply", "-k", OVERLAY)
    made = Mesh(cluster)
    made.until_ready(*STORES, *SERVICES)
    print(f"\nall ready {time.monotonic() - began:.0f} s after kubectl apply -k")
    print(made.kubectl("get", "pods", "-o", "wide"))
    print(memory())
    return made
