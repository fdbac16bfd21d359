"""Names of topics, and what their partitions are called in JetStream."""

import hashlib
import re

from recmesh.runtime.errors import InvalidArgument, Violation

EVENT_TIME = "Recmesh-Time"
"""Header: when what the message tells of happened, Unix seconds. Without it, when the server got the message."""
LONGEST_NAME = 180
"""Of a topic in the names of its series, which forecaster keeps up to 200 characters; Kafka allows topics 249."""
_DIGITS, _HASH = 10, 12
_TOPIC = re.compile(r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$")


def topic_name(name: str, *, field: str) -> str:
    """The name, when it is one; InvalidArgument names the field."""
    if not _TOPIC.match(name):
        reason = f"{name!r} is no topic: letters, digits, '-' and '_', and single dots inside"
        raise InvalidArgument(reason, violations=[Violation(field, reason)])
    return name


def stream_of(topic: str, partition: int) -> str:
    """The stream of a partition; streams have no dots in their names."""
    return f"{topic.replace('.', '_')}-{partition}"


def subject_of(topic: str, partition: int) -> str:
    """The one subject of that stream."""
    return f"{topic}.{partition}"


def series_of(uri: str) -> tuple[str, str]:
    """Under which names the rates of a partition, and of its whole topic, are known to forecaster.

    `jetstream:clicks-3` is the partition `topic/clicks/3` of `topic/clicks`; so is `kafka:clicks/3`. Of a topic's name
    that is longer than LONGEST_NAME the end is replaced by `~` and a hash of all of it.
    """
    name = uri.partition(":")[2] or uri
    topic, slash, number = name.rpartition("/")
    if not slash:
        topic, _, number = name.rpartition("-")
        if not topic or not number.isdigit() or len(number) > _DIGITS:
            topic, number = name, "0"
    if len(topic) > LONGEST_NAME:
        topic = f"{topic[:LONGEST_NAME - _HASH - 1]}~{hashlib.sha256(topic.encode()).hexdigest()[:_HASH]}"
    return f"topic/{topic}/{number}", f"topic/{topic}"
