"""After all that happened to the mesh (files of tests run in the order of their names): what it kept, and its end."""

import time

import pytest

from tests.cluster.mesh import Mesh, in_containers
from tests.support.waiting import until

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


def test_what_was_stored_outlives_the_pods(mesh: Mesh) -> None:
    """After each pod was deleted: streams, and both databases' schemas."""
    streams = mesh.kubectl("exec", "deploy/nats", "--", "ls", "/data/jetstream/$G/streams")
    assert {"recmesh_events", "KV_recmesh_jobs"} & set(streams.split()) or "KV_" in streams
    for name in ("brain", "forecaster"):
        assert f"{name}.sqlite" in mesh.kubectl("exec", f"deploy/{name}", "--", "ls", "/data/db")


def test_deleting_the_namespace_leaves_nothing(mesh: Mesh) -> None:
    """With a job in it, whose object only jobmaster may let go, and jobmaster is deleted, too."""
    assert mesh.get("trainingjobs")["items"]
    began = time.monotonic()
    mesh.cluster.kubectl("delete", "namespace", "recmesh", "--timeout=180s", timeout_s=200)
    print(f"\nnamespace gone after {time.monotonic() - began:.0f} s")
    assert mesh.cluster.get("pods", "-A")["items"] == []
    kinds = mesh.cluster.kubectl("api-resources", "--namespaced", "--verbs=list", "-o", "name").split()
    for kind in kinds:
        found = mesh.cluster.get(kind, "-A")["items"]
        assert not [item for item in found if item["metadata"]["namespace"] == "recmesh"], kind
    until(lambda: not in_containers(), timeout_s=60)
