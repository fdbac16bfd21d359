"""Objects of a kind, each looked at whenever it changed or asks to be looked at again.

A watch fills a map of the objects as they are; whatever changes puts the object's name into a queue, and a few workers
take names from it, each name by one at a time. A name whose turn failed comes again later, later each time.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from recmesh.crd.things import Object, Things
from recmesh.runtime.clock import Clock
from recmesh.runtime.errors import Aborted, MeshError, NotFound
from recmesh.runtime.kube import Listing
from recmesh.runtime.telemetry import get_logger

logger = get_logger(__name__)

Key = tuple[str, str]
"""(namespace, name)"""
Look = Callable[[Key, "Object | None"], Awaitable["float | None"]]
"""Look at an object, or at what is left of one that is gone (None); seconds after which to look again, None: when it
changes."""

TICK_S = 0.25
FIRST_AGAIN_S, LAST_AGAIN_S = 0.5, 60.0


class Reconciling:
    """A component: it watches, and has `look` called. Ends by itself only by a mistake of its own."""

    def __init__(self, name: str, things: Things, look: Look, *, clock: Clock, workers: int = 4) -> None:
        self.name = name
        self._things, self._look, self._clock, self._workers = things, look, clock, workers
        self.objects: dict[Key, Object] = {}
        self.is_listed = False
        """All objects were seen once."""
        self._queue: asyncio.Queue[Key] = asyncio.Queue()
        self._queued: set[Key] = set()
        self._busy: set[Key] = set()
        self._again: dict[Key, float] = {}
        self._failures: dict[Key, int] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Begins to watch."""
        self._tasks = [asyncio.create_task(self._watch()), asyncio.create_task(self._tick())]
        self._tasks += [asyncio.create_task(self._work()) for _ in range(self._workers)]

    async def stop(self) -> None:
        """Whatever is under way is begun anew after the next start."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def wait(self) -> None:
        """Raises what ended one of its tasks."""
        await asyncio.gather(*(asyncio.shield(task) for task in self._tasks))

    def put(self, key: Key) -> None:
        """The object is looked at soon."""
        if key not in self._queued:
            self._queued.add(key)
            self._queue.put_nowait(key)

    def keep(self, before: Object, after: Object) -> None:
        """What a call answered, until the watch says the same; nothing when the watch has told more meanwhile."""
        key = key_of(before)
        current = self.objects.get(key)
        if current is not None and current["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]:
            self.objects[key] = after

    async def _watch(self) -> None:
        async with contextlib.aclosing(self._things.follow()) as changes:      # type: ignore[type-var]  # it is a generator
            async for change in changes:
                if isinstance(change, Listing):
                    found = {key_of(thing): thing for thing in change.objects}
                    gone = self.objects.keys() - found.keys()
                    self.objects, self.is_listed = found, True
                    for key in (*found, *gone):
                        self.put(key)
                    continue
                key = key_of(change.object)
                if change.kind == "DELETED":
                    self.objects.pop(key, None)
                else:
                    self.objects[key] = change.object
                self.put(key)

    async def _tick(self) -> None:
        while True:
            await self._clock.sleep(TICK_S)
            now = self._clock.monotonic()
            for key, due in list(self._again.items()):
                if now >= due:
                    del self._again[key]
                    self.put(key)

    async def _work(self) -> None:
        while True:
            key = await self._queue.get()
            self._queued.discard(key)
            if key in self._busy:
                self._again[key] = self._clock.monotonic()      # it is looked at again after this turn
                continue
            self._busy.add(key)
            try:
                await self._turn(key)
            finally:
                self._busy.discard(key)

    async def _turn(self, key: Key) -> None:
        kind, failures = self.name, self._failures.get(key, 0)
        self._again.pop(key, None)
        try:
            again_s = await self._look(key, self.objects.get(key))
            self._failures.pop(key, None)
        except Aborted:
            again_s = FIRST_AGAIN_S     # the object was changed meanwhile, and comes by the watch
        except NotFound:
            again_s = FIRST_AGAIN_S if key in self.objects else None
        except MeshError as error:
            again_s = min(FIRST_AGAIN_S * 2.0**failures, LAST_AGAIN_S)
            self._failures[key] = min(failures + 1, 16)
            logger.warning("%s: %s/%s is tried again in %.1f s: %s", kind, *key, again_s, error)
        except Exception:
            again_s = LAST_AGAIN_S
            logger.exception("%s: %s/%s is tried again in %.1f s", kind, *key, again_s)
        if again_s is not None:
            due = self._clock.monotonic() + again_s
            self._again[key] = min(due, self._again.get(key, due))
        elif key not in self.objects:
            self._failures.pop(key, None)


def key_of(thing: Object) -> Key:
    """The object's."""
    return thing["metadata"]["namespace"], thing["metadata"]["name"]
