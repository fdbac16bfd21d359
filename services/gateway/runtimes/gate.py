"""A bounded queue before a model server: by priority, then by arrival; refuses what it cannot hold."""

import asyncio
import heapq
import itertools

from recmesh.runtime.errors import DeadlineExceeded, ResourceExhausted


class Gate:
    """At most `slots` inside, at most `waiting` before it."""

    def __init__(self, *, slots: int, waiting: int) -> None:
        self._free = slots
        self._limit = waiting
        self._order = itertools.count()
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []

    @property
    def queued(self) -> int:
        """How many wait."""
        return sum(not future.done() for _, _, future in self._waiting)

    async def enter(self, *, priority: int, timeout_s: float) -> None:
        """Take a slot. ResourceExhausted: the queue is full. DeadlineExceeded: none came free in time."""
        if self._free and not self.queued:
            self._free -= 1
            return
        if self.queued >= self._limit:
            raise ResourceExhausted(
                f"{self._limit} requests wait for this model's runtime already; try again later",
                reason="QUEUE_FULL",
            )
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (priority, next(self._order), turn))
        try:
            async with asyncio.timeout(timeout_s):
                await turn
        except TimeoutError:
            self._give_back(turn)
            raise DeadlineExceeded(
                "the deadline was over before the model was free", reason="DEADLINE_IN_QUEUE"
            ) from None
        except asyncio.CancelledError:
            self._give_back(turn)
            raise

    def leave(self) -> None:
        """Free a slot: the next in line takes it."""
        while self._waiting:
            _, _, turn = heapq.heappop(self._waiting)
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1

    def _give_back(self, turn: "asyncio.Future[None]") -> None:
        """The turn came in the same moment as the end of waiting: pass it on."""
        if turn.done() and not turn.cancelled():
            self.leave()
