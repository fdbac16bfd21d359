"""The streams of a topic's partitions: how many there are, and making those that are missing."""

from dataclasses import dataclass

from nats.js import api
from nats.js import errors as js_errors

from recmesh.partitions.naming import stream_of, subject_of
from recmesh.runtime.bus.link import Link, Session
from recmesh.runtime.bus.stored import DUPLICATE_WINDOW_S, ensure_stream
from recmesh.runtime.errors import InvalidArgument, Violation

MOST_PARTITIONS = 4096


@dataclass(frozen=True, slots=True)
class Limits:
    """Of each partition's stream; the oldest messages go first. 0: none."""

    max_age_s: float = 0.0
    max_bytes: int = 0
    replicas: int = 1
    unsynced: bool = False
    """The server answers before a message is on its disk, even where it syncs all else: much faster, and what it had
    not written when it dies is gone."""


async def count_of(link: Link, topic: str) -> int:
    """How many partitions a topic has; 0 when there is no such topic."""

    async def count(session: Session) -> int:
        found = 0
        while found < MOST_PARTITIONS:
            try:
                await session.js.stream_info(stream_of(topic, found))
            except js_errors.NotFoundError:
                break
            found += 1
        return found

    return await link.call(f"partitions of {topic}", count, timeout_s=30)


async def ensure(link: Link, topic: str, partitions: int | None, *, limits: Limits, field: str) -> int:
    """The number of partitions of a topic, made when it is new (1 unless `partitions` says more).

    A topic that is there stays as it is; InvalidArgument naming `field` when it has another number of partitions,
    because each key would then be in two of them.
    """
    present = await count_of(link, topic)
    if present and partitions is not None and partitions != present:
        reason = f"{topic} has {present} partition(s), not {partitions}"
        raise InvalidArgument(reason, violations=[Violation(field, reason)])
    if present:
        return present
    wanted = partitions or 1                      # from the last one down: a topic is there when its first one is
    for partition in reversed(range(wanted)):
        await ensure_stream(link, api.StreamConfig(
            name=stream_of(topic, partition), subjects=[subject_of(topic, partition)], storage=api.StorageType.FILE,
            discard=api.DiscardPolicy.OLD, max_age=limits.max_age_s, max_bytes=limits.max_bytes or -1,
            num_replicas=limits.replicas, allow_direct=True, duplicate_window=_window(limits),
            persist_mode=api.PersistMode.ASYNC if limits.unsynced else None,
            description=f"Partition {partition} of the topic {topic}",
        ))
    return wanted


def _window(limits: Limits) -> float:
    """The server wants it within the age."""
    return min(DUPLICATE_WINDOW_S, limits.max_age_s or DUPLICATE_WINDOW_S)
