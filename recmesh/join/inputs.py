"""Partitions of topics, read side by side: whichever is behind in event time comes first, so that little waits."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Protocol

from recmesh.join.domain import Position, Read, Side
from recmesh.join.messages import Message
from recmesh.partitions import EVENT_TIME, count_of, stream_of, subject_of, told_moment
from recmesh.runtime.bus import Link, Place, follow
from recmesh.runtime.bus.link import Session
from recmesh.runtime.clock import Clock, system_clock
from recmesh.runtime.errors import NotFound, Violation

AT_HAND = 512
"""Messages of a partition that are read ahead."""
_PATIENCE_S = 5.0
"""So long a partition's older events are waited for; they may have been removed since."""


class Input(Protocol):
    """A topic."""

    side: Side
    partitions: int
    """Once started."""

    async def start(self) -> None:
        """NotFound when there is no such topic."""
        ...

    async def bounds(self, partition: int) -> tuple[int, int]:
        """First and last sequence that are there; the last is one before the first where nothing is."""
        ...

    def messages(self, partition: int, begin: int, *, to_end: bool) -> AsyncGenerator[Message, None]:
        """From a sequence on, in order, each once; with `to_end` those that are there now, else for ever."""
        ...


class JetStreamInput:
    """See Input."""

    def __init__(self, link: Link, side: Side, topic: str) -> None:
        self.side: Side = side
        self.partitions = 0
        self._link, self._topic = link, topic

    async def start(self) -> None:
        """See Input."""
        self.partitions = await count_of(self._link, self._topic)
        if not self.partitions:
            reason = f"there is no topic {self._topic} (no stream {stream_of(self._topic, 0)})"
            raise NotFound(reason, violations=[Violation(f"{self.side}.topic", reason)])

    async def bounds(self, partition: int) -> tuple[int, int]:
        """See Input."""
        stream = stream_of(self._topic, partition)

        async def ask(session: Session) -> tuple[int, int]:
            state = (await session.js.stream_info(stream)).state
            return max(state.first_seq, 1), state.last_seq

        return await self._link.call(f"state of {stream}", ask, timeout_s=30)

    async def messages(self, partition: int, begin: int, *, to_end: bool) -> AsyncGenerator[Message, None]:
        """See Input."""
        stream = stream_of(self._topic, partition)
        place = Place(subject_of(self._topic, partition), from_sequence=begin)
        async with aclosing(follow(self._link, stream, place, to_end=to_end)) as found:
            async for message in found:
                meta = message.metadata
                time = told_moment((message.headers or {}).get(EVENT_TIME))
                if time is None:
                    time = meta.timestamp.timestamp()
                at = Position(self.side, partition, meta.sequence.stream)
                yield Message(at, message.data, time, meta.num_pending == 0)


@dataclass
class _Pump:
    read: int
    """The last sequence that was read."""
    there: int
    """The last one that was there when reading began."""
    lacks_since: float | None = None
    """Since when others wait for it."""
    at_hand: deque[Read] = field(default_factory=deque)
    room: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None

    @property
    def is_behind(self) -> bool:
        """Nothing is at hand of what was there when reading began."""
        return not self.at_hand and self.read < self.there and self.task is not None and not self.task.done()


class Merge:
    """Events of all partitions: what was there at the beginning in the order of time, the rest as it comes."""

    def __init__(self, parse: Callable[[Message], Read], clock: Clock = system_clock) -> None:
        self._parse, self._clock = parse, clock
        self._pumps: dict[tuple[Side, int], _Pump] = {}
        self._arrived = asyncio.Event()
        self.fresh: set[tuple[Side, int]] = set()
        """Partitions that had nothing at hand, and have now; whoever looks at them empties it."""

    def open(self, topic: Input, begins: Mapping[int, tuple[int, int]], *, to_end: bool) -> None:
        """Read these partitions from these sequences on; with each the last one that is there now."""
        for partition, (begin, there) in begins.items():
            place: tuple[Side, int] = topic.side, partition
            pump = self._pumps[place] = _Pump(begin - 1, there)
            messages = topic.messages(partition, begin, to_end=to_end)
            pump.task = asyncio.create_task(self._read(place, pump, messages), name=f"{topic.side} {partition}")

    async def close(self) -> None:
        """No more reading."""
        tasks = [pump.task for pump in self._pumps.values() if pump.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def take(self, sides: Collection[Side]) -> Read | None:
        """The oldest event at hand of these sides; None: nothing is. Errors of reading are raised here."""
        best: _Pump | None = None
        for (side, _), pump in self._pumps.items():
            if not pump.at_hand:
                if pump.task is not None and pump.task.done():
                    pump.task.result()
                continue
            if side in sides and (best is None or pump.at_hand[0].time < best.at_hand[0].time):
                best = pump
        if best is None or self._is_held_up():
            return None
        event = best.at_hand.popleft()
        best.room.set()
        return event

    def _is_held_up(self) -> bool:
        """By a partition that may hold older events. Not for ever: what was there may be removed meanwhile."""
        behind = [pump for pump in self._pumps.values() if pump.is_behind]
        if not behind:
            return False
        now = self._clock.monotonic()
        for pump in behind:
            pump.lacks_since = now if pump.lacks_since is None else pump.lacks_since
        return any(pump.lacks_since is not None and now - pump.lacks_since < _PATIENCE_S for pump in behind)

    def waiting(self) -> list[tuple[Side, int]]:
        """Partitions with something at hand."""
        return [place for place, pump in self._pumps.items() if pump.at_hand]

    def ended(self, side: Side) -> bool:
        """Nothing of it is at hand, and nothing will be."""
        return all(
            not pump.at_hand and pump.task is not None and pump.task.done()
            for (of, _), pump in self._pumps.items() if of == side
        )

    @property
    def over(self) -> bool:
        """That of both topics."""
        return self.ended("samples") and self.ended("labels")

    async def wait(self, timeout_s: float) -> None:
        """Until something arrives, or the time is over."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._arrived.wait()
        except TimeoutError:
            return
        finally:
            self._arrived.clear()

    async def _read(
        self, place: tuple[Side, int], pump: _Pump, messages: AsyncGenerator[Message, None]
    ) -> None:
        try:
            async with aclosing(messages):
                async for message in messages:
                    while len(pump.at_hand) >= AT_HAND:
                        pump.room.clear()
                        await pump.room.wait()
                    if not pump.at_hand:
                        self.fresh.add(place)
                    pump.at_hand.append(self._parse(message))
                    pump.read, pump.lacks_since = message.at.sequence, None
                    self._arrived.set()
        finally:
            self._arrived.set()
