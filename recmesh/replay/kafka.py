"""Kafka as the target of a replay, through confluent-kafka, which is installed apart (`recmesh[topics]`)."""

import asyncio
from collections.abc import Mapping
from typing import Any

from recmesh.partitions import EVENT_TIME, Limits
from recmesh.replay.resume import There
from recmesh.runtime.errors import FailedPrecondition, InvalidArgument, MeshError, Unavailable, Violation

_ASK_S = 10.0
_FLUSH_S = 60.0


def _library() -> Any:
    try:
        import confluent_kafka
        import confluent_kafka.admin
    except ImportError:
        raise FailedPrecondition(
            "Kafka needs confluent-kafka: pip install 'recmesh[topics]'", reason="PACKAGE_MISSING"
        ) from None
    return confluent_kafka


class KafkaSink:
    """See `recmesh.replay.sinks.Sink`.

    Rows with a key go where Kafka's Java clients would put them (murmur2), others to each partition in turn. The
    producer is idempotent: within one run nothing is doubled or changes its place.
    """

    def __init__(self, servers: str, topic: str, *, partitions: int | None, limits: Limits) -> None:
        self.partitions = self.stored = self.doubles = 0
        self._kafka = _library()
        self._topic, self._wanted, self._limits = topic, partitions, limits
        self._servers = {"bootstrap.servers": servers}
        self._producer: Any = None
        self._failure: MeshError | None = None

    async def start(self) -> None:
        """See Sink; InvalidArgument where the topic has another number of partitions."""
        await asyncio.to_thread(self._ensure)
        self._producer = self._kafka.Producer({
            **self._servers, "enable.idempotence": True, "partitioner": "murmur2_random", "linger.ms": 5,
            "message.timeout.ms": int(_FLUSH_S * 1000),
        })

    def _ensure(self) -> None:
        admin = self._kafka.admin.AdminClient(self._servers)
        try:
            known = admin.list_topics(self._topic, timeout=_ASK_S).topics[self._topic]
            if known.error is None:
                self.partitions = len(known.partitions)
            else:
                limits = self._limits
                config = {"retention.ms": str(int(limits.max_age_s * 1000))} if limits.max_age_s else {}
                config |= {"retention.bytes": str(limits.max_bytes)} if limits.max_bytes else {}
                self.partitions = self._wanted or 1
                new = self._kafka.admin.NewTopic(
                    self._topic, num_partitions=self.partitions, replication_factor=limits.replicas, config=config
                )
                admin.create_topics([new])[self._topic].result(_ASK_S)
        except self._kafka.KafkaException as error:
            raise Unavailable(f"Kafka at {self._servers['bootstrap.servers']}: {error}", reason="KAFKA") from None
        if self._wanted is not None and self._wanted != self.partitions:
            reason = f"{self._topic} has {self.partitions} partition(s), not {self._wanted}"
            raise InvalidArgument(reason, violations=[Violation("partitions", reason)])

    async def stop(self) -> None:
        """See Sink."""
        if self._producer is not None:
            self._producer.purge()
            self._producer.poll(0)

    async def reached(self, offsets: Mapping[str, int], total: int) -> list[There]:
        """Kafka's messages are not searched for what is there."""
        raise InvalidArgument("a replay to Kafka cannot be resumed: --from says where to go on")

    async def send(self, partition: int, payload: bytes, *, message_id: str, key: str, at: float | None) -> None:
        """See Sink; with a key the partition is Kafka's own choice."""
        headers = [("Recmesh-Id", message_id.encode())]
        if at is not None:
            headers.append((EVENT_TIME, repr(at).encode()))
        where: dict[str, Any] = {"key": key.encode()} if key else {"partition": partition}
        while True:
            if self._failure is not None:
                raise self._failure
            try:
                self._producer.produce(
                    self._topic, value=payload, headers=headers, on_delivery=self._delivered, **where
                )
                break
            except BufferError:                   # librdkafka's queue is full
                self._producer.poll(0)
                await asyncio.sleep(0.01)
        self._producer.poll(0)

    async def flush(self) -> None:
        """See Sink."""
        left = await asyncio.to_thread(self._producer.flush, _FLUSH_S)
        if self._failure is not None:
            raise self._failure
        if left:
            raise Unavailable(f"Kafka did not take {left} messages within {_FLUSH_S:g} s", reason="KAFKA")

    def _delivered(self, error: Any, _message: Any) -> None:
        if error is None:
            self.stored += 1
        else:
            self._failure = self._failure or Unavailable(f"Kafka refuses a message: {error}", reason="KAFKA")
