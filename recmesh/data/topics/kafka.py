"""Topics in Kafka, by librdkafka (confluent-kafka). Consumers are assigned by us: no group protocol, no rebalancing."""

import threading
import time as clock
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, TypeVar

from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

from recmesh.data.faults import wrong
from recmesh.data.topics.interface import NOT_THERE_YET, READ_S, Message, Partition, Span
from recmesh.runtime.errors import InvalidArgument, MeshError, NotFound, PermissionDenied, Unauthenticated, Unavailable

SCHEME = "kafka:"
FETCH = 4096
LIST_S = 10.0
"""Within it Kafka says which partitions a topic has: less than whoever submits a job waits."""
TRY_S = 1.0, 10.0
"""So long the library waits before it is asked what keeps it from connecting: at first, and at most."""
_NO_GROUP = "recmesh-reader"
"""librdkafka wants a name; nothing is committed under it."""
_GONE = (KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART)
_REFUSED = (KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError.UNSUPPORTED_SASL_MECHANISM)
_FORBIDDEN = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED)
_SLOW = (KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE,
         KafkaError.REQUEST_TIMED_OUT)
_OF_CONSUMERS = ("fetch.", "max.partition.fetch.", "queued.", "check.crcs")
_WORD = (1 << 64) - 1
T = TypeVar("T")


class _Asker:
    """A consumer in one call, which ends by a deadline."""

    def __init__(self, consumer: Consumer, refusals: list[KafkaError], within_s: float) -> None:
        """`refusals`: where the client's errors about credentials come to."""
        self.consumer, self._refusals = consumer, refusals
        self._within_s, self._deadline = within_s, clock.monotonic() + within_s

    def left_s(self) -> float:
        """Unavailable when the time is over."""
        left = self._deadline - clock.monotonic()
        if left <= 0:
            raise Unavailable(f"Kafka: no answer within {self._within_s:g} s", reason="KAFKA_AWAY")
        return left

    def tell_refusal(self) -> None:
        """Unauthenticated: Kafka does not take the credentials. The library itself would try on for ever."""
        if self._refusals:
            raise _mesh_error(self._refusals[-1])

    def ask(self, call: Callable[[float], T]) -> T:
        """The result of a call that is given a timeout, tried again while nobody answers."""
        try_s = TRY_S[0]
        while True:
            try:
                return call(min(try_s, self.left_s()))
            except KafkaException as error:
                if error.args[0].code() not in _SLOW:
                    raise
                self.consumer.poll(0)           # what the library has to tell, it tells here
                self.tell_refusal()
                if self._deadline - clock.monotonic() < 0.1:
                    raise
                clock.sleep(0.05)
                try_s = min(TRY_S[1], 2 * try_s)


