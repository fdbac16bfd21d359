"""TrainingJob objects of a Kubernetes cluster."""

import socket
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from typing import Any, Protocol

from recmesh.crd.kinds import FINALIZER
from recmesh.crd.objects import API_VERSION
from recmesh.runtime.errors import AlreadyExists, InvalidArgument, MeshError, NotFound, Violation
from recmesh.runtime.kube import EVENTS, NAMESPACES, Change, KubeClient, Listing, follow, recmesh_resource
from services.jobmaster.domain.job import ObjectRef
from services.jobmaster.domain.objects import Told

Object = dict[str, Any]
JOBS = recmesh_resource("trainingjobs", "TrainingJob")
CONTROLLER = "recmesh.dev/jobmaster"
_ENDING_S = 5.0
"""Of a question that is asked while the process ends."""


class Objects(Protocol):
    """What jobmaster asks of the API server."""

    def follow(self) -> AsyncIterator[Listing | Change]:
        """All objects, then each that changes; for good."""
        ...

    async def get(self, ref: ObjectRef) -> Object | None:
        """As it is now; None when it is gone, or another has its name."""
        ...

    async def find(self, namespace: str, name: str) -> Object | None:
        """Whichever has the name."""
        ...

    async def create(self, body: Object) -> Object:
        """AlreadyExists; InvalidArgument names fields as the specification does."""
        ...

    async def set_fields(self, ref: ObjectRef, fields: Mapping[str, Any]) -> None:
        """Changes fields of `spec`, those of mappings one by one; None takes one away. NotFound."""
        ...

    async def tell_status(self, ref: ObjectRef, status: Object) -> Object:
        """Takes the place of what was told before. NotFound."""
        ...

    async def hold(self, thing: Object, *, held: bool) -> Object:
        """With the finalizer, or without; Aborted when the object was changed since it was read. NotFound."""
        ...

    async def delete(self, ref: ObjectRef) -> None:
        """Asks for its end; nothing when it is gone."""
        ...

    async def tell(self, ref: ObjectRef, told: Told) -> None:
        """An Event of the object; once for each."""
        ...

    async def is_ending(self, namespace: str) -> bool:
        """Whether the namespace is being deleted; False where nobody says so."""
        ...


class KubernetesObjects:
    """In one namespace, or in all."""

    def __init__(self, client: KubeClient, *, namespace: str) -> None:
        """namespace: empty for all."""
        self._client, self._namespace = client, namespace

    def follow(self) -> AsyncIterator[Listing | Change]:
        """See Objects."""
        return follow(self._client, JOBS, namespace=self._namespace)

    async def get(self, ref: ObjectRef) -> Object | None:
        """See Objects."""
        found = await self.find(ref.namespace, ref.name)
        return found if found is not None and found["metadata"]["uid"] == ref.uid else None

    async def find(self, namespace: str, name: str) -> Object | None:
        """See Objects."""
        try:
            return await self._client.get(JOBS, name, namespace=namespace)
        except NotFound:
            return None

    async def create(self, body: Object) -> Object:
        """See Objects."""
        try:
            return await self._client.create(JOBS, body, namespace=body["metadata"]["namespace"])
        except InvalidArgument as error:
            raise InvalidArgument(
                f"the TrainingJob has {len(error.violations)} wrong field(s)" if error.violations else error.message,
                reason=error.reason, violations=[_as_submitted(item) for item in error.violations],
            ) from error

    async def set_fields(self, ref: ObjectRef, fields: Mapping[str, Any]) -> None:
        """See Objects."""
        body = {"metadata": {"uid": ref.uid}, "spec": dict(fields)}
        await self._client.patch(JOBS, ref.name, body, namespace=ref.namespace)

    async def tell_status(self, ref: ObjectRef, status: Object) -> Object:
        """See Objects."""
        body = {
            "apiVersion": API_VERSION, "kind": "TrainingJob", "metadata": {"name": ref.name, "uid": ref.uid},
            "status": status,
        }
        return await self._client.apply(JOBS, body, namespace=ref.namespace, subresource="status")

    async def hold(self, thing: Object, *, held: bool) -> Object:
        """See Objects."""
        metadata = thing["metadata"]
        others = [name for name in metadata.get("finalizers", []) if name != FINALIZER]
        body = {"metadata": {
            "resourceVersion": metadata["resourceVersion"], "uid": metadata["uid"],
            "finalizers": [*others, FINALIZER] if held else others,
        }}
        return await self._client.patch(JOBS, metadata["name"], body, namespace=metadata["namespace"])

    async def delete(self, ref: ObjectRef) -> None:
        """See Objects."""
        try:
            await self._client.delete(JOBS, ref.name, namespace=ref.namespace, uid=ref.uid)
        except NotFound:
            pass

    async def tell(self, ref: ObjectRef, told: Told) -> None:
        """See Objects."""
        at = datetime.fromtimestamp(told.at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        body = {
            "apiVersion": EVENTS.api_version, "kind": EVENTS.kind,
            "metadata": {"name": f"{ref.name[:200]}.{told.name_suffix}", "namespace": ref.namespace},
            "eventTime": at, "reportingController": CONTROLLER, "reportingInstance": socket.gethostname()[:128],
            "action": told.reason[:128], "reason": told.reason[:128], "note": told.note,
            "type": "Warning" if told.is_warning else "Normal",
            "regarding": {
                "apiVersion": API_VERSION, "kind": "TrainingJob", "name": ref.name, "namespace": ref.namespace,
                "uid": ref.uid,
            },
        }
        try:
            await self._client.create(EVENTS, body, namespace=ref.namespace)
        except AlreadyExists:
            pass

    async def is_ending(self, namespace: str) -> bool:
        """See Objects."""
        try:
            found = await self._client.get(NAMESPACES, namespace, timeout_s=_ENDING_S)
        except MeshError:
            return False
        return "deletionTimestamp" in found["metadata"]


def _as_submitted(item: Violation) -> Violation:
    return Violation(item.path.removeprefix("spec.").replace("metadata.name", "name"), item.reason)
