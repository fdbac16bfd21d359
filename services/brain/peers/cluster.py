"""Kubernetes' nodes and pods, followed: what is where, for placement."""

import asyncio
from collections.abc import Callable, Iterable, Sequence, Set
from contextlib import aclosing
from typing import Protocol

from recmesh.runtime.kube import NODES, PODS, KubeClient, Listing, Object, Resource, follow

LIVING = "status.phase!=Succeeded,status.phase!=Failed"


class Watcher(Protocol):
    """Who is told."""

    def take_nodes(self, nodes: Iterable[Object]) -> None:
        """All there are."""
        ...

    def take_node(self, node: Object, *, gone: bool) -> None:
        """One has changed."""
        ...

    def take_pods(self, pods: Iterable[Object]) -> None:
        """All that have not ended."""
        ...

    def take_pod(self, pod: Object, *, gone: bool) -> None:
        """One has changed; one that has ended is gone."""
        ...


class LivingPods:
    """Who is there as of the question's moment, or later: lists without a version are consistent reads."""

    def __init__(self, client: KubeClient, app_labels: Sequence[str]) -> None:
        self._client, self._app_labels = client, app_labels

    async def of_app(self, app: str) -> Set[str]:
        """`app`: namespace/label, by whichever of the labels."""
        namespace, _, name = app.partition("/")
        found = await asyncio.gather(
            *(self._uids(namespace=namespace, labels=f"{label}={name}") for label in self._app_labels)
        )
        return set().union(*found)

    async def on_node(self, node: str) -> Set[str]:
        """Of all namespaces."""
        return await self._uids(fields=f"spec.nodeName={node}")

    async def _uids(self, *, namespace: str = "", labels: str = "", fields: str = "") -> Set[str]:
        selected = f"{LIVING},{fields}" if fields else LIVING
        pods, _ = await self._client.list(PODS, namespace=namespace, labels=labels, fields=selected)
        return {pod["metadata"]["uid"] for pod in pods}


class ClusterWatch:
    """Two watches, of the whole cluster. A start does not wait for the API server, which is asked until it answers."""

    name = "cluster watch"

    def __init__(self, client: KubeClient, told: Watcher) -> None:
        self._client, self._told = client, told
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Begins to follow."""
        told = self._told
        nodes = self._follow(NODES, "", told.take_nodes, lambda thing, gone: told.take_node(thing, gone=gone))
        pods = self._follow(PODS, LIVING, told.take_pods, lambda thing, gone: told.take_pod(thing, gone=gone))
        self._tasks = [asyncio.create_task(nodes), asyncio.create_task(pods)]

    async def wait(self) -> None:
        """Raises when a watch ended by itself: a mistake of ours."""
        await asyncio.gather(*map(asyncio.shield, self._tasks))

    async def stop(self) -> None:
        """Ends both, and the connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.close()

    async def _follow(
        self,
        resource: Resource,
        fields: str,
        all_of: Callable[[Iterable[Object]], None],
        one: Callable[[Object, bool], None],
    ) -> None:
        async with aclosing(follow(self._client, resource, fields=fields)) as news:
            async for item in news:
                if isinstance(item, Listing):
                    all_of(item.objects)
                else:
                    one(item.object, item.kind == "DELETED")
