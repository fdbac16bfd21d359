"""The resource controller of YARN.

Named processes on anonymous containers: an order is noted under the number that YARN gives the next instance of its
component, then the component is counted up. `Following` does the latter, so that `start` is answered at once.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from recmesh.runtime.errors import (
    AlreadyExists,
    CallerError,
    FailedPrecondition,
    MeshError,
    NotFound,
    Unavailable,
    Violation,
)
from recmesh.runtime.telemetry import get_logger
from recmesh.runtime.yarn.board import Board, Kind
from recmesh.runtime.yarn.client import Object, YarnClient
from recmesh.spec.job import TrainingJob
from services.jobmaster.cluster import Amounts, Capacity, RoleProcess, StartOrder
from services.jobmaster.cluster.yarn import room
from services.jobmaster.cluster.yarn.following import ENDED_STATES, Following
from services.jobmaster.cluster.yarn.known import Instance, KnownServices, Service
from services.jobmaster.cluster.yarn.reading import SIGKILL, SIGTERM, note_of
from services.jobmaster.cluster.yarn.service import (
    YarnSettings,
    components,
    fitting,
    read_components,
    refusals,
    service_name,
    service_of,
)
from services.jobmaster.domain.exits import Exit

logger = get_logger(__name__)

ROOM_S = 10.0
"""What nodes have free is asked for this often at most."""
KILL_AGAIN_S = 10.0
"""A container that lives on so long after SIGKILL is taken away by its service: a signal may be forbidden."""
DELETES, DELETE_PAUSE_S = 10, 1.0
TAIL_BYTES = 256 * 1024
LOG = "stdout.txt"
"""Of YARN's services."""


