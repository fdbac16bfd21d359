"""A kind of object followed for good: a list, then a watch from its version on; both again whenever that is needed."""

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from recmesh.runtime.errors import MeshError
from recmesh.runtime.kube.client import KubeClient, Object
from recmesh.runtime.kube.errors import EXPIRED
from recmesh.runtime.kube.resources import Resource
from recmesh.runtime.telemetry import get_logger

logger = get_logger(__name__)

LIFE_S = (240, 360)
"""A watch is opened anew after so long, each at another time, so that replicas spread over API servers."""
SILENCE_S = 150.0
"""Bookmarks come about every minute; a connection that brings nothing for so long is taken for dead."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 15.0


@dataclass(frozen=True, slots=True)
class Listing:
    """All there is; what was known before and is not in it is gone."""

    objects: Sequence[Object]
    version: str


@dataclass(frozen=True, slots=True)
class Change:
    """One object that has changed; with DELETED as it was at its end."""

    kind: Literal["ADDED", "MODIFIED", "DELETED"]
    object: Object


async def follow(
    client: KubeClient, resource: Resource, *, namespace: str = "", labels: str = "", fields: str = "",
    on_trouble: Callable[[], None] = lambda: None,
) -> AsyncGenerator[Listing | Change]:
    """A Listing first, then Changes as they come; another Listing whenever some may have been missed. Ends when it is
    closed or cancelled only: what fails is logged once and tried again, after pauses that double; `on_trouble` is
    called each time that the server did not answer."""
    version, pause_s, told = "", _FIRST_PAUSE_S, ""
    while True:
        try:
            if not version:
                objects, version = await client.list(resource, namespace=namespace, labels=labels, fields=fields)
                yield Listing(objects, version)
            async with client.stream(
                resource, namespace=namespace, labels=labels, fields=fields, version=version,
                life_s=random.randint(*LIFE_S), silence_s=SILENCE_S,
            ) as events:
                pause_s, told = _FIRST_PAUSE_S, ""
                async for event in events:
                    thing = event["object"]
                    version = thing["metadata"]["resourceVersion"]
                    if event["type"] != "BOOKMARK":
                        yield Change(event["type"], thing)
        except MeshError as error:
            if error.reason == EXPIRED:
                version = ""
            else:
                on_trouble()
                if told != error.message:
                    logger.warning("%s are not watched for a while: %s", resource.plural, error)
            told = error.message
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
