"""A bounded queue before a model server: by priority, then by deadline; refuses what it cannot hold."""

import asyncio
import heapq
import itertools

from recmesh.runtime.errors import DeadlineExceeded, ResourceExhausted


class Gate:
    """At most `slots` inside, at most `waiting` before it. While a slot is free nobody waits."""

    def __init__(self, *, slots: int, waiting: int) -> None:
        self._free = self._slots = slots
        self._limit = waiting
        self._order = itertools.count()
        self._waiting: list[tuple[int, float, int, asyncio.Future[None]]] = []
        """Those who gave up among them, until it would be their turn."""
        self._queued = 0

    @property
    def queued(self) -> int:
        """How many wait."""
        return self._queued

    @property
    def inside(self) -> int:
        """How many have a slot."""
        return self._slots - self._free

    async def enter(self, *, priority: int, timeout_s: float) -> None:
        """Take a slot. ResourceExhausted: the queue is full. DeadlineExceeded: none came free in time."""
        if self._free:
            self._free -= 1
            return
        if self._queued >= self._limit:
            raise ResourceExhausted(
                f"{self._limit} requests wait for this model's runtime already; try again later",
                reason="QUEUE_FULL",
            )
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        heapq.heappush(self._waiting, (priority, loop.time() + timeout_s, next(self._order), turn))
        self._queued += 1
        try:
            async with asyncio.timeout(timeout_s):
                await turn
        except TimeoutError:
            self._give_back(turn)
            raise DeadlineExceeded(
                "it waited for a model server that has as many as it may hold, and was never run",
                reason="DEADLINE_EXCEEDED",
            ) from None
        except asyncio.CancelledError:
            self._give_back(turn)
            raise

    def leave(self) -> None:
        """Free a slot: the next in line takes it."""
        while self._waiting:
            *_, turn = heapq.heappop(self._waiting)
            if not turn.done():
                turn.set_result(None)
                self._queued -= 1
                return
        self._free += 1

    def _give_back(self, turn: "asyncio.Future[None]") -> None:
        """Out of the queue; where the turn came in the same moment as the end of waiting, it is passed on."""
        if turn.done() and not turn.cancelled():
            self.leave()
        else:
            self._queued -= 1
