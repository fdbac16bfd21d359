"""Joined samples, and late labels, as messages of topics."""

from collections.abc import Mapping, Sequence
from contextlib import aclosing

from nats.js import api

from recmesh.join.domain import Joined, Label
from recmesh.join.messages import CONSUMED, FATE, consumed, message_id, row_of
from recmesh.partitions import EVENT_TIME, Limits, ensure, fnv1a32, stream_of, subject_of
from recmesh.runtime.bus import Link, Place, Publisher, follow
from recmesh.runtime.bus.link import Session
from recmesh.spec.join import LabelJoin


class Topics:
    """The topics that a join writes to; what is in them after the last note is told when it starts."""

    def __init__(self, link: Link, spec: LabelJoin) -> None:
        self._link, self._spec = link, spec
        self._publisher = Publisher(link)
        self._partitions = 0
        self._ends: dict[str, int] = {}
        self._sent: list[Joined | Label] = []

    async def start(self, ends: Mapping[str, int] | None) -> list[Mapping[str, str]]:
        """Makes what is missing. Headers of messages after these ends (by stream), which nobody noted; None: there is
        no note of this join, so nothing can be of it."""
        streams: dict[str, str] = {}
        if self._spec.topic is not None:
            topic, wanted = self._spec.topic.topic, self._spec.topic
            limits = Limits(wanted.max_age, wanted.max_bytes or 0, wanted.replicas)
            self._partitions = await ensure(
                self._link, topic, wanted.partitions, limits=limits, field="topic.partitions"
            )
            streams |= {stream_of(topic, n): subject_of(topic, n) for n in range(self._partitions)}
        if late := self._spec.late_topic:
            await ensure(self._link, late, 1, limits=Limits(), field="late_topic")
            streams |= {stream_of(late, 0): subject_of(late, 0)}
        found: list[Mapping[str, str]] = []
        for stream, subject in streams.items():
            last = await self._last(stream)
            if ends is not None:
                found += await self._headers(stream, subject, ends.get(stream, 0) + 1)
            self._ends[stream] = last
        await self._publisher.start()
        return found

    async def stop(self) -> None:
        """Nothing is waited for."""
        await self._publisher.stop()

    @property
    def ends(self) -> dict[str, int]:
        """By stream: up to where all that is of this join was acknowledged by `flush`."""
        return {stream: max(end, self._publisher.last.get(stream, 0)) for stream, end in self._ends.items()}

    async def join(self, joined: Joined) -> None:
        """Send a sample with its label."""
        assert self._spec.topic is not None
        sample = joined.sample
        headers = {EVENT_TIME: repr(sample.time), FATE: joined.fate.value}
        if joined.labels:
            headers[CONSUMED] = consumed(joined.labels)
        partition = fnv1a32(sample.key.encode()) % self._partitions
        await self._publisher.send(
            subject_of(self._spec.topic.topic, partition), row_of(joined, self._spec.label),
            message_id=message_id(self._spec.name, sample.at), headers=headers,
        )
        self._sent.append(joined)

    async def late(self, label: Label) -> None:
        """Send a label that came too late, as it was."""
        assert self._spec.late_topic is not None
        await self._publisher.send(
            subject_of(self._spec.late_topic, 0), label.body, message_id=message_id(self._spec.name, label.at),
            headers={EVENT_TIME: repr(label.time)},
        )
        self._sent.append(label)

    async def flush(self) -> Sequence[Joined | Label]:
        """What is stored by now, and was not told before."""
        await self._publisher.flush()
        sent, self._sent = self._sent, []
        return sent

    async def _last(self, stream: str) -> int:
        async def ask(session: Session) -> int:
            return int((await session.js.stream_info(stream)).state.last_seq)

        return await self._link.call(f"state of {stream}", ask, timeout_s=30)

    async def _headers(self, stream: str, subject: str, begin: int) -> list[Mapping[str, str]]:
        place = Place(subject, from_sequence=begin, headers_only=True)
        async with aclosing(follow(self._link, stream, place, to_end=True)) as messages:
            return [message.headers or {} async for message in messages]


def id_in(headers: Mapping[str, str]) -> str:
    """The message's id."""
    return headers.get(api.Header.MSG_ID.value, "")


