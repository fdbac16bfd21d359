"""Looks at services again and again, and makes them what they are to be: level by level, so that nothing depends on a
call that was lost, a jobmaster that died, or a master that came back.

One look costs one call for all services, and for each that has living processes one list of its containers and one of
its notes; a service whose counts are not right yet, or whose processes have not all begun, is asked for itself, too.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from recmesh.runtime.errors import CallerError, MeshError, NotFound
from recmesh.runtime.telemetry import get_logger
from recmesh.runtime.yarn.board import Board, Kind
from recmesh.runtime.yarn.client import Object, YarnClient
from services.jobmaster.cluster.yarn import room
from services.jobmaster.cluster.yarn.known import Instance, KnownServices, Service
from services.jobmaster.cluster.yarn.reading import SIGKILL, end_of, end_without_note, is_of_others, note_of
from services.jobmaster.cluster.yarn.service import YarnSettings, read_components
from services.jobmaster.domain.exits import Exit

logger = get_logger(__name__)

AT_ONCE = 8
"""Services that are looked at together."""
FLEXIBLE = frozenset({"STABLE", "STARTED"})
"""States of a service in which YARN takes other counts."""
ENDED_STATES = frozenset({"FINISHED", "FAILED", "KILLED"})
_LONGEST_PAUSE_S = 10.0


class Following:
    """The one that looks; `wake` makes it look at once."""

    def __init__(self, client: YarnClient, board: Board, known: KnownServices, settings: YarnSettings) -> None:
        self._client, self._board, self._known, self._settings = client, board, known, settings
        self._awake = asyncio.Event()
        self._at_once = asyncio.Semaphore(AT_ONCE)
        self._looking = asyncio.Lock()

    def wake(self) -> None:
        """There is something to do."""
        self._awake.set()

    async def follow(self) -> None:
        """Until it is cancelled. What fails is told once, and tried again after pauses that double."""
        pause_s, told = self._settings.look_s, ""
        while True:
            self._awake.clear()
            try:
                await self.look()
                pause_s, told = self._settings.look_s, ""
            except Exception as error:      # file systems have errors of their own
                if told != str(error):
                    logger.warning("YARN is not looked at for a while: %s", error)
                told, pause_s = str(error), min(2 * pause_s, _LONGEST_PAUSE_S)
            try:
                async with asyncio.timeout(pause_s):
                    await self._awake.wait()
            except TimeoutError:
                continue

    async def look(self) -> None:
        """Once at all services in which something lives, or is to be taken away."""
        async with self._looking:
            services = [each for each in self._known if not each.over and (each.living or _leftover(each))]
            if not services:
                return
            alive = {str(app["id"]): app for app in await self._client.services_alive()}
            failures = await asyncio.gather(*(self._look_at(each, alive) for each in services), return_exceptions=True)
            for failure in failures:
                if isinstance(failure, BaseException) and not isinstance(failure, MeshError):
                    raise failure
            first = next((failure for failure in failures if isinstance(failure, MeshError)), None)
            if first is not None:
                raise first

    async def load(self) -> None:
        """Takes in what others have noted since: services, instances, ends."""
        there = await asyncio.to_thread(self._board.services)
        for service in [each for each in self._known if each.instances]:
            if service.application not in there.get(service.name, []):      # forgotten by another jobmaster
                self._known.drop(service)
        for name, applications in there.items():
            if name.startswith(self._settings.prefix):
                for application in applications:
                    await self.load_service(name, application)

    async def load_service(self, name: str, application: str) -> None:
        """As `load`, of one service."""
        notes = await asyncio.to_thread(self._board.notes, name, application)
        service = self._known.service(name, application)
        for instance, kinds in notes.items():
            if "order" in kinds and (service is None or instance not in service.instances):
                order = await asyncio.to_thread(self._board.read, name, application, instance, "order")
                if order is None:
                    continue
                component, _, number = instance.rpartition("-")
                service = service or self._known.add(Service(str(order["job_id"]), name, application))
                service.instances[instance] = Instance(
                    service.job_id, str(order["name"]), name, application, component, int(number)
                )
        if service is not None:
            await self._take_notes(service, notes)

    # -- one service -------------------------------------------------------------------------------------

    async def _look_at(self, service: Service, alive: Mapping[str, Object]) -> None:
        async with self._at_once:
            app = alive.get(service.application)
            if app is None:
                await self._look_at_end(service)
                return
            runs = app.get("state") == "RUNNING"
            begun = [each for each in service.living if each.container and each.seen]
            running = await self._running(service) if runs and begun else None
            await self._take_notes(
                service, await asyncio.to_thread(self._board.notes, service.name, service.application)
            )
            if running is not None:
                for each in begun:
                    if each.exit is None and each.container not in running:
                        await self._note_end(each)
            if not runs:
                for each in service.living:
                    words = " ".join(str(app.get("diagnostics") or "").split())[:300]
                    self._known.waits(each, f"its YARN service is {app.get('state')}{f': {words}' if words else ''}")
            elif _leftover(service) or any(not each.container for each in service.living):
                await self._set_counts(service)

    async def _running(self, service: Service) -> set[str] | None:
        """Containers that live; None when that is not known. Of an older attempt nothing is listed: the newest one is
        asked for before a container that is not in the list is taken for ended."""
        if service.attempt:
            found = await self._containers(service)
            if all(each.container in found for each in service.living if each.container):
                return found
        attempt = await self._client.attempt(service.application)
        if not attempt:
            return None
        service.attempt = attempt
        return await self._containers(service)

    async def _containers(self, service: Service) -> set[str]:
        found = await self._client.containers(service.application, service.attempt)
        return {str(each.get("containerId") or each.get("id")) for each in found}

    async def _take_notes(self, service: Service, notes: Mapping[str, set[Kind]]) -> None:
        for instance in service.living:
            kinds = notes.get(instance.instance, set())
            if instance.container:
                instance.seen = True        # from here on a list of containers is newer than its beginning
            if "begun" in kinds and not instance.container:
                begun = await self._read(instance, "begun") or {}
                instance.container, instance.node = str(begun.get("container") or ""), str(begun.get("node") or "")
                self._known.on_change(instance.job_id)
            if "stop" in kinds and not instance.asked:
                instance.asked = int((await self._read(instance, "stop") or {}).get("signal") or SIGKILL)
            if "end" in kinds:
                note = await self._read(instance, "end")
                if note is not None:
                    await self._take_end(instance, end_of(note))

    async def _take_end(self, instance: Instance, end: Exit) -> None:
        """YARN ends a container by SIGTERM, too, and knows why."""
        if end.signal is not None and not instance.asked and instance.node:
            told = await self._tell(instance)
            if told is not None and is_of_others(told.get("exitCode")):
                end = end_without_note(told, asked=0, node_lost=False)
        self._known.ended(instance, end)

    async def _read(self, instance: Instance, kind: Kind) -> dict[str, Any] | None:
        return await asyncio.to_thread(
            self._board.read, instance.service, instance.application, instance.instance, kind
        )

    # -- counts ------------------------------------------------------------------------------------------

    async def _set_counts(self, service: Service) -> None:
        """As many containers as instances; those that have ended are taken away, by name."""
        told = await self._client.service(service.name)
        if str(told.get("id") or service.application) != service.application or told.get("state") not in FLEXIBLE:
            return
        service.components = read_components(told) or service.components
        leaving: dict[str, list[str]] = {}
        for component in told.get("components") or []:
            name, count = str(component["name"]), int(component.get("number_of_containers") or 0)
            dropped = {str(each) for each in component.get("decommissioned_instances") or []}
            service.dropped |= dropped & service.instances.keys()
            wanted = service.wanted(name)
            if count < wanted:
                await self._client.flex(service.name, name, wanted)
                continue
            gone = [
                each.instance for each in service.instances.values()
                if each.component == name and each.exit is not None and each.instance not in dropped
            ]
            if gone:
                leaving[name] = gone
            containers = component.get("containers") or []
            for container in containers:
                await self._see(service, container)
            given = {str(container.get("component_instance_name")) for container in containers}
            for each in service.living:
                if each.component == name and not each.container:
                    self._known.waits(each, "" if each.instance in given else _waits(service, name))
        if leaving:
            await self._client.decommission(service.name, leaving)
            service.dropped |= {each for names in leaving.values() for each in names}

    async def _see(self, service: Service, container: Object) -> None:
        """A container that has ended before its process could say that it began."""
        instance = service.instances.get(str(container.get("component_instance_name")))
        is_over = container.get("state") in ("STOPPED", "FAILED", "SUCCEEDED")
        if instance is not None and instance.exit is None and not instance.container and is_over:
            if await self._read(instance, "begun") is None:
                end = Exit(code=1, reason="its container ended before it began: see its logs in YARN "
                                          f"({container.get('id')}), and RECMESH_YARN_PYTHON")
                await self._write_end(instance, end)

    # -- ends --------------------------------------------------------------------------------------------

    async def _look_at_end(self, service: Service) -> None:
        """The application is not among those that live: it has ended, or a ResourceManager that came back has yet to
        learn of it."""
        try:
            app = await self._client.application(service.application)
        except NotFound:
            app = {"state": "KILLED", "diagnostics": "YARN has forgotten it"}
        if app.get("state") not in ENDED_STATES:
            return
        words = " ".join(str(app.get("diagnostics") or app.get("state")).split())
        await self._take_notes(service, await asyncio.to_thread(self._board.notes, service.name, service.application))
        for instance in service.living:
            await self._note_end(instance, over=words)
        service.over = True

    async def _note_end(self, instance: Instance, *, over: str = "") -> None:
        """Its container is gone; its own note is the truth, where there is one."""
        note = await self._read(instance, "end")
        if note is not None:
            await self._take_end(instance, end_of(note))
            return
        told = await self._tell(instance)
        lost = told is None and not over and await self._is_lost(instance.node)
        await self._write_end(instance, end_without_note(told, asked=instance.asked, node_lost=lost, over=over))

    async def _write_end(self, instance: Instance, end: Exit) -> None:
        await asyncio.to_thread(
            self._board.write, instance.service, instance.application, instance.instance, "end", note_of(end)
        )
        self._known.ended(instance, end)

    async def _tell(self, instance: Instance) -> Object | None:
        if not instance.node or not instance.container:
            return None
        try:
            return await self._client.container(instance.node, instance.container)
        except MeshError as error:
            logger.info("container %s: its node does not tell of it: %s", instance.container, error)
            return None

    async def _is_lost(self, node: str) -> bool:
        try:
            nodes = await self._client.nodes()
        except CallerError:
            return False
        return not any(room.runs(each) and each.get("nodeHTTPAddress") == node for each in nodes)


def _leftover(service: Service) -> bool:
    """Some have ended, and still count for YARN."""
    return any(each.exit is not None and each.instance not in service.dropped for each in service.instances.values())


def _waits(service: Service, name: str) -> str:
    size = next((each for each in service.components if each.name == name), None)
    asks = f" of {size.memory_mib} MiB, {size.cpus} vcores" if size is not None else ""
    return f"YARN has given no container{asks} yet"
