"""Where a replay's messages go."""

from collections.abc import Mapping
from contextlib import aclosing
from typing import Protocol

from nats.js import api

from recmesh.partitions import EVENT_TIME, Limits, ensure, stream_of, subject_of
from recmesh.replay.resume import There, number_of, there
from recmesh.runtime.bus import Link, Place, Publisher, follow
from recmesh.runtime.bus.link import Session
from recmesh.runtime.bus.publisher import IN_FLIGHT


class Sink(Protocol):
    """A topic of partitions; what is sent to one of them is stored there in the order of sending."""

    partitions: int
    """Once started."""

    @property
    def stored(self) -> int:
        """Messages acknowledged, those that were there before among them."""
        ...

    @property
    def doubles(self) -> int:
        """Of these, messages that were there before."""
        ...

    async def start(self) -> None:
        """Make what is missing of the topic."""
        ...

    async def stop(self) -> None:
        """Free everything; nothing is waited for."""
        ...

    async def reached(self, offsets: Mapping[str, int], total: int) -> list[There]:
        """What is there, by partition."""
        ...

    async def send(self, partition: int, payload: bytes, *, message_id: str, key: str, at: float | None) -> None:
        """Returns when it is on its way, which waits while too much is. `at`: event time, Unix seconds."""
        ...

    async def flush(self) -> None:
        """Returns when all is stored."""
        ...


class JetStreamSink:
    """See Sink."""

    def __init__(self, link: Link, topic: str, *, partitions: int | None, limits: Limits) -> None:
        self.partitions = 0
        self._link, self._topic, self._wanted, self._limits = link, topic, partitions, limits
        self._publisher = Publisher(link)
        self._subjects: list[str] = []

    @property
    def stored(self) -> int:
        """See Sink."""
        return self._publisher.stored

    @property
    def doubles(self) -> int:
        """See Sink."""
        return self._publisher.doubles

    async def start(self) -> None:
        """See Sink; InvalidArgument where the topic has another number of partitions."""
        self.partitions = await ensure(
            self._link, self._topic, self._wanted, limits=self._limits, field="partitions"
        )
        self._subjects = [subject_of(self._topic, partition) for partition in range(self.partitions)]
        await self._publisher.start()

    async def stop(self) -> None:
        """See Sink."""
        await self._publisher.stop()

    async def reached(self, offsets: Mapping[str, int], total: int) -> list[There]:
        """See Sink: headers of the last messages of each partition, of all of them where others wrote there too."""
        return [await self._reached(partition, offsets, total) for partition in range(self.partitions)]

    async def _reached(self, partition: int, offsets: Mapping[str, int], total: int) -> There:
        stream = stream_of(self._topic, partition)

        async def state(session: Session) -> tuple[int, int]:
            found = (await session.js.stream_info(stream)).state
            return found.first_seq, found.last_seq

        first, last = await self._link.call(f"state of {stream}", state)
        begin = max(1, last + 1 - 2 * IN_FLIGHT)
        numbers = await self._numbers(stream, partition, begin, offsets, total)
        known = there(numbers, in_flight=IN_FLIGHT, whole=begin <= first == 1)
        if known is None:
            numbers = await self._numbers(stream, partition, 1, offsets, total)
            # What is older than all that is left was there once: limits of the stream took it.
            known = There(min(numbers, default=0) if first > 1 else 0, frozenset(numbers))
        return known

    async def _numbers(
        self, stream: str, partition: int, begin: int, offsets: Mapping[str, int], total: int
    ) -> set[int]:
        place = Place(subject_of(self._topic, partition), from_sequence=begin, headers_only=True)
        found = set()
        async with aclosing(follow(self._link, stream, place, to_end=True)) as messages:
            async for message in messages:
                number = number_of((message.headers or {}).get(api.Header.MSG_ID.value, ""), offsets, total)
                if number is not None:
                    found.add(number)
        return found

    async def send(self, partition: int, payload: bytes, *, message_id: str, key: str, at: float | None) -> None:
        """See Sink."""
        headers = None if at is None else {EVENT_TIME: repr(at)}
        await self._publisher.send(self._subjects[partition], payload, message_id=message_id, headers=headers)

    async def flush(self) -> None:
        """See Sink."""
        await self._publisher.flush()
