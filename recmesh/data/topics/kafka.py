"""Topics in Kafka, by librdkafka (confluent-kafka). Consumers are assigned by us: no group protocol, no rebalancing."""

import threading
import time as clock
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition

from recmesh.data.topics.interface import READ_S, Message, Partition, Span
from recmesh.runtime.errors import MeshError, NotFound, PermissionDenied, Unauthenticated, Unavailable

SCHEME = "kafka:"
FETCH = 4096
_NO_GROUP = "recmesh-reader"
"""librdkafka wants a name; nothing is committed under it."""
_GONE = (KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART)
T = TypeVar("T")


class KafkaTopic:
    """See Topic."""

    def __init__(self, topic: str, *, servers: str, options: Mapping[str, str]) -> None:
        self._topic = topic
        self._settings: dict[str, Any] = {
            "bootstrap.servers": servers, "enable.auto.commit": False, "enable.partition.eof": True,
            "auto.offset.reset": "error", "isolation.level": "read_committed", "fetch.wait.max.ms": 50,
            "log_level": 2, **options,
        }
        self._lock = threading.Lock()
        self._reader: Consumer | None = None

    def partitions(self) -> Sequence[Partition]:
        """See Topic."""
        def listed(consumer: Consumer) -> list[Partition]:
            found = consumer.list_topics(self._topic, timeout=READ_S).topics.get(self._topic)
            if found is None or found.error is not None or not found.partitions:
                raise NotFound(f"there is no topic {self._topic} in Kafka", reason="NO_TOPIC")
            numbers = sorted(found.partitions)
            return [Partition(self._uri(number), "", self._span(consumer, number)) for number in numbers]

        return self._asked(listed)

    def after(self, uri: str, time: float) -> int | None:
        """See Topic. By Kafka's own index of times."""
        def sought(consumer: Consumer) -> int | None:
            at = TopicPartition(self._topic, self._number(uri), int(time * 1000))
            [found] = consumer.offsets_for_times([at], timeout=READ_S)
            if found.error is not None:
                raise KafkaException(found.error)
            return None if found.offset in (OFFSET_END, -1) else int(found.offset)

        return self._asked(sought)

    def time_of(self, uri: str, offset: int) -> float | None:
        """See Topic."""
        def read(consumer: Consumer) -> float | None:
            found = self._fetched(consumer, self._number(uri), offset, None, most=1)
            return found[0].time if found else None

        return self._asked(read)

    def read(self, uri: str, lo: int, hi: int) -> list[Message]:
        """See Topic."""
        return self._asked(lambda consumer: self._fetched(consumer, self._number(uri), lo, hi, most=hi - lo))

    def committed(self, group: str) -> Mapping[str, int]:
        """See Topic."""
        uris = [partition.uri for partition in self.partitions()]
        with self._of(group) as consumer:
            asked = [TopicPartition(self._topic, self._number(uri)) for uri in uris]
            found = _told(lambda: consumer.committed(asked, timeout=READ_S))
        return {self._uri(each.partition): int(each.offset) for each in found if each.offset >= 0}

    def commit(self, group: str, offsets: Mapping[str, int]) -> None:
        """See Topic. Kafka's own offsets of the group, for whatever watches its lag."""
        listed = [TopicPartition(self._topic, self._number(uri), offset) for uri, offset in offsets.items()]
        with self._of(group) as consumer:
            done = _told(lambda: consumer.commit(offsets=listed, asynchronous=False))
        for each in done or []:
            if each.error is not None:
                raise _mesh_error(each.error)

    def close(self) -> None:
        """See Topic."""
        with self._lock:
            if self._reader is not None:
                self._reader.close()
                self._reader = None

    # ---- inside

    def _asked(self, call: Callable[[Consumer], T]) -> T:
        """By the one consumer that reads; after an error another one is made."""
        with self._lock:
            if self._reader is None:
                self._reader = Consumer({**self._settings, "group.id": _NO_GROUP})
            consumer = self._reader
            try:
                return _told(lambda: call(consumer))
            except Unavailable:
                self._reader = None
                consumer.close()
                raise

    def _of(self, group: str) -> "_Closing":
        return _Closing(Consumer({**self._settings, "group.id": group}))

    def _span(self, consumer: Consumer, number: int) -> Span:
        first, end = consumer.get_watermark_offsets(TopicPartition(self._topic, number), timeout=READ_S)
        return Span(first, end)

    def _fetched(self, consumer: Consumer, number: int, lo: int, hi: int | None, *, most: int) -> list[Message]:
        """At most so many messages from `lo` on, those from `hi` on left out. Offsets without messages (transactions,
        compaction) are passed over."""
        span = self._span(consumer, number)
        at, end = max(lo, span.first), span.end if hi is None else min(hi, span.end)
        found: list[Message] = []
        if at >= end:
            return found
        deadline = clock.monotonic() + READ_S
        consumer.assign([TopicPartition(self._topic, number, at)])
        try:
            while at < end and len(found) < most:
                if clock.monotonic() >= deadline:
                    raise Unavailable(f"{self._uri(number)}: no message {at} within {READ_S:g} s", reason="KAFKA_AWAY")
                for message in consumer.consume(min(FETCH, most - len(found)), timeout=0.5):
                    error, offset = message.error(), message.offset() or 0
                    if error is not None and error.code() != KafkaError._PARTITION_EOF:
                        raise KafkaException(error)
                    if error is not None:       # what is behind has no messages
                        at = max(at, offset)
                        continue
                    at = offset + 1
                    if offset < end:
                        found.append(Message(offset, message.timestamp()[1] / 1000, message.value() or b""))
            return found
        finally:
            consumer.unassign()

    def _uri(self, number: int) -> str:
        return f"{SCHEME}{self._topic}/{number}"

    def _number(self, uri: str) -> int:
        return int(uri.rpartition("/")[2])


class _Closing:
    """A consumer for one call."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    def __enter__(self) -> Consumer:
        return self._consumer

    def __exit__(self, *error: object) -> None:
        self._consumer.close()


def _told(call: Callable[[], T]) -> T:
    try:
        return call()
    except KafkaException as error:
        raise _mesh_error(error.args[0]) from None


def _mesh_error(error: KafkaError) -> MeshError:
    text = f"Kafka: {error.str()}"
    if error.code() in _GONE:
        return NotFound(text, reason="NO_TOPIC")
    if error.code() in (KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED):
        return Unauthenticated(text, reason="KAFKA_AUTH")
    if error.code() in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED):
        return PermissionDenied(text, reason="KAFKA_AUTH")
    return Unavailable(text, reason="KAFKA_AWAY")
