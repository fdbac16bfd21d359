"""One set of processes for each framework and way of running in use."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recmesh.runtime.errors import NotFound, Unavailable
from recmesh.serving import halves
from recmesh.serving.settings import Scaling, ServingSettings
from recmesh.serving.tensors import Tensor
from services.gateway.domain.devices import NOTHING, Wish
from services.gateway.domain.load import Load
from services.gateway.domain.scaling import Own
from services.gateway.domain.statistics import Times
from services.gateway.runtimes.devices import Devices
from services.gateway.runtimes.fleet import DRAIN_S, Fleet
from services.gateway.runtimes.group import Group
from services.gateway.runtimes.process import Limits
from services.gateway.runtimes.remote import RemoteServer
from services.gateway.runtimes.split import SplitServer
from services.gateway.runtimes.whole import WholeServer

if TYPE_CHECKING:
    from services.gateway.runtimes.pods import ServingPods

LostFrom = Callable[[str, str, str], None]
"""Told of a framework's model that could not be brought back after a crash: framework, key, and why."""
Lane = tuple[str, str, str]
"""Framework, `whole`, `split` (both halves here) or `remote` (dense halves in HNs of other machines), and whose: empty
for models that share their processes, else a model's name with the devices that each of its processes has."""
WAYS = {"whole": "whole", "split": "in halves", "remote": "in halves, by HNs of other machines"}
FIXED = Scaling()
LOOK_S = 0.02


@dataclass(frozen=True, slots=True)
class RuntimeStatus:
    """What people want to know of a model server."""

    framework: str
    version: str
    pid: int
    restarts: int
    queued: int
    models: tuple[str, ...]
    kind: str = "hn"
    """`cn` or `hn`."""
    in_flight: int = 0
    device: str = ""
    """What it has for itself, for people."""
    way: str = "whole"
    """As of its `Lane`."""


