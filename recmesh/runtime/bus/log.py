"""An append-only log per subject: what is appended stays, in order, and races are seen."""

import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from nats.js import api
from nats.js import errors as js_errors

from recmesh.runtime.bus.link import Link, Session
from recmesh.runtime.bus.pull import Place, follow
from recmesh.runtime.bus.stored import DUPLICATE_WINDOW_S, ensure_stream, store


class Log:
    """A stream on file storage without limits of age or count; nothing in it is changed or evicted."""

    def __init__(self, link: Link, name: str, subject: str, *, replicas: int = 1) -> None:
        self.name = name
        self._link = link
        self._config = api.StreamConfig(
            name=name, subjects=[subject], storage=api.StorageType.FILE, discard=api.DiscardPolicy.NEW,
            retention=api.RetentionPolicy.LIMITS, num_replicas=replicas, duplicate_window=DUPLICATE_WINDOW_S,
        )
        self._ensured = False

    async def append(self, subject: str, records: bytes, *, expected_last: int | None = None) -> int:
        """The sequence of the appended message, unique and growing over the whole log.

        `expected_last` is the subject's last sequence as the caller knows it (0: empty): Aborted when
        somebody appended meanwhile; so of two writers one wins, and knows. InvalidArgument when the
        records exceed what NATS carries in one message (1 MiB).
        """
        await self._ensure()
        return await store(
            self._link, subject, records, message_id=uuid.uuid4().hex, expected_last=expected_last,
            stream=self.name,
        )

    async def read(self, subject: str, from_seq: int = 1) -> AsyncIterator[tuple[int, bytes]]:
        """(sequence, records) from `from_seq` to the end as it was when the reading began."""
        async with aclosing(self._follow(subject, from_seq, to_end=True)) as messages:
            async for item in messages:
                yield item

    async def follow(self, subject: str, from_seq: int = 1) -> AsyncIterator[tuple[int, bytes]]:
        """The same, then whatever is appended later, for ever."""
        async with aclosing(self._follow(subject, from_seq, to_end=False)) as messages:
            async for item in messages:
                yield item

    async def last(self, subject: str) -> int:
        """The subject's last sequence; 0 when it is empty."""
        await self._ensure()

        async def read(session: Session) -> int:
            try:
                return int((await session.js.get_last_msg(self.name, subject)).seq or 0)
            except js_errors.NotFoundError:
                return 0

        return await self._link.call(f"last of {subject}", read)

    async def purge(self, subject: str, *, below: int = 0) -> None:
        """Remove everything under the subject: its owner is gone. `below`: only what has a lower sequence."""
        await self._ensure()

        async def remove(session: Session) -> None:
            await session.js.purge_stream(self.name, subject=subject, seq=below or None)

        await self._link.call(f"purge {subject}", remove)

    async def _follow(
        self, subject: str, from_seq: int, *, to_end: bool
    ) -> AsyncGenerator[tuple[int, bytes], None]:
        await self._ensure()
        place = Place(subject, from_sequence=max(1, from_seq))
        async with aclosing(follow(self._link, self.name, place, to_end=to_end)) as messages:
            async for message in messages:
                yield message.metadata.sequence.stream, message.data

    async def _ensure(self) -> None:
        if not self._ensured:
            await ensure_stream(self._link, self._config)
            self._ensured = True
