"""Whether a service can do its work: its stores are asked again and again, and everybody is told the same."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence

from recmesh.runtime.clock import Clock, system_clock
from recmesh.runtime.lifecycle import Loop, ReadyAware
from recmesh.runtime.telemetry import get_logger

Probe = Callable[[], Awaitable[object]]
"""Returns when the store answers; raises what it says otherwise."""

_log = get_logger(__name__)


class Readiness:
    """A component, the last one to start: asks each probe, and tells `followers` (the gRPC health) of changes.

    `known` answers at once why the service is not ready, or ''. A store counts as away when it has missed
    `patience` questions in a row, and as back with its first answer. A question that is still under way is not
    asked again, so that a store which hangs holds one call of ours, not more and more.
    """

    name = "readiness"

    def __init__(
        self, probes: Mapping[str, Probe], *, known: Callable[[], str] = lambda: "",
        followers: Sequence[ReadyAware] = (), every_s: float = 2.0, timeout_s: float = 2.0, patience: int = 2,
        clock: Clock = system_clock,
    ) -> None:
        self._probes = dict(probes)
        self._known = known
        self._followers = tuple(followers)
        self._every_s = every_s
        self._timeout_s = timeout_s
        self._patience = patience
        self._missed: Counter[str] = Counter()
        self._asked: dict[str, asyncio.Future[object]] = {}
        self._away = ""
        self._running = False
        self._told = True
        self._loop = Loop("readiness", self.look, clock=clock)

    def reason(self) -> str:
        """Why the service is not ready, or ''; costs nothing."""
        return self._known() or self._away

    async def start(self) -> None:
        """Begins to ask."""
        await self._loop.start()

    async def stop(self) -> None:
        """Asks no more."""
        await self._loop.stop()
        for question in self._asked.values():
            question.cancel()
        await asyncio.gather(*self._asked.values(), return_exceptions=True)

    def set_ready(self, ready: bool) -> None:
        """Told by the lifecycle; the followers hear it from there too, and are corrected at the next look."""
        self._running, self._told = ready, True

    async def look(self) -> float:
        """Asks every store once; returns the pause until the next look."""
        answers = await asyncio.gather(*(self._ask(what, probe) for what, probe in self._probes.items()))
        self._away = "; ".join(filter(None, answers))
        self._tell(self.reason())
        return self._every_s

    async def _ask(self, what: str, probe: Probe) -> str:
        """Why it counts as away, or ''."""
        question = self._asked.pop(what, None) or asyncio.ensure_future(probe())
        done, _ = await asyncio.wait({question}, timeout=self._timeout_s)
        if not done:
            self._asked[what] = question
            error: object = f"no answer within {self._timeout_s:g} s"
        elif (failure := question.exception()) is None:
            self._missed[what] = 0
            return ""
        else:
            error = failure
        self._missed[what] += 1
        return f"{what} is away: {error}" if self._missed[what] >= self._patience else ""

    def _tell(self, reason: str) -> None:
        ready = not reason
        if not self._running or ready == self._told:
            return
        self._told = ready
        if reason:
            _log.warning("not ready: %s", reason)
        else:
            _log.info("ready again")
        for follower in self._followers:
            follower.set_ready(ready)
