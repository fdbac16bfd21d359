"""A supervised model server: a process with any number of models, restarted with backoff when it dies."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recmesh.runtime.errors import (
    Aborted,
    DataLoss,
    DeadlineExceeded,
    FailedPrecondition,
    MeshError,
    NotFound,
    Unavailable,
)
from recmesh.serving.settings import NO_PRIORITY, ServingSettings
from recmesh.serving.tensors import Tensor
from services.gateway.domain.statistics import Times
from services.gateway.runtimes.gate import Gate
from services.gateway.runtimes.link import SILENT, Link

RELOAD_ATTEMPTS = 2
STABLE_S = 60.0
STATE_S = 3.0
DRAIN_LOOK_S = 0.02
LEAVE_S = 60.0
"""For requests in a process that is told to go, and has its successor."""
PING: Mapping[str, object] = {"op": "ping"}
PING_S = 2.0
REFUSED = (NotFound, DataLoss, FailedPrecondition)
"""Answers of a process that has not done what it was told: the version is gone, or damaged."""
LOAD_GRACE_S = 1.0
"""For a process to say itself that a load took too long."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a model server."""

    queue: int = 256
    """Requests of one model that may wait in a process, and of all models before it; one more is refused."""
    in_flight: int = 1024
    """Requests in a process, of all models; they wait in their model's own queue, which knows how long it runs."""
    start_s: float = 120.0
    """For the process to import its framework."""
    hang_s: float = 120.0
    """No answer for so long after a call's deadline means that the process hangs; it is killed."""
    backoff_s: tuple[float, ...] = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


Lost = Callable[[str, str], None]
"""Told of a model that could not be brought back after a restart, and why."""

Start = Callable[[Sequence[str], Mapping[str, str], Callable[[str], None]], Awaitable[Link]]
"""Starts a process: a module of ours with its arguments, the environment, and who is told what a start waits for."""


async def started_here(command: Sequence[str], environment: Mapping[str, str], _told: Callable[[str], None]) -> Link:
    """A child of this process."""
    return await Link.start(command, environment=environment)


async def _nothing() -> None:
    """Nobody wants to know."""


async def _silence(_link: Link) -> None:
    """There is nothing to say."""


@dataclass(frozen=True, slots=True)
class _Loaded:
    """What is loaded again after a restart."""

    header: Mapping[str, object]
    timeout_s: float


