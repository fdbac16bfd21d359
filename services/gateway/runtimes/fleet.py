"""Some processes that run the same models: each request goes to one of them, and there may be more or fewer of them."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from recmesh.runtime.errors import FailedPrecondition, MeshError, Unavailable
from recmesh.serving.settings import ServingSettings
from recmesh.serving.tensors import Tensor
from services.gateway.domain.devices import Grant
from services.gateway.domain.load import Load, Sample, load_between
from services.gateway.domain.statistics import Times
from services.gateway.runtimes.process import PING, PING_S, Lost, ModelServer

DRAIN_S = 300.0
"""A process that leaves may finish what is in it for so long: no request may take longer."""

REPLACE_S = (0.1, 1.0, 5.0, 15.0, 60.0)
"""Until another process is started in the place of one that could not bring a model back; the last one from then on."""

Made = Callable[[int, Grant, Lost], ModelServer]
"""A process by its number, which no other of the fleet ever had, what it was granted, and whom it tells of a model that
it could not bring back."""


async def _nobody() -> None:
    """Nobody wants to know."""


@dataclass(frozen=True, slots=True)
class _Loading:
    """What a process that joins must load."""

    folder: Path
    settings: ServingSettings
    timeout_s: float


@dataclass(frozen=True, slots=True, eq=False)
class _Member:
    number: int
    server: ModelServer
    grant: Grant


class Fleet:
    """At least one process. A new one takes requests when its models are warm; one that leaves finishes its own.

    One that could not bring a model back while others have it leaves: it would look idle. Another takes its place as
    soon as it can.
    """

    def __init__(
        self, made: Made, *, part: str, count: int, take: Callable[[], Grant], give_back: Callable[[Grant], None],
        lost: Lost, log: Callable[[str], None], changed: Callable[[], Awaitable[None]] = _nobody,
    ) -> None:  # fmt: skip
        """`lost` is told of a model that none of them could bring back."""
        self._made, self._part = made, part
        self._take, self._give_back = take, give_back
        self._lost, self._log = lost, log
        self._changed = changed
        """Called when a process has joined, and when one takes no more requests but is still there."""
        self._loadings: dict[str, _Loading] = {}
        self._changing = asyncio.Lock()
        self._born = time.monotonic()
        self._before: dict[int, Sample] = {}
        self._numbers = 0
        self._leaving: set[asyncio.Task[None]] = set()
        """One for each process that finishes what it has, or is to be replaced."""
        self._owners: set[_Member] = set()
        """Those whose grant was not given back."""
        self._stopped = False
        self.start_s = 0.0
        """From the start of a process until it could take requests, of the last one."""
        self._wanted = count
        """So many there are when none has left but by plan."""
        self._members = self._first(count)

    @property
    def servers(self) -> Sequence[ModelServer]:
        """Those that take requests."""
        return [member.server for member in self._members]

    @property
    def numbers(self) -> Sequence[int]:
        """Of the same."""
        return [member.number for member in self._members]

    @property
    def grants(self) -> Sequence[Grant]:
        """Of the same."""
        return [member.grant for member in self._members]

    @property
    def models(self) -> list[str]:
        """Keys of the loaded models."""
        return list(self._loadings)

    def serves(self, key: str) -> bool:
        """True when a request for the model would be run now."""
        return any(server.serves(key) for server in self.servers)

    def has(self, key: str) -> bool:
        """True when one of them runs the model, or would when it is up."""
        return any(key in server.models for server in self.servers)

    def waits(self, key: str) -> str:
        """What a load of the model that is under way waits for, where one of them says so; else empty."""
        return next((server.waits[key] for server in self.servers if key in server.waits), "")

    @property
    def reason(self) -> str:
        """Why one of them is down."""
        return next((server.reason for server in self.servers if not server.pid), self.servers[0].reason)

    async def load(self, key: str, folder: Path, *, settings: ServingSettings, timeout_s: float) -> None:
        """In all of them; returns when all are warm. Where one cannot, none has it that had it not before."""
        async with self._changing:
            outcomes = await asyncio.gather(
                *(self._load(server, key, _Loading(folder, settings, timeout_s)) for server in self.servers),
                return_exceptions=True,
            )
            failed = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
            if failed:
                if key not in self._loadings:
                    await asyncio.gather(*(server.unload(key) for server in self.servers))
                raise failed[0]
            self._loadings[key] = _Loading(folder, settings, timeout_s)
            self.start_s = self.start_s or time.monotonic() - self._born

    async def unload(self, key: str) -> None:
        """Forget the model."""
        async with self._changing:
            self._loadings.pop(key, None)
            await asyncio.gather(*(server.unload(key) for server in self.servers))

    def forget(self, key: str) -> None:
        """Do not load this model again."""
        self._loadings.pop(key, None)
        for server in self.servers:
            server.forget(key)

    async def infer(
        self, key: str, inputs: Sequence[Tensor], outputs: Sequence[str], *, timeout_s: float, priority: int
    ) -> tuple[list[Tensor], Times]:
        """On the one with the fewest requests in it; of those with as few, the one that is there longest."""
        able = [server for server in self.servers if server.serves(key)]
        if not able:
            raise Unavailable(
                f"the {self.servers[0].framework} model server is down: {self.reason}", reason="RUNTIME_DOWN"
            )
        chosen = min(able, key=lambda server: server.in_flight)
        return await chosen.infer(key, inputs, outputs, timeout_s=timeout_s, priority=priority)

    async def freshen(
        self, key: str, act: str, version: int, *, settings: ServingSettings, timeout_s: float
    ) -> dict[str, Any]:
        """Ask the first, or tell all, of a model that follows a job; those that join are loaded with `settings`.

        Where one cannot, those that could are told what held before, and its reason is raised.
        """
        if act == "status":
            return await self.servers[0].freshen(key, act, version, settings=settings, timeout_s=timeout_s)
        async with self._changing:
            servers, loading = self.servers, self._loadings.get(key)
            told = await asyncio.gather(
                *(server.freshen(key, act, version, settings=settings, timeout_s=timeout_s) for server in servers),
                return_exceptions=True,
            )
            done = [each for each in told if not isinstance(each, BaseException)]
            failed = [each for each in told if isinstance(each, BaseException)]
            if failed:
                if loading is not None:
                    await asyncio.gather(*(
                        _back(server, key, loading, timeout_s) for server, each in zip(servers, told, strict=True)
                        if not isinstance(each, BaseException)
                    ))
                raise failed[0]
            if loading is not None:
                self._loadings[key] = replace(loading, settings=settings)
        return done[0]

    async def add(self) -> None:
        """One more; returns when it takes requests. Raises why it could not be: then nothing has changed."""
        async with self._changing:
            await self._add()

    async def remove(self) -> None:
        """One less, the newest; returns when it gets no more requests. It finishes those that it has, for `DRAIN_S` at
        most, and ends; its grant is given back then."""
        async with self._changing:
            if len(self._members) == 1:
                raise FailedPrecondition("the last process of a model cannot be taken away", reason="LAST_PROCESS")
            await self._dismiss(self._members[-1])
            self._wanted = len(self._members)

    async def measured(self) -> Load:
        """Of the time since this was last asked."""
        servers = self.servers
        told = await asyncio.gather(*(_sample(server) for server in servers))
        samples = {server.pid: sample for server, sample in zip(servers, told, strict=True) if sample is not None}
        found = load_between(self._before, samples, replicas=len(servers), start_s=self.start_s)
        self._before = samples
        return found

    async def told(self) -> list[Mapping[str, Any]]:
        """What each says of itself, for people (`status`: docs/reference/serving.md); empty of one that is down, or
        does not say."""
        return list(await asyncio.gather(*(_stated(server) for server in self.servers)))

    async def stop(self) -> None:
        """End all; calls in flight fail."""
        self._stopped = True
        members, self._members = list(self._owners), self._members[:1]
        await asyncio.gather(*(self._end(member) for member in members))     # also one that joins, or leaves
        leaving = list(self._leaving)
        for task in leaving:
            task.cancel()
        await asyncio.gather(*leaving, return_exceptions=True)

    async def _add(self) -> None:
        if self._stopped:
            raise Unavailable("the processes of this model are being ended", reason="RUNTIME_DOWN")
        member, began = self._member(self._take()), time.monotonic()
        try:
            for key, loading in list(self._loadings.items()):    # in turn: torch reads one archive at a time
                await self._load(member.server, key, loading)
            self.start_s = time.monotonic() - began
        except BaseException:
            await self._end(member)
            raise
        self._members.append(member)
        self._wanted = max(self._wanted, len(self._members))
        await self._changed()

    def _gave_up(self, number: int, key: str, reason: str) -> None:
        """A process could not bring the model back when it was started again."""
        if number not in self.numbers:
            return                               # it leaves, or has not joined yet: nothing depends on it
        if self.has(key):
            self._aside(self._replace(number, key, reason), name=f"replace {self._part} {number}")
        else:
            self._lost(key, reason)

    async def _replace(self, number: int, key: str, reason: str) -> None:
        async with self._changing:
            member = next((each for each in self._members if each.number == number), None)
            if member is None or key not in self._loadings or key in member.server.models:
                return                           # it has left, or the model has, or it was loaded anew
            self._log(f"a {member.server.framework} process leaves, as others have {key}, which it has not: {reason}")
            await self._dismiss(member)
        for after_s in itertools.chain(REPLACE_S, itertools.repeat(REPLACE_S[-1])):
            await asyncio.sleep(after_s)
            async with self._changing:
                if self._stopped or len(self._members) >= self._wanted:
                    return
                try:
                    await self._add()
                    return
                except MeshError as error:
                    self._log(f"no {member.server.framework} process takes the place of the one that left: {error}")

    def _aside(self, work: Coroutine[Any, Any, None], *, name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _load(self, server: ModelServer, key: str, loading: _Loading) -> None:
        await server.load(
            key, loading.folder, settings=loading.settings, part=self._part, timeout_s=loading.timeout_s
        )

    async def _dismiss(self, member: _Member) -> None:
        """Returns when it gets no more requests. What is in it may take minutes, in which others may join or leave."""
        self._members.remove(member)
        try:
            await self._changed()                # before it looks idle: CNs may send to it until then
        finally:
            self._aside(self._finish(member), name=f"drain {member.server.framework} {member.number}")

    async def _finish(self, member: _Member) -> None:
        try:
            await member.server.drained(DRAIN_S)
        finally:
            await self._end(member)

    async def _end(self, member: _Member) -> None:
        """Whoever ends it first gives its grant back: by then somebody else may have what was in it."""
        await member.server.stop()
        if member in self._owners:
            self._owners.remove(member)
            self._give_back(member.grant)

    def _first(self, count: int) -> list[_Member]:
        grants: list[Grant] = []
        try:
            for _ in range(count):
                grants.append(self._take())
        except MeshError:
            for grant in grants:
                self._give_back(grant)
            raise
        return [self._member(grant) for grant in grants]

    def _member(self, grant: Grant) -> _Member:
        number = self._numbers = self._numbers + 1

        def lost(key: str, reason: str) -> None:
            self._gave_up(number, key, reason)

        member = _Member(number, self._made(number, grant, lost), grant)
        self._owners.add(member)
        return member


async def _back(server: ModelServer, key: str, loading: _Loading, timeout_s: float) -> None:
    """To the version that it held, or to the newest."""
    held = loading.settings.freshness.held
    with contextlib.suppress(MeshError):         # why the other could not is what the caller is told
        await server.freshen(
            key, "rollback" if held else "resume", held, settings=loading.settings, timeout_s=timeout_s
        )


async def _sample(server: ModelServer) -> Sample | None:
    """None: it is down, or too busy to say."""
    told = await _told(server)
    return Sample.of(told, at=time.monotonic(), waiting=server.queued) if told else None


async def _told(server: ModelServer) -> Mapping[str, Any]:
    if not server.pid:
        return {}
    try:
        return await server.ask(PING, timeout_s=PING_S)
    except (MeshError, TimeoutError):
        return {}


async def _stated(server: ModelServer) -> Mapping[str, Any]:
    told = await _told(server)
    return {**told, "status": await server.state()} if told else {}
