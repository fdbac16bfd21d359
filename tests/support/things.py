"""An API server in memory, for objects of one kind."""

import asyncio
import copy
from collections.abc import AsyncIterator, Mapping
from typing import Any

from recmesh.crd.telling import Ref, ThingRef, Told
from recmesh.crd.things import Object
from recmesh.runtime.errors import Aborted, NotFound, Unavailable
from recmesh.runtime.kube import Change, Listing

NAMESPACE = "ads"
CREATED = "2026-11-23T11:00:00Z"
"""Of objects that say nothing else."""


class FakeThings:
    """Objects by (namespace, name), as an API server keeps them. `away` makes every call fail."""

    def __init__(self, finalizer: str) -> None:
        self.finalizer = finalizer
        self.things: dict[tuple[str, str], Object] = {}
        self.events: list[Told] = []
        self.statuses = 0
        """Calls that told a status."""
        self.away = False
        self.ending: set[str] = set()
        """Namespaces that are being deleted."""
        self._version = 0
        self._followers: list[asyncio.Queue[Change]] = []

    def put(self, name: str, spec: Mapping[str, Any], *, namespace: str = NAMESPACE, **metadata: Any) -> Object:
        """What a user applies: a new object, or another specification of one that is there."""
        key = (namespace, name)
        old = self.things.get(key)
        thing: Object = copy.deepcopy(old) if old else {"metadata": {"namespace": namespace, "name": name}}
        self._version += 1
        thing["spec"] = copy.deepcopy(dict(spec))
        thing["metadata"] = {
            "uid": f"uid-{self._version}", "creationTimestamp": CREATED, **thing["metadata"], **metadata,
            "generation": thing["metadata"].get("generation", 0) + 1,
        }
        return self._keep(key, thing, "MODIFIED" if old else "ADDED")

    def ask_to_delete(self, name: str, *, namespace: str = NAMESPACE) -> None:
        """`kubectl delete`."""
        thing = copy.deepcopy(self.things[namespace, name])
        thing["metadata"]["deletionTimestamp"] = "2026-11-23T12:00:00Z"
        self._keep((namespace, name), thing, "MODIFIED")

    def status(self, name: str, *, namespace: str = NAMESPACE) -> dict[str, Any]:
        """What was told of it; empty: nothing, or it is gone."""
        found: dict[str, Any] = (self.things.get((namespace, name)) or {}).get("status") or {}
        return found

    def condition(self, name: str, kind: str) -> dict[str, Any]:
        """One of its conditions; empty when it has none."""
        return next((item for item in self.status(name).get("conditions", []) if item["type"] == kind), {})

    def _keep(self, key: tuple[str, str], thing: Object, kind: Any) -> Object:
        self._version += 1
        thing["metadata"]["resourceVersion"] = str(self._version)
        gone = thing["metadata"].get("deletionTimestamp") and not thing["metadata"].get("finalizers")
        if gone:
            self.things.pop(key, None)
        else:
            self.things[key] = thing
        for queue in self._followers:
            queue.put_nowait(Change("DELETED" if gone else kind, copy.deepcopy(thing)))
        return copy.deepcopy(thing)

    async def _touch(self) -> None:
        await asyncio.sleep(0)
        if self.away:
            raise Unavailable("no API server")

    def _of(self, ref: Ref) -> Object:
        thing = self.things.get((ref.namespace, ref.name))
        if thing is None or thing["metadata"]["uid"] != ref.uid:
            raise NotFound(ref.name)
        return copy.deepcopy(thing)

    async def follow(self) -> AsyncIterator[Listing | Change]:
        queue: asyncio.Queue[Change] = asyncio.Queue()
        self._followers.append(queue)
        yield Listing(copy.deepcopy(list(self.things.values())), str(self._version))
        while True:
            yield await queue.get()

    async def get(self, ref: Ref) -> Object | None:
        await self._touch()
        try:
            return self._of(ref)
        except NotFound:
            return None

    async def find(self, namespace: str, name: str) -> Object | None:
        await self._touch()
        return copy.deepcopy(self.things.get((namespace, name)))

    async def tell_status(self, ref: Ref, status: Object) -> Object:
        await self._touch()
        thing = self._of(ref)
        thing["status"] = copy.deepcopy(status)
        self.statuses += 1
        return self._keep((ref.namespace, ref.name), thing, "MODIFIED")

    async def hold(self, thing: Object, *, held: bool) -> Object:
        await self._touch()
        metadata = thing["metadata"]
        now = self._of(ThingRef.of(thing))
        if now["metadata"]["resourceVersion"] != metadata["resourceVersion"]:
            raise Aborted("it was changed")
        now["metadata"]["finalizers"] = [self.finalizer] if held else []
        return self._keep((metadata["namespace"], metadata["name"]), now, "MODIFIED")

    async def tell(self, ref: Ref, told: Told) -> None:
        await self._touch()
        if told.name_suffix not in {item.name_suffix for item in self.events}:
            self.events.append(told)

    async def is_ending(self, namespace: str) -> bool:
        return namespace in self.ending and not self.away