class ModelServer:
    """Keeps a process running, and its models loaded in it. `command`: a module of ours and its arguments."""

    def __init__(
        self,
        framework: str,
        *,
        command: Sequence[str],
        environment: Mapping[str, str],
        limits: Limits,
        lost: Lost,
        log: Callable[[str], None],
        start: Start = started_here,
        greet: Callable[[Link], Awaitable[None]] = _silence,
        renewed: Callable[[], Awaitable[None]] = _nothing,
    ) -> None:
        """`greet`: says what each run of it must know before it loads models; `renewed`: called when a run could serve,
        before it counts as one that does, and before the one in whose place it is ends."""
        self._start, self._greet, self._renewed = start, greet, renewed
        self._coming: Link | None = None
        """What is to take the place of one that is leaving."""
        self._asides: set[asyncio.Task[None]] = set()
        self._await_start: set[str] = set()
        """Keys of models whose loads wait for a start."""
        self._start_waits = ""
        """What the start says that it waits for."""
        self.framework = framework
        self.version = ""
        self.restarts = 0
        self.command = command
        """Of the next start."""
        self.waits: dict[str, str] = {}
        """What loads that are under way wait for, by the model's key, where the process says so."""
        self._environment = environment
        self._limits = limits
        self._lost = lost
        self._log = log
        self._loaded: dict[str, _Loaded] = {}
        self._crashes_on_reload: dict[str, int] = {}
        self._gate = Gate(slots=limits.in_flight, waiting=limits.queue)
        self._link: Link | None = None
        self._up = asyncio.Event()
        self._reason = "it is starting"
        self._supervisor = asyncio.create_task(self._supervise(), name=f"model-server-{framework}")

    @property
    def models(self) -> list[str]:
        """Keys of the loaded models."""
        return list(self._loaded)

    @property
    def queued(self) -> int:
        """Requests that wait."""
        return self._gate.queued

    @property
    def in_flight(self) -> int:
        """Requests that wait or are not answered."""
        return self._gate.queued + self._gate.inside

    @property
    def pid(self) -> int:
        """The process; 0 between two runs of it."""
        return self._link.pid if self._link is not None and not self._link.ended.is_set() else 0

    @property
    def address(self) -> str:
        """Where CNs reach it; empty where that is in its command, or while it is down."""
        return self._link.address if self._link is not None and not self._link.ended.is_set() else ""

    @property
    def place(self) -> str:
        """Where it runs; empty: here."""
        return self._link.place if self._link is not None else ""

    @property
    def is_up(self) -> bool:
        """Whether it runs, and has its models."""
        return self._up.is_set() and self._link is not None and not self._link.ended.is_set()

    @property
    def reason(self) -> str:
        """Why it is down, when it is."""
        return self._reason

    def forget(self, key: str) -> None:
        """Do not load this model again; where it is loaded, free it in the background."""
        if self._loaded.pop(key, None) is not None and self._link is not None and self._up.is_set():
            self._link.tell({"op": "unload", "model": key})

    def serves(self, key: str) -> bool:
        """True when a request for the model would be run now."""
        return key in self._loaded and self.is_up

    async def load(
        self, key: str, folder: Path, *, settings: ServingSettings, part: str, timeout_s: float
    ) -> None:
        """Load and warm up; returns when the model can serve. Other models go on serving meanwhile."""
        header = {
            "op": "load", "model": key, "folder": str(folder), "part": part, "timeout_s": timeout_s,
            "settings": settings.model_dump(mode="json"),
        }  # fmt: skip
        self._await_start.add(key)
        if self._start_waits:
            self.waits[key] = self._start_waits
        try:
            link = await self._started(timeout_s)
        finally:
            self._await_start.discard(key)
            self.waits.pop(key, None)
        try:
            await link.call(
                header, timeout_s=timeout_s + LOAD_GRACE_S, waits=lambda why: self.waits.update({key: why})
            )
        except DeadlineExceeded as error:
            if error.reason == SILENT:
                link.kill()  # its loading thread is stuck; the others come back in seconds
            raise
        finally:
            self.waits.pop(key, None)
        self._loaded[key] = _Loaded(header, timeout_s)

    async def unload(self, key: str) -> None:
        """Forget the model."""
        if self._loaded.pop(key, None) is not None and self._link is not None and self._up.is_set():
            with contextlib.suppress(MeshError):  # a dead process has forgotten it already
                await self._link.call({"op": "unload", "model": key}, timeout_s=10.0)

    async def infer(
        self, key: str, inputs: Sequence[Tensor], outputs: Sequence[str], *, timeout_s: float, priority: int
    ) -> tuple[list[Tensor], Times]:
        """Run the model. Refusals: queue full, deadline over, process down."""
        arrived = time.monotonic()
        await self._gate.enter(priority=priority, timeout_s=timeout_s)
        link = self._link
        if link is None or not self._up.is_set():
            self._gate.leave()
            raise Unavailable(
                f"the {self.framework} model server is down: {self._reason}", reason="RUNTIME_DOWN"
            )
        waited_s = time.monotonic() - arrived
        left_s = timeout_s - waited_s
        if left_s <= 0:
            self._gate.leave()
            raise DeadlineExceeded("it waited for a model server, and was never run", reason="DEADLINE_EXCEEDED")
        header = {
            "op": "infer", "model": key, "outputs": list(outputs), "budget_ns": int(left_s * 1e9),
            "priority": 0 if priority == NO_PRIORITY else priority,
        }  # fmt: skip
        try:
            reply, tensors = await link.call(header, inputs, timeout_s=left_s, answered=self._gate.leave)
        except Aborted as error:
            if error.reason != "CANCELLED":
                raise
            raise DeadlineExceeded(error.message, reason="DEADLINE_EXCEEDED") from None   # else nobody were here
        except DeadlineExceeded as error:
            if error.reason != SILENT:
                raise
            raise DeadlineExceeded("the model did not answer until then", reason="DEADLINE_EXCEEDED") from None
        queue_ns = int(waited_s * 1e9) + int(reply["queue_ns"])
        return tensors, Times(
            queue_ns, int(reply["input_ns"]), int(reply["compute_ns"]), int(reply["output_ns"]),
            int(reply["executions"]), int(reply.get("fresh_version", 0)),
        )  # fmt: skip

    async def state(self) -> Mapping[str, Any]:
        """What the process tells of itself (docs/reference/serving.md); empty while it is down or silent."""
        if self._link is None or not self._up.is_set():
            return {}
        try:
            reply, _ = await self._link.call({"op": "status"}, timeout_s=STATE_S)
        except MeshError:
            return {}
        found: Mapping[str, Any] = reply["status"]
        return found

    async def freshen(
        self, key: str, act: str, version: int, *, settings: ServingSettings, timeout_s: float
    ) -> dict[str, Any]:
        """Ask or tell a model that follows a job.

        What it is told it is also loaded with (`settings`) from now on: a process that dies of a version again and
        again need not be up to be told of another, nor need it answer in time. Where it says that it cannot
        (`REFUSED`), all is as before.
        """
        before = told = self._loaded.get(key)
        if act != "status" and before is not None:
            changed = {**before.header, "settings": settings.model_dump(mode="json")}
            told = self._loaded[key] = _Loaded(changed, before.timeout_s)
        try:
            link = await self._started(timeout_s)
            header = {"op": "fresh", "model": key, "act": act, "version": version}
            reply, _ = await link.call(header, timeout_s=timeout_s)
        except REFUSED:
            if before is not None and self._loaded.get(key) is told:
                self._loaded[key] = before
            raise
        return {"status": reply["status"], "versions": reply["versions"]}

    async def ask(self, header: Mapping[str, object], *, timeout_s: float) -> Mapping[str, object]:
        """A call that is no inference, as soon as the process is up."""
        async with asyncio.timeout(timeout_s):
            link = await self._started(timeout_s)
            reply, _ = await link.call(dict(header), timeout_s=timeout_s)
        return reply

    async def drained(self, timeout_s: float) -> bool:
        """Wait until nothing is in it; False when that took longer. Nothing more may be sent to it."""
        try:
            async with asyncio.timeout(timeout_s):
                while self.in_flight or not await self._idle():  # noqa: ASYNC110 (another process is waited for)
                    await asyncio.sleep(DRAIN_LOOK_S)
        except TimeoutError:
            return False
        return True

    async def _idle(self) -> bool:
        if not self.pid:
            return True                          # ended, or between two runs: nothing is in it
        try:
            return bool((await self.ask(PING, timeout_s=PING_S))["idle"])
        except (DeadlineExceeded, TimeoutError):
            return False                         # too busy to say
        except MeshError:
            return True                          # it ended: nothing is in it

    async def stop(self) -> None:
        """End the process; calls in flight fail."""
        self._up.clear()
        self._supervisor.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._supervisor
        for task in list(self._asides):
            task.cancel()
        await asyncio.gather(*self._asides, return_exceptions=True)
        for link in (self._link, self._coming):
            if link is not None:
                await link.stop()

    async def _started(self, timeout_s: float) -> Link:
        try:
            async with asyncio.timeout(timeout_s):
                await self._up.wait()
        except TimeoutError:
            raise Unavailable(
                f"the {self.framework} model server did not start: {self._reason}", reason="RUNTIME_DOWN"
            ) from None
        assert self._link is not None, "up without a process"
        return self._link

    async def _supervise(self) -> None:
        failures = 0
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                await self._run_once()
            except (OSError, MeshError, TimeoutError) as error:
                self._reason = str(error) or type(error).__name__
            if self._goes_on and self._coming is None:
                continue                         # another is started at once, and takes its place
            failed, self._coming = self._coming or self._link, None
            if not self._goes_on:
                self._up.clear()
            if failed is not None:
                failed.kill()
                await failed.ended.wait()
                self._reason = f"{self._reason} ({failed.exit})"
            failures = 1 if loop.time() - began > STABLE_S else failures + 1
            self.restarts += 1
            delay_s = self._limits.backoff_s[min(failures, len(self._limits.backoff_s)) - 1]
            self._log(
                f"the {self.framework} model server ended: {self._reason}; starting again in {delay_s} s"
            )
            await asyncio.sleep(delay_s)

    @property
    def _goes_on(self) -> bool:
        """It was told to go, and serves until another has its place."""
        return self.is_up and self._link is not None and self._link.leaving

    async def _run_once(self) -> None:
        """Start, bring the models back, and stay until the process ends, or is told to go."""
        before = self._link if self._goes_on else None
        link = await self._start(self.command, self._environment, self._told_why)
        self._start_waits = ""
        if before is None:
            self._link = link
        else:
            self._coming = link
        self.version = await link.hello(self._limits.start_s)
        await self._greet(link)
        brought = await self._bring_back(link)
        self._link, self._coming = link, None
        await self._renewed()
        self._reason = "it ended"
        self._up.set()
        for key in brought - self._loaded.keys():
            link.tell({"op": "unload", "model": key})    # it was not wanted any more meanwhile
        if before is not None:
            self._aside(self._leave(before))
        while not link.ended.is_set() and not link.leaving:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await link.ended.wait()
            if link.overdue_s > self._limits.hang_s:
                self._reason = f"it did not answer until {self._limits.hang_s} s after a call's deadline"
                link.kill()

    async def _bring_back(self, link: Link) -> set[str]:
        """All models that are wanted, also those that were loaded meanwhile into the one that it replaces."""
        done: dict[str, _Loaded] = {}
        while missing := {key: loaded for key, loaded in self._loaded.items() if done.get(key) is not loaded}:
            for key, loaded in missing.items():
                done[key] = loaded
                await self._reload(link, key, loaded)
        return set(done)

    async def _leave(self, link: Link) -> None:
        """What is in it is answered first."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                while not link.is_idle and not link.ended.is_set():  # noqa: ASYNC110 (another process answers)
                    await asyncio.sleep(DRAIN_LOOK_S)
        await link.stop()

    def _aside(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name=f"leave-{self.framework}")
        self._asides.add(task)
        task.add_done_callback(self._asides.discard)

    def _told_why(self, why: str) -> None:
        """What a start waits for, in place of what was known."""
        self._reason = self._start_waits = why
        self.waits.update(dict.fromkeys(self._await_start, why))

    async def _reload(self, link: Link, key: str, loaded: _Loaded) -> None:
        try:
            await link.call(dict(loaded.header), timeout_s=loaded.timeout_s + LOAD_GRACE_S)
            self._crashes_on_reload.pop(key, None)
        except Unavailable:
            crashes = self._crashes_on_reload[key] = self._crashes_on_reload.get(key, 0) + 1
            if crashes >= RELOAD_ATTEMPTS:
                self._give_up(key, "its model server dies while loading it")
            raise
        except MeshError as error:
            self._give_up(key, str(error))

    def _give_up(self, key: str, reason: str) -> None:
        self._loaded.pop(key, None)
        self._crashes_on_reload.pop(key, None)
        self._lost(key, reason)