class Runtimes:
    """Starts a framework's processes with the first model that needs them, and ends them with the last.

    A framework may be asked for under several names, `torch` and `torch#shadow`: each has processes of its own.
    """

    name = "model runtimes"

    def __init__(
        self,
        *,
        environment: Mapping[str, str],
        limits: Limits,
        log: Callable[[str], None],
        lost: LostFrom | None = None,
        hns: Sequence[str] = (),
        mesh_environment: Mapping[str, str] | None = None,
        secrets: Mapping[str, str] | None = None,
        pods: "ServingPods | None" = None,
    ) -> None:
        """`hns`: addresses of HNs for models in halves that name none of their own; none: they are run here.
        `mesh_environment`: what a process needs beside to be let in by HNs of other machines. `secrets`: variables that
        models' settings may name; processes are told what they stand for, and not given them.
        `pods`: where processes are pods; None: they are children of this one."""
        self._pods = pods
        self._hns = tuple(hns)
        self._secrets = secrets or {}
        self._mesh_environment = {**environment, **(mesh_environment or {})}
        self._environment = environment
        self._limits = limits
        self._log = log
        self.lost: LostFrom = lost or (lambda _framework, _key, _reason: None)
        self._devices = Devices(environment)
        self._servers: dict[Lane, Group] = {}
        self._scaling: dict[Lane, Scaling] = {}
        """Of lanes with processes of their own: as the model that was loaded last has it."""
        self._lanes: dict[tuple[str, str], Lane] = {}
        """Of each loaded model, by framework and key."""
        self._loading: dict[Lane, int] = {}
        self._stopping: set[asyncio.Task[None]] = set()
        self._inside: Counter[tuple[Lane, str]] = Counter()
        """Requests that are not answered, by where they run and the model's key."""
        self._leaving: dict[tuple[Lane, str], asyncio.Task[None]] = {}
        """Models that are loaded elsewhere by now, and finish what is in them."""

    async def start(self) -> None:
        """Nothing runs until a model is loaded."""

    async def stop(self) -> None:
        """End all processes; pods go on."""
        if self._pods is not None:
            self._pods.detach()
        for leaving in self._leaving.values():
            leaving.cancel()
        servers = list(self._servers.values())
        self._servers.clear()
        await asyncio.gather(*(server.stop() for server in servers), *self._stopping)

    def serves(self, framework: str, key: str) -> bool:
        """True when a request for the model would be run now."""
        server = self._of(framework, key)
        return server is not None and server.serves(key)

    def waits(self, framework: str, key: str) -> str:
        """What a load of the model that is under way waits for, where a process says so; else empty."""
        return next(
            (why for lane, server in self._servers.items() if lane[0] == framework and (why := server.waits(key))), ""
        )

    async def load(
        self, framework: str, key: str, folder: Path, *, settings: ServingSettings, timeout_s: float
    ) -> None:
        """Load a model, in halves or whole as its settings and folder say; returns when it can serve.

        Where it is run otherwise until then, it is until it can be run so; what is in it is answered.
        """
        split = await asyncio.to_thread(halves.is_split, folder, settings)
        settings = settings.with_secrets(self._secrets)
        if split and not settings.hns:
            settings = settings.model_copy(update={"hns": self._hns})
        lane = (framework, "whole" if not split else "remote" if settings.hns else "split", _owner(key, settings))
        before = self._lanes.get((framework, key))
        await self._look(settings)
        server = self._servers.get(lane)
        if server is None:
            server = self._servers[lane] = self._made(lane, settings)
        self._scaling[lane] = settings.scaling or FIXED
        self._loading[lane] = self._loading.get(lane, 0) + 1
        if leaving := self._leaving.pop((lane, key), None):
            leaving.cancel()                     # it comes back
        try:
            await server.load(key, folder, settings=settings, timeout_s=timeout_s)
            self._lanes[framework, key] = lane
            if before is not None and before != lane:
                await self._leave(before, key)
        except BaseException:
            if leaving and before != lane:
                await self._leave(lane, key)
            raise
        finally:
            self._loading[lane] -= 1
            self._end_when_idle(lane)

    async def unload(self, framework: str, key: str) -> None:
        """Forget a model."""
        lane = self._lanes.pop((framework, key), None)
        if lane is not None:
            await self._drop(lane, key)

    async def infer(
        self,
        framework: str,
        key: str,
        inputs: Sequence[Tensor],
        outputs: Sequence[str],
        *,
        timeout_s: float,
        priority: int,
    ) -> tuple[list[Tensor], Times]:
        """Run a model."""
        lane, server = self._lanes.get((framework, key)), self._of(framework, key)
        if lane is None or server is None:
            raise Unavailable(f"no {framework} model server runs {key}", reason="RUNTIME_DOWN")
        self._inside[lane, key] += 1
        try:
            return await server.infer(key, inputs, outputs, timeout_s=timeout_s, priority=priority)
        finally:
            self._inside[lane, key] -= 1
            if not self._inside[lane, key]:
                del self._inside[lane, key]

    async def freshen(
        self, framework: str, key: str, act: str, version: int, *, settings: ServingSettings, timeout_s: float
    ) -> dict[str, Any]:
        """See ModelServer.freshen."""
        server = self._of(framework, key)
        if server is None:
            raise Unavailable(f"no {framework} model server runs {key}", reason="RUNTIME_DOWN")
        settings = settings.with_secrets(self._secrets)
        return await server.freshen(key, act, version, settings=settings, timeout_s=timeout_s)

    def status(self) -> list[RuntimeStatus]:
        """All processes."""
        return [
            RuntimeStatus(
                item.framework, item.version, item.pid, item.restarts, item.queued, tuple(item.models), kind,
                item.in_flight, grant.label, lane[1],
            )
            for lane, server in self._servers.items()
            for kind, fleet in server.fleets.items()
            for item, grant in zip(fleet.servers, fleet.grants, strict=True)
        ]  # fmt: skip

    async def told(self) -> list[tuple[RuntimeStatus, Mapping[str, Any]]]:
        """All processes, each with what it says of itself (`ping` of CN and HN)."""
        fleets = [fleet for server in self._servers.values() for fleet in server.fleets.values()]
        statuses = self.status()
        said = [each for answers in await asyncio.gather(*(fleet.told() for fleet in fleets)) for each in answers]
        return list(zip(statuses, said, strict=False))    # one that joined or left meanwhile is seen the next time

    def scaled(self) -> dict[str, Own]:
        """Processes of models that may be more or fewer, by a key of theirs, but for those that only get copies. Those
        of which the last version has left or the first is loaded are not among them."""
        found: dict[str, Own] = {}
        for lane, rules in self._scaling.items():
            versions = frozenset(key.partition("/")[2] for (_, key), its in self._lanes.items() if its == lane)
            if rules != FIXED and "#" not in lane[0] and versions:
                found[_key(lane)] = Own(_name(lane), versions, rules, _in_words(lane))
        return found

    async def measured(self, key: str) -> dict[str, Load]:
        """What each kind of them did since this was last asked. NotFound."""
        return {kind: await fleet.measured() for kind, fleet in self._own(key).items()}

    async def grow(self, key: str, kind: str) -> None:
        """One process more; returns when it takes requests. NotFound, or why it cannot be started."""
        await self._fleet(key, kind).add()

    async def shrink(self, key: str, kind: str) -> None:
        """One process less; it finishes what is in it, and ends. NotFound; FailedPrecondition: it is the last."""
        await self._fleet(key, kind).remove()

    def _own(self, key: str) -> Mapping[str, Fleet]:
        found = next((server for lane, server in self._servers.items() if _key(lane) == key), None)
        if found is None:
            raise NotFound(f"there are no processes {key!r}", reason="NO_OWN_PROCESSES")
        return found.fleets

    def _fleet(self, key: str, kind: str) -> Fleet:
        fleet = self._own(key).get(kind)
        if fleet is None:
            raise NotFound(f"there are no {kind} processes {key!r}", reason="NO_OWN_PROCESSES")
        return fleet

    async def _look(self, settings: ServingSettings) -> None:
        if settings.resources.hn.gpu and self._pods is None:
            await asyncio.to_thread(self._devices.look)

    def _of(self, framework: str, key: str) -> Group | None:
        lane = self._lanes.get((framework, key))
        return None if lane is None else self._servers.get(lane)

    def _made(self, lane: Lane, settings: ServingSettings) -> Group:
        name, way, _ = lane
        framework = name.partition("#")[0]

        def lost(key: str, reason: str) -> None:
            if self._lanes.get((name, key)) == lane:     # else it is served in the other way by now
                del self._lanes[name, key]
                self.lost(name, key, reason)
            self._end_when_idle(lane)                    # their devices are for others

        wish = _wish(settings)
        pods = None if self._pods is None else self._pods.lane(lane, wish=wish)
        if way == "remote":
            return RemoteServer(
                framework, environment=self._mesh_environment, limits=self._limits, lost=lost, log=self._log,
                scaling=settings.scaling or FIXED, pods=pods,
            )  # fmt: skip
        kind: type[SplitServer] | type[WholeServer] = SplitServer if way == "split" else WholeServer
        return kind(
            framework, environment=self._environment, limits=self._limits, lost=lost, log=self._log,
            scaling=settings.scaling or FIXED, give_back=self._devices.give_back, pods=pods,
            take=lambda: self._devices.take(wish) if pods is None else NOTHING,      # pods' are the scheduler's to give
        )  # fmt: skip

    async def _leave(self, lane: Lane, key: str) -> None:
        """Unload it there; at once, or when the requests that are in it are answered."""
        if not self._inside[lane, key]:
            await self._drop(lane, key)
            return
        task = self._leaving[lane, key] = asyncio.create_task(self._finish(lane, key), name=f"drain {key}")
        task.add_done_callback(lambda done: self._left(lane, key, done))

    async def _finish(self, lane: Lane, key: str) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S):
                while self._inside[lane, key]:  # noqa: ASYNC110 (requests end by themselves)
                    await asyncio.sleep(LOOK_S)
        await self._drop(lane, key)

    def _left(self, lane: Lane, key: str, task: "asyncio.Task[None]") -> None:
        if self._leaving.get((lane, key)) is task:
            del self._leaving[lane, key]

    async def _drop(self, lane: Lane, key: str) -> None:
        server = self._servers.get(lane)
        if server is not None:
            await server.unload(key)
            self._end_when_idle(lane)

    def _end_when_idle(self, lane: Lane) -> None:
        server = self._servers.get(lane)
        if server is not None and not server.models and not self._loading.get(lane):
            del self._servers[lane]
            self._scaling.pop(lane, None)
            task = asyncio.create_task(server.stop(), name=f"stop-{'-'.join(lane)}")
            self._stopping.add(task)
            task.add_done_callback(self._stopping.discard)


def _owner(key: str, settings: ServingSettings) -> str:
    if not settings.has_own_processes:
        return ""
    needs = settings.resources.hn
    return f"{key.partition('/')[0]} {needs.gpu} {needs.mig or ''} {needs.or_cpu}"


def _name(lane: Lane) -> str:
    """Of the model whose processes they are; empty for shared ones."""
    return lane[2].partition(" ")[0]


def _key(lane: Lane) -> str:
    return " ".join(lane)


def _in_words(lane: Lane) -> str:
    """How they run their versions."""
    framework, way, owner = lane
    _, gpus, profile, _ = owner.split(" ")
    device = "" if gpus == "0" else f", on {profile or ('a GPU' if gpus == '1' else f'{gpus} GPUs')}"
    return f"{framework}, {WAYS[way]}{device}"


def _wish(settings: ServingSettings) -> Wish:
    needs = settings.resources.hn
    return Wish(needs.gpu, needs.mig or "", needs.or_cpu)
