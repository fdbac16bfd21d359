"""Rates of many callers in one transaction: a commit costs a sync of the disk, whatever is in it."""

import asyncio
from collections import deque
from collections.abc import Sequence

from recmesh.runtime.errors import ResourceExhausted
from services.forecaster.store.sql import Observation, SqlStore

MAX_WAITING = 200_000
"""Points; what comes beyond them is refused, and comes again."""
MAX_TOGETHER = 20_000
"""Points of one transaction."""
Told = list[int | ResourceExhausted]


class Grouped:
    """While one transaction is under way, others' rates gather for the next."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store
        self._waiting: deque[tuple[Sequence[Observation], asyncio.Future[Told]]] = deque()
        self._points = 0
        self._writer: asyncio.Task[None] | None = None

    async def put(self, observations: Sequence[Observation]) -> Told:
        """As `SqlStore.put_many`; durable when it returns. ResourceExhausted when too much waits."""
        count = _count(observations)
        if self._points and self._points + count > MAX_WAITING:
            raise ResourceExhausted(f"{self._points} rates wait for the database", reason="BUSY")
        asked: asyncio.Future[Told] = asyncio.get_running_loop().create_future()
        self._points += count
        self._waiting.append((observations, asked))
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write(), name="rates-writer")
        return await asked

    async def _write(self) -> None:
        while self._waiting:
            taken = [self._waiting.popleft()]
            size = _count(taken[0][0])
            while self._waiting and size + _count(self._waiting[0][0]) <= MAX_TOGETHER:
                size += _count(self._waiting[0][0])
                taken.append(self._waiting.popleft())
            self._points -= size
            together = [each for observations, _ in taken for each in observations]
            try:
                told = await asyncio.to_thread(self._store.put_many, together)
            except Exception as error:
                for _, asked in taken:
                    if not asked.done():        # its caller may have left
                        asked.set_exception(error)
                continue
            for observations, asked in taken:
                mine, told = told[: len(observations)], told[len(observations) :]
                if not asked.done():
                    asked.set_result(mine)


def _count(observations: Sequence[Observation]) -> int:
    return sum(len(each.points) for each in observations) + len(observations)