class KafkaTopic:
    """See Topic."""

    def __init__(self, topic: str, *, servers: str, options: Mapping[str, str]) -> None:
        self._topic = topic
        self._options = dict(options)
        self._access: dict[str, Any] = {"log_level": 2, **options, "bootstrap.servers": servers}
        self._settings: dict[str, Any] = {
            "fetch.wait.max.ms": 50, **self._access, "enable.auto.commit": False, "enable.partition.eof": True,
            "auto.offset.reset": "error", "isolation.level": "read_committed", "error_cb": self._noted,
        }
        self._lock = threading.Lock()
        self._reader: Consumer | None = None
        self._admin: AdminClient | None = None
        self._refusals: list[KafkaError] = []

    def partitions(self) -> Sequence[Partition]:
        """See Topic. The tag is the topic's id (KIP-516, brokers from 2.8 on)."""
        def listed(asker: _Asker) -> list[Partition]:
            topics = asker.ask(lambda left: asker.consumer.list_topics(self._topic, timeout=left)).topics
            found = topics.get(self._topic)
            if found is None or found.error is not None or not found.partitions:
                raise NotFound(f"there is no topic {self._topic} in Kafka", reason="NO_TOPIC")
            tag = self._tag(asker)
            return [Partition(self._uri(number), tag, self._span(asker, number)) for number in sorted(found.partitions)]

        return self._asked(listed, within_s=LIST_S)

    def tag_of(self, uri: str) -> str:
        """See Topic. The topic's id, as the broker knows it that is asked."""
        return self._asked(self._tag)

    def after(self, uri: str, time: float) -> int | None:
        """See Topic. By Kafka's own index of times."""
        def sought(asker: _Asker) -> int | None:
            at = TopicPartition(self._topic, self._number(uri), int(time * 1000))
            [found] = asker.ask(lambda left: asker.consumer.offsets_for_times([at], timeout=left))
            if found.error is not None:
                raise KafkaException(found.error)
            return None if found.offset in (OFFSET_END, -1) else int(found.offset)

        return self._asked(sought)

    def time_of(self, uri: str, offset: int) -> float | None:
        """See Topic."""
        def read(asker: _Asker) -> float | None:
            found = self._fetched(asker, self._number(uri), offset, None, most=1)
            return found[0].time if found else None

        return self._asked(read)

    def came_at(self, uri: str, offset: int) -> float | None:
        """See Topic. By the timestamp, of which there is one: the topic's `message.timestamp.type` says whose it is."""
        return self.time_of(uri, offset)

    def read(self, uri: str, lo: int, hi: int) -> list[Message]:
        """See Topic."""
        if lo >= hi:
            return []
        return self._asked(lambda asker: self._fetched(asker, self._number(uri), lo, hi, most=hi - lo))

    def committed(self, group: str) -> Mapping[str, int]:
        """See Topic."""
        uris = [partition.uri for partition in self.partitions()]
        with self._of(group) as consumer:
            asker = self._asker(consumer)
            asked = [TopicPartition(self._topic, self._number(uri)) for uri in uris]
            found = _told(lambda: asker.ask(lambda left: consumer.committed(asked, timeout=left)))
        return {self._uri(each.partition): int(each.offset) for each in found if each.offset >= 0}

    def commit(self, group: str, offsets: Mapping[str, int]) -> None:
        """See Topic. Kafka's own offsets of the group, for whatever watches its lag."""
        listed = [TopicPartition(self._topic, self._number(uri), offset) for uri, offset in offsets.items()]
        with self._of(group) as consumer:
            asker = self._asker(consumer)       # committing itself has no timeout: what it needs is there by then
            _told(lambda: asker.ask(lambda left: consumer.committed(listed, timeout=left)))
            done = _told(lambda: consumer.commit(offsets=listed, asynchronous=False))
        for each in done or []:
            if each.error is not None:
                raise _mesh_error(each.error)

    def close(self) -> None:
        """See Topic."""
        with self._lock:
            if self._reader is not None:
                self._reader.close()
            self._reader = self._admin = None

    # ---- inside

    def _asked(self, call: Callable[[_Asker], T], *, within_s: float = READ_S) -> T:
        """By the one consumer that reads; after an error another one is made. One deadline for all of the call."""
        if not self._lock.acquire(timeout=READ_S):
            raise Unavailable(f"Kafka: others have waited for {READ_S:g} s already", reason="KAFKA_AWAY")
        try:
            if self._reader is None:
                self._refusals.clear()
                self._reader = self._made(_NO_GROUP)
            asker = _Asker(self._reader, self._refusals, within_s)
            try:
                return _told(lambda: call(asker))
            except (Unavailable, Unauthenticated) as error:
                if error.reason != NOT_THERE_YET:
                    self._reader, self._admin = None, None
                    asker.consumer.close()
                raise
        finally:
            self._lock.release()

    def _asker(self, consumer: Consumer) -> _Asker:
        return _Asker(consumer, self._refusals, clock.monotonic() + READ_S)

    def _of(self, group: str) -> "_Closing":
        return _Closing(self._made(group))

    def _made(self, group: str) -> Consumer:
        """InvalidArgument: an option, which is named. Its value is not: it may be a secret."""
        try:
            return Consumer({**self._settings, "group.id": group})
        except (KafkaException, ValueError, TypeError) as error:
            raise self._wrong(str(error)) from None

    def _wrong(self, text: str) -> InvalidArgument:
        name = next((name for name in sorted(self._options, key=len, reverse=True) if name in text), "")
        reason = "is not what Kafka's client takes"
        if name:
            return wrong(f"data.source.options.{name}", reason, message=f"options.{name} {reason}")
        return wrong("data.source.options", "one of them, or servers, " + reason)

    def _noted(self, error: KafkaError) -> None:
        if error.code() in _REFUSED:
            del self._refusals[:-1]
            self._refusals.append(error)

    def _tag(self, asker: _Asker) -> str:
        if self._admin is None:
            known = {name: value for name, value in self._access.items() if not name.startswith(_OF_CONSUMERS)}
            self._admin = AdminClient(known)
        left = asker.left_s()
        asked = self._admin.describe_topics(TopicCollection([self._topic]), request_timeout=left)
        try:
            found = asked[self._topic].result(left).topic_id
        except FutureTimeoutError:
            raise Unavailable(f"Kafka: no answer within {READ_S:g} s", reason="KAFKA_AWAY") from None
        high, low = found.get_most_significant_bits(), found.get_least_significant_bits()
        return f"{high & _WORD:016x}{low & _WORD:016x}" if high or low else ""

    def _span(self, asker: _Asker, number: int) -> Span:
        at = TopicPartition(self._topic, number)
        first, end = asker.ask(lambda left: asker.consumer.get_watermark_offsets(at, timeout=left))
        return Span(first, end)

    def _fetched(self, asker: _Asker, number: int, lo: int, hi: int | None, *, most: int) -> list[Message]:
        """At most so many messages from `lo` on, those from `hi` on left out. Offsets without messages (transactions,
        compaction) are passed over."""
        span, consumer = self._span(asker, number), asker.consumer
        if hi is not None and span.end < hi:
            raise Unavailable(
                f"{self._uri(number)} ends at offset {span.end}, and {hi - 1} is asked for", reason=NOT_THERE_YET
            )
        at, end = max(lo, span.first), span.end if hi is None else hi
        found: list[Message] = []
        if at >= end:
            return found
        consumer.assign([TopicPartition(self._topic, number, at)])
        try:
            while at < end and len(found) < most:
                asker.tell_refusal()
                for message in consumer.consume(min(FETCH, most - len(found)), timeout=min(0.5, asker.left_s())):
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
    if error.code() in _REFUSED:
        return Unauthenticated(text, reason="KAFKA_AUTH")
    if error.code() in _FORBIDDEN:
        return PermissionDenied(text, reason="KAFKA_AUTH")
    return Unavailable(text, reason="KAFKA_AWAY")
