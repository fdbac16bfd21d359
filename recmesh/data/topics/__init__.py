"""Topics: streams of messages that datasets are made of, besides files."""

import os
from collections.abc import Mapping
from functools import lru_cache

from recmesh.data.faults import wrong
from recmesh.data.topics.interface import Message, Partition, Span, Topic
from recmesh.runtime.errors import FailedPrecondition
from recmesh.spec.dataset import TOPIC_VARIABLES, VARIABLE, StreamSource

__all__ = ["Message", "Partition", "Span", "Topic", "topic_of"]

NATS_URL, NATS_TOKEN = "RECMESH_NATS_URL", "RECMESH_NATS_TOKEN"
"""The mesh's own NATS, in the environment of whoever reads its topics."""


def topic_of(source: StreamSource, env: Mapping[str, str] | None = None) -> Topic:
    """The topic of a source, connected when it is first asked. One for all who name the same.

    InvalidArgument: a variable is not set, or none of topics, or the address is none. FailedPrecondition: a library is
    missing.
    """
    env = os.environ if env is None else env
    servers = _filled("servers", source.servers, env)
    if source.kafka:
        options = tuple(
            (name, _filled(f"options.{name}", value, env)) for name, value in sorted(source.options.items())
        )
        return _kafka(source.kafka, servers, options)
    if not servers and not env.get(NATS_URL):
        raise wrong("data.source.servers", "is empty, and there is no mesh here whose NATS could be meant")
    token = "" if servers else env.get(NATS_TOKEN, "")
    return _jetstream(source.jetstream, servers or env[NATS_URL], token)


def _filled(field: str, text: str, env: Mapping[str, str]) -> str:
    names = VARIABLE.findall(text)
    if foreign := [name for name in names if not name.startswith(TOPIC_VARIABLES)]:
        raise wrong(f"data.source.{field}", f"{', '.join(foreign)}: only {TOPIC_VARIABLES}... is given to topics")
    if missing := [name for name in names if name not in env]:
        raise wrong(f"data.source.{field}", f"{', '.join(missing)} is not set in the environment")
    return VARIABLE.sub(lambda found: env[found[1]], text)


@lru_cache(maxsize=64)
def _jetstream(pattern: str, url: str, token: str) -> Topic:
    try:
        from recmesh.data.topics.jetstream import JetStreamTopic
    except ImportError:
        raise _missing("NATS") from None
    return JetStreamTopic(pattern, url=url, token=token)


@lru_cache(maxsize=64)
def _kafka(topic: str, servers: str, options: tuple[tuple[str, str], ...]) -> Topic:
    try:
        from recmesh.data.topics.kafka import KafkaTopic
    except ImportError:
        raise _missing("Kafka") from None
    return KafkaTopic(topic, servers=servers, options=dict(options))


def _missing(whose: str) -> FailedPrecondition:
    return FailedPrecondition(f"{whose}'s client is not installed: pip install 'recmesh[topics]'", reason="NO_CLIENT")
