"""TrainingJob objects of a Kubernetes cluster, and those beside them."""

from collections.abc import Mapping
from typing import Any, Protocol

from recmesh.crd.kinds import DATASET_FINALIZER, FINALIZER
from recmesh.crd.objects import API_VERSION
from recmesh.crd.telling import Ref
from recmesh.crd.things import KubernetesThings, Object, Things
from recmesh.runtime.errors import InvalidArgument, NotFound, Violation
from recmesh.runtime.kube import KubeClient, recmesh_resource

__all__ = ["CONTROLLER", "JOBS", "KubernetesMetrics", "KubernetesObjects", "Object", "Objects", "datasets"]

JOBS = recmesh_resource("trainingjobs", "TrainingJob")
METRICS = recmesh_resource("jobmetrics", "JobMetrics")
CONTROLLER = "recmesh.dev/jobmaster"


class Objects(Things, Protocol):
    """What jobmaster asks of the API server."""

    async def create(self, body: Object) -> Object:
        """AlreadyExists; InvalidArgument names fields as the specification does."""
        ...

    async def set_fields(self, ref: Ref, fields: Mapping[str, Any]) -> None:
        """Changes fields of `spec`, those of mappings one by one; None takes one away. NotFound."""
        ...

    async def delete(self, ref: Ref) -> None:
        """Asks for its end; nothing when it is gone."""
        ...


class KubernetesObjects(KubernetesThings):
    """In one namespace, or in all."""

    def __init__(self, client: KubeClient, *, namespace: str) -> None:
        """namespace: empty for all."""
        super().__init__(client, JOBS, namespace=namespace, finalizer=FINALIZER, controller=CONTROLLER)

    async def create(self, body: Object) -> Object:
        """See Objects."""
        try:
            return await self.client.create(JOBS, body, namespace=body["metadata"]["namespace"])
        except InvalidArgument as error:
            raise InvalidArgument(
                f"the TrainingJob has {len(error.violations)} wrong field(s)" if error.violations else error.message,
                reason=error.reason, violations=[_as_submitted(item) for item in error.violations],
            ) from error

    async def set_fields(self, ref: Ref, fields: Mapping[str, Any]) -> None:
        """See Objects."""
        body = {"metadata": {"uid": ref.uid}, "spec": dict(fields)}
        await self.client.patch(JOBS, ref.name, body, namespace=ref.namespace)

    async def delete(self, ref: Ref) -> None:
        """See Objects."""
        try:
            await self.client.delete(JOBS, ref.name, namespace=ref.namespace, uid=ref.uid)
        except NotFound:
            pass


def datasets(client: KubeClient, *, namespace: str) -> Things:
    """TrainingDataset objects. namespace: empty for all."""
    resource = recmesh_resource("trainingdatasets", "TrainingDataset")
    return KubernetesThings(
        client, resource, namespace=namespace, finalizer=DATASET_FINALIZER, controller=CONTROLLER
    )


class KubernetesMetrics:
    """JobMetrics objects."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client

    async def make(self, thing: Object) -> None:
        """See app.jobmetrics."""
        await self._client.apply(METRICS, thing, namespace=thing["metadata"]["namespace"])

    async def tell(self, ref: Ref, status: Object) -> None:
        """See app.jobmetrics."""
        body = {
            "apiVersion": API_VERSION, "kind": METRICS.kind, "metadata": {"name": ref.name}, "status": status,
        }
        await self._client.apply(METRICS, body, namespace=ref.namespace, subresource="status")


def _as_submitted(item: Violation) -> Violation:
    return Violation(item.path.removeprefix("spec.").replace("metadata.name", "name"), item.reason)
