"""What needs no API server of the layer over Kubernetes' client."""

import orjson
import pytest

from recmesh.runtime.bucket import Bucket
from recmesh.runtime.errors import (
    Aborted,
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    MeshError,
    PermissionDenied,
    ResourceExhausted,
    Unavailable,
    Violation,
)
from recmesh.runtime.kube import NODES, PODS, recmesh_resource
from recmesh.runtime.kube.errors import EXPIRED, error_of


def test_paths_lead_to_one_object_or_to_all() -> None:
    assert PODS.path() == "/api/v1/pods"
    assert PODS.path("ads", "a b", "resize") == "/api/v1/namespaces/ads/pods/a%20b/resize"
    assert NODES.path("ads", "n1") == "/api/v1/nodes/n1"
    jobs = recmesh_resource("trainingjobs", "TrainingJob")
    assert jobs.path("ads", "ctr", "scale") == "/apis/recmesh.dev/v1alpha1/namespaces/ads/trainingjobs/ctr/scale"
    assert (jobs.api_version, PODS.api_version) == ("recmesh.dev/v1alpha1", "v1")


def test_a_burst_goes_at_once_and_the_rest_at_the_rate() -> None:
    bucket = Bucket(per_s=10.0, burst=2.0)
    waits = [bucket.take(100.0, patience_s=1.0) for _ in range(4)]
    assert waits == pytest.approx([0.0, 0.0, 0.1, 0.2])
    assert bucket.take(100.3, patience_s=1.0) == pytest.approx(0.0)       # those two, and one more, have come
    assert bucket.take(1000.0, patience_s=1.0) == 0.0
    assert bucket.take(1000.0, patience_s=1.0) == 0.0
    assert bucket.take(1000.0, patience_s=1.0) == pytest.approx(0.1), "no more than a burst is saved up"


def test_who_cannot_wait_takes_nothing() -> None:
    bucket = Bucket(per_s=1.0, burst=1.0)
    assert bucket.take(0.0, patience_s=0.0) == 0.0
    assert bucket.take(0.0, patience_s=0.5) is None
    assert bucket.take(0.0, patience_s=1.0) == pytest.approx(1.0)
    with pytest.raises(ValueError):
        Bucket(per_s=0.0, burst=1.0)


@pytest.mark.parametrize(("code", "reason", "message", "kind"), [
    (409, "AlreadyExists", 'pods "a" already exists', AlreadyExists),
    (409, "Conflict", "the object has been modified", Aborted),
    (403, "Forbidden", 'pods "a" is forbidden: exceeded quota: small', ResourceExhausted),
    (403, "Forbidden", "cannot list resource", PermissionDenied),
    (422, "Invalid", "Pod is invalid", InvalidArgument),
    (429, "TooManyRequests", "slow down", Unavailable),
    (500, "InternalError", "failed calling webhook", Unavailable),
    (418, "", "", FailedPrecondition),
])  # fmt: skip
def test_a_refusal_is_the_callers_or_the_servers(code: int, reason: str, message: str, kind: type[MeshError]) -> None:
    made = error_of(code, orjson.dumps({"kind": "Status", "reason": reason, "message": message}), doing="create pods a")
    assert type(made) is kind
    assert made.message.startswith("Kubernetes: create pods a: ") and message in made.message


def test_fields_are_named_and_an_answer_that_is_no_status_is_shown() -> None:
    causes = [{"field": "spec.x", "message": "must be y"}]
    made = error_of(422, orjson.dumps({"message": "wrong", "details": {"causes": causes}}), doing="create")
    assert made.violations == (Violation("spec.x", "must be y"),)
    assert error_of(410, b"{}", doing="watch").reason == EXPIRED
    assert "upstream is away" in error_of(502, b"upstream is away\n", doing="get").message
