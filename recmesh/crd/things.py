"""Objects of one of the mesh's kinds, as whoever follows them asks the API server."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterable
from datetime import UTC, datetime
from typing import Any, Protocol

from recmesh.crd.objects import API_VERSION
from recmesh.crd.telling import Ref, Told
from recmesh.runtime.errors import Aborted, AlreadyExists, MeshError, NotFound
from recmesh.runtime.kube import EVENTS, NAMESPACES, Change, KubeClient, Listing, Resource, follow
from recmesh.runtime.telemetry import get_logger

logger = get_logger(__name__)

Object = dict[str, Any]
_ENDING_S = 5.0
"""Of a question that is asked while the process ends."""
LET_GO_TRIES = 5
"""An object that changes each time between look and touch is left; nobody else changes one at that time."""


class Things(Protocol):
    """What is asked of the API server about one kind."""

    def follow(self) -> AsyncIterator[Listing | Change]:
        """All objects, then each that changes; for good."""
        ...

    async def get(self, ref: Ref) -> Object | None:
        """As it is now; None when it is gone, or another has its name."""
        ...

    async def find(self, namespace: str, name: str) -> Object | None:
        """Whichever has the name."""
        ...

    async def tell_status(self, ref: Ref, status: Object) -> Object:
        """Takes the place of what was told before. NotFound."""
        ...

    async def hold(self, thing: Object, *, held: bool) -> Object:
        """With the finalizer, or without; Aborted when the object was changed since it was read. NotFound."""
        ...

    async def tell(self, ref: Ref, told: Told) -> None:
        """An Event of the object; once for each."""
        ...

    async def is_ending(self, namespace: str) -> bool:
        """Whether the namespace is being deleted; False where nobody says so."""
        ...


class KubernetesThings:
    """In one namespace, or in all."""

    def __init__(
        self, client: KubeClient, resource: Resource, *, namespace: str, finalizer: str, controller: str
    ) -> None:
        """namespace: empty for all. controller: who tells Events."""
        self.client, self.resource, self.finalizer = client, resource, finalizer
        self._namespace, self._controller = namespace, controller

    def follow(self) -> AsyncIterator[Listing | Change]:
        """See Things."""
        return follow(self.client, self.resource, namespace=self._namespace)

    async def get(self, ref: Ref) -> Object | None:
        """See Things."""
        found = await self.find(ref.namespace, ref.name)
        return found if found is not None and found["metadata"]["uid"] == ref.uid else None

    async def find(self, namespace: str, name: str) -> Object | None:
        """See Things."""
        try:
            return await self.client.get(self.resource, name, namespace=namespace)
        except NotFound:
            return None

    async def tell_status(self, ref: Ref, status: Object) -> Object:
        """See Things."""
        body = {
            "apiVersion": API_VERSION, "kind": self.resource.kind, "metadata": {"name": ref.name, "uid": ref.uid},
            "status": status,
        }
        return await self.client.apply(self.resource, body, namespace=ref.namespace, subresource="status")

    async def hold(self, thing: Object, *, held: bool) -> Object:
        """See Things."""
        metadata = thing["metadata"]
        others = [name for name in metadata.get("finalizers", []) if name != self.finalizer]
        body = {"metadata": {
            "resourceVersion": metadata["resourceVersion"], "uid": metadata["uid"],
            "finalizers": [*others, self.finalizer] if held else others,
        }}
        return await self.client.patch(self.resource, metadata["name"], body, namespace=metadata["namespace"])

    async def tell(self, ref: Ref, told: Told) -> None:
        """See Things."""
        at = datetime.fromtimestamp(told.at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        body = {
            "apiVersion": EVENTS.api_version, "kind": EVENTS.kind,
            "metadata": {"name": f"{ref.name[:200]}.{told.name_suffix}", "namespace": ref.namespace},
            "eventTime": at, "reportingController": self._controller, "reportingInstance": socket.gethostname()[:128],
            "action": told.reason[:128], "reason": told.reason[:128], "note": told.note,
            "type": "Warning" if told.is_warning else "Normal",
            "regarding": {
                "apiVersion": API_VERSION, "kind": self.resource.kind, "name": ref.name, "namespace": ref.namespace,
                "uid": ref.uid,
            },
        }
        try:
            await self.client.create(EVENTS, body, namespace=ref.namespace)
        except AlreadyExists:
            pass

    async def is_ending(self, namespace: str) -> bool:
        """See Things."""
        try:
            found = await self.client.get(NAMESPACES, namespace, timeout_s=_ENDING_S)
        except MeshError:
            return False
        return "deletionTimestamp" in found["metadata"]


class ApiServer:
    """A component that ends the connections of a client, after those that come behind it."""

    name = "api server of objects"

    def __init__(self, client: KubeClient) -> None:
        self._client = client

    async def start(self) -> None:
        """Connections are made when they are first used."""

    async def stop(self) -> None:
        """Closes them all."""
        await self._client.close()


def is_held(thing: Object, finalizer: str) -> bool:
    """Whether the object has the finalizer."""
    return finalizer in thing["metadata"].get("finalizers", [])


async def go_with_namespace(things: Things, known: Iterable[Object], *, namespace: str, finalizer: str) -> None:
    """Of a process that ends: where its own namespace is being deleted, objects there lose the finalizer.

    Kubernetes (1.33) ends all pods of a namespace before it deletes anything else, so nobody comes after who could take
    it away; and what it is there for goes with the namespace.
    """
    here = [thing["metadata"]["name"] for thing in known if thing["metadata"]["namespace"] == namespace]
    if not here or not await things.is_ending(namespace):
        return
    logger.info("namespace %s is being deleted: %d object(s) are let go with it", namespace, len(here))
    await asyncio.gather(*(_let_go_now(things, namespace, name, finalizer) for name in here))


async def _let_go_now(things: Things, namespace: str, name: str, finalizer: str) -> None:
    for _ in range(LET_GO_TRIES):
        try:
            thing = await things.find(namespace, name)
            if thing is not None and is_held(thing, finalizer):
                await things.hold(thing, held=False)
            return
        except (Aborted, NotFound):
            continue        # its status was told meanwhile, or it is gone
        except MeshError as error:
            logger.warning("object %s/%s keeps its finalizer: %s", namespace, name, error)
            return