class YarnController:
    """`find_again` begins to look; `stop_watching` ends that, and containers go on. The client is the caller's to
    close. What YARN cannot do: other limits for a container that runs (`resize` is always refused)."""

    def __init__(self, client: YarnClient, board: Board, settings: YarnSettings) -> None:
        self._client, self._board, self._settings = client, board, settings
        self._known = KnownServices()
        self._following = Following(client, board, self._known, settings)
        self._locks: dict[str, asyncio.Lock] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._follower: asyncio.Task[None] | None = None
        self._room: tuple[float, Capacity] | None = None
        self._room_lock = asyncio.Lock()

    # -- what there is -----------------------------------------------------------------------------------

    def watch(self, on_change: Callable[[str], None]) -> None:
        """See `Controller`."""
        self._known.on_change = on_change

    async def find_again(self) -> None:
        """See `Controller`. Unavailable when YARN, or the folder, does not answer."""
        try:
            await self._following.load()
        except OSError as error:
            raise Unavailable(f"{self._board.uri} cannot be read: {error}") from error
        if self._follower is None:
            self._follower = asyncio.create_task(self._following.follow())

    async def stop_watching(self) -> None:
        """See `Controller`."""
        tasks = [*self._tasks, *([self._follower] if self._follower else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._follower = None

    async def processes(self, job_id: str) -> list[RoleProcess]:
        """See `Controller`."""
        newest: dict[str, Instance] = {}
        for each in self._known.instances(job_id):
            if each.name not in newest or each.exit is None:
                newest[each.name] = each
        return [each.view() for each in newest.values()]

    async def jobs(self) -> list[str]:
        """See `Controller`."""
        return self._known.jobs()

    # -- starts ------------------------------------------------------------------------------------------

    def refusals(self, spec: TrainingJob) -> list[Violation]:
        """See `Controller`."""
        return refusals(spec, self._settings)

    async def start(self, order: StartOrder) -> RoleProcess:
        """See `Controller`. Returns when the order is noted; its container comes later, and `RoleProcess.begun` tells.
        FailedPrecondition when the job's service has no component that is large enough."""
        async with self._lock(order.job_id):
            known = self._living(order)
            if known is not None:
                return known.view()
            service = await self._service(order)
            known = self._living(order)         # another jobmaster's
            if known is not None:
                return known.view()
            component = fitting(order, service.components, self._settings).name
            instance = Instance(
                order.job_id, order.name, service.name, service.application, component,
                service.following_number(component),
            )
            await self._note(instance, "order", {
                "job_id": order.job_id, "name": order.name, "command": list(self._settings.role_command),
                "env": dict(order.env),
            })  # fmt: skip
            service.instances[instance.instance] = instance
        self._following.wake()
        return instance.view()

    def _living(self, order: StartOrder) -> Instance | None:
        known = self._known.find(order.job_id, order.name)
        return known if known is not None and known.exit is None and not known.asked else None

    async def _service(self, order: StartOrder) -> Service:
        """The job's, made where there is none."""
        current = self._known.current(order.job_id)
        if current is not None and current.components:
            return current
        name = service_name(order.job_id, self._settings)
        sizes = {**order.sizes, order.role: Amounts(order.cpu, order.memory_bytes, order.gpu, order.gpu_kind)}
        if "worker" in order.sizes:
            sizes.setdefault("finisher", order.sizes["worker"])
        body = service_of(
            order.job_id, components(sizes, self._settings), folder=self._board.uri, settings=self._settings
        )
        for _ in range(2):
            if current is None:
                with suppress(AlreadyExists):
                    await self._client.create_service(body)
            found = await self._alive(name)
            if found is not None:
                application = str(found["id"])
                await self._following.load_service(name, application)
                kept = self._known.add(Service(order.job_id, name, application))
                kept.components = read_components(found) or components(sizes, self._settings)
                return kept
            await self._delete_service(name)    # of a service that has ended, the name is still taken
            current = None
        raise Unavailable(f"YARN's service {name} is still going", reason="STILL_GOING")

    async def _alive(self, name: str) -> Object | None:
        """A service that has not ended; None where there is none."""
        try:
            found = await self._client.service(name)
            app = await self._client.application(str(found.get("id") or "none"))
        except NotFound:
            return None
        return found if app.get("state") not in ENDED_STATES else None

    async def _note(self, instance: Instance, kind: Kind, note: dict[str, object]) -> None:
        try:
            await asyncio.to_thread(
                self._board.write, instance.service, instance.application, instance.instance, kind, note
            )
        except OSError as error:
            raise Unavailable(f"{self._board.uri} cannot be written: {error}") from error

    def _lock(self, job_id: str) -> asyncio.Lock:
        return self._locks.setdefault(job_id, asyncio.Lock())

    # -- ends --------------------------------------------------------------------------------------------

    async def stop(self, job_id: str, name: str, *, grace_s: float) -> None:
        """See `Controller`. A node takes a signal with its next heartbeat (a second)."""
        instance = self._known.find(job_id, name)
        if instance is None or instance.exit is not None:
            return
        await self._end(instance, kill=grace_s <= 0)
        self._in_background(self._kill_later(instance, grace_s))

    async def drain(self, job_id: str, name: str) -> None:
        """See `Controller`."""
        instance = self._known.find(job_id, name)
        if instance is not None and instance.exit is None:
            await self._end(instance, kill=False)

    async def _end(self, instance: Instance, *, kill: bool) -> None:
        """A process that has not begun never does; its container, if it comes after all, is taken away."""
        instance.asked = SIGKILL if kill else instance.asked or SIGTERM
        await self._note(instance, "stop", {"signal": instance.asked})
        if instance.container:
            try:
                await self._client.signal(instance.container, kill=kill)
            except CallerError as error:        # it has just ended, or signals are not for this user
                logger.info("container %s: %s", instance.container, error)
        else:
            end = Exit(signal=instance.asked, reason="ended before its container began")
            await self._note(instance, "end", note_of(end))
            self._known.ended(instance, end)
        self._following.wake()

    async def _kill_later(self, instance: Instance, grace_s: float) -> None:
        if grace_s > 0:
            await asyncio.sleep(grace_s)
            if instance.exit is None:
                await self._end(instance, kill=True)
        await asyncio.sleep(KILL_AGAIN_S)
        if instance.exit is None:
            logger.warning("container %s does not end by SIGKILL: it is taken away", instance.container)
            await self._client.decommission(instance.service, {instance.component: [instance.instance]})

    async def forget(self, job_id: str) -> None:
        """See `Controller`. FailedPrecondition while one of them runs. Takes as long as YARN does to end the service:
        seconds."""
        async with self._lock(job_id):
            for instance in self._known.instances(job_id):
                if instance.exit is None:
                    raise FailedPrecondition(f"{instance.handle} ({instance.name}) has not ended")
            name = service_name(job_id, self._settings)
            await self._delete_service(name)
            await asyncio.to_thread(self._board.remove, name)
            self._known.forget(job_id)
        self._locks.pop(job_id, None)

    async def _delete_service(self, name: str) -> None:
        """While its application is still going, YARN says that it runs, or that it is not there."""
        for _ in range(DELETES):
            with suppress(NotFound, FailedPrecondition):
                await self._client.delete_service(name)
            try:
                await self._client.service(name)
            except NotFound:
                return
            await asyncio.sleep(DELETE_PAUSE_S)
        raise Unavailable(f"YARN does not delete service {name}", reason="STILL_GOING")

    # -- the rest ----------------------------------------------------------------------------------------

    async def resize(self, job_id: str, name: str, *, cpu: float | None, memory_bytes: int) -> bool:
        """See `Controller`. Never: a component's size is for its life, so that the process is replaced by one of a
        larger component."""
        del job_id, name, cpu, memory_bytes
        return False

    async def tail(self, job_id: str, name: str, *, lines: int) -> list[str]:
        """See `Controller`. From the process's node; of one that has ended some time ago its last 16 KiB."""
        instance = self._known.find(job_id, name)
        if instance is None or lines <= 0:
            return []
        text = ""
        if instance.container and instance.node:
            try:
                text = await self._client.log(instance.node, instance.container, LOG, last_bytes=TAIL_BYTES)
            except CallerError:
                text = ""
            except MeshError as error:
                logger.info("the log of %s cannot be read: %s", instance.handle, error)
        if not text and instance.exit is not None:
            note = await asyncio.to_thread(
                self._board.read, instance.service, instance.application, instance.instance, "end"
            )
            text = str((note or {}).get("tail") or "")
        return text.splitlines()[-lines:]

    async def capacity(self, job_id: str = "", spec: TrainingJob | None = None) -> Capacity:
        """See `Controller`. As of some seconds ago."""
        now = asyncio.get_running_loop().time()
        async with self._room_lock:
            if self._room is None or now - self._room[0] > ROOM_S:
                self._room = now, room.free(await self._client.nodes(), self._settings.gpus)
            return self._room[1]

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        async def quietly() -> None:
            try:
                await work
            except MeshError as error:
                logger.warning("%s", error)

        task = asyncio.create_task(quietly())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
