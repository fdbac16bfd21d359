"""The demo's job as TrainingJob objects, and as kubectl and the API show it."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import orjson
import yaml

from recmesh.runtime.errors import MeshError
from tests.cluster.mesh import Mesh
from tests.support.overlays import ROOT
from tests.support.waiting import until

FLIGHTS = ROOT / "examples" / "flights"
FILE = "/storage/datasets/flights.parquet"
NAME = "late-flights"
ROWS, EPOCHS = 480_000, 28
STARTS_S, LIFE_S = 240.0, 1800.0




def training_job(name: str = NAME, *, epochs: int = EPOCHS, **roles: Any) -> dict[str, Any]:
    """examples/flights/job.yaml as an object; longer, and with sizes for a node of two cores that has the mesh, too.

    `roles`: in place of its own.
    """
    spec = yaml.safe_load((FLIGHTS / "job.yaml").read_text())
    spec["data"]["source"]["files"] = [FILE]
    spec["training"]["epochs"] = epochs
    del spec["name"]
    spec["roles"] = roles or {
        "ps": {"replicas": 1, "cpu": "300m", "memory": "768Mi"},
        "worker": {"replicas": 2, "max": 3, "cpu": "250m", "memory": "1Gi", "memory_max": "2Gi"},
    }
    return {
        "apiVersion": "recmesh.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": name},
        "spec": spec,
    }  # fmt: skip


@dataclass
class TrainedJob:
    """One job."""

    mesh: Mesh
    name: str = NAME
    applied: float = field(default_factory=time.monotonic)

    def apply(self, thing: dict[str, Any]) -> None:
        """The object, by kubectl."""
        self.mesh.kubectl("apply", "-f", "-", given=orjson.dumps(thing).decode())
        self.applied = time.monotonic()

    def patch(self, **fields: Any) -> None:
        """Of the object's specification."""
        self.mesh.kubectl("patch", "tj", self.name, "--type=merge", "-p", orjson.dumps({"spec": fields}).decode())

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.mesh.get("trainingjobs", self.name).get("status") or {}
        return found

    def pods(self, role: str = "worker") -> dict[str, Any]:
        """Those that run and do not end, by name."""
        found = self.mesh.get("pods", labels=f"recmesh.dev/job={self.name},recmesh.dev/role={role}")["items"]
        return {
            item["metadata"]["name"]: item for item in found
            if item["status"].get("phase") == "Running" and "deletionTimestamp" not in item["metadata"]
        }

    def told(self, text: str) -> bool:
        """Whether an Event of the object says so."""
        events = self.mesh.get("events")["items"]
        return any(text in str(item.get("note")) for item in events if item["regarding"].get("name") == self.name)

    def until(self, condition: Callable[[], object], *, timeout_s: float = STARTS_S) -> float:
        """Seconds; AssertionError shows the job and its pods, and at once where it has failed."""
        began = time.monotonic()

        def holds() -> object:
            assert self.status().get("phase") not in ("Failed", "Refused", "Stopped"), "it has failed"
            return condition()

        try:
            until(holds, timeout_s=timeout_s, poll_s=0.5)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.shown()}") from None
        return time.monotonic() - began

    def shown(self) -> str:
        run = self.mesh.cluster.try_kubectl
        asked = (("get", "tj", "-o", "wide"), ("get", "pods", "-o", "wide"), ("describe", "tj", self.name),
                 ("describe", "pods", "-l", f"recmesh.dev/job={self.name}"))
        texts = [(done := run("-n", "recmesh", *each)).stdout + done.stderr for each in asked]
        texts += [self.mesh.logs(f"{label}={name}", lines=60) for label, name in (
            ("recmesh.dev/job", self.name), ("app.kubernetes.io/name", "jobmaster"),
        )]
        return "\n".join(texts)

    def samples(self) -> int:
        """Trained so far, as the API tells it: younger than the object's word, of which there is one in 10 s."""
        try:
            with self.mesh.client() as client:
                return client.job(self.name).progress.samples
        except MeshError:                  # a service is being replaced
            return 0

    def goes_on(self) -> float:
        """Seconds until more is trained than now."""
        began = time.monotonic()
        self.until(lambda: self.samples() > 0)
        before = self.samples()
        self.until(lambda: self.samples() > before or self.status()["phase"] == "Succeeded")
        return time.monotonic() - began

    def say(self, text: str) -> None:
        """A line of the run, with its time since `kubectl apply`."""
        print(f"{time.monotonic() - self.applied:7.1f} s  {text}", flush=True)

    def say_status(self) -> None:
        """As a user looks at it."""
        print(self.mesh.kubectl("get", "tj", "-o", "wide"), flush=True)


