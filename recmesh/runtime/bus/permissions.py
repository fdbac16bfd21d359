"""What each user of NATS may do: `python -m recmesh.runtime.bus.permissions [--passwords] [--topic NAME=PARTITIONS]...`
writes the `authorization` of a server's configuration.

A user for each service, named as the service is, and `integration` for programs of one's own, which may send commands
and rates, and read events. A service publishes its own facts and none of others', writes its own buckets, and hears
replies to itself alone: each has an inbox of its own. Users are known by the name in their certificate (`tls {
verify_and_map: true }`), or with --passwords by $NATS_<USER>_PASSWORD.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from recmesh.runtime.bus.consumer import DEAD_ROOT, DEAD_STREAM, EVENT_STREAM
from recmesh.runtime.bus.link import inbox
from recmesh.runtime.events import EVENTS, SUBJECT_ROOT, access

INTEGRATION = "integration"
AUDIT_STREAM = "RECMESH_AUDIT"
TOPICS: Mapping[str, int] = {"predictions": 1, "labels": 1}
"""That the gateway makes by default, with their partitions."""

TOPIC_READER = "recmesh-topics"
"""The name of connections that read topics."""

_STREAM_VERBS = ("CREATE", "UPDATE", "INFO", "MSG.GET")
_MICRO = ("$SRV.PING", "$SRV.INFO", "$SRV.STATS")


@dataclass(frozen=True, slots=True)
class Needs:
    """What a service does with NATS, beside telling its own facts."""

    buckets: tuple[str, ...] = ()
    """Key-value buckets that are its own."""
    logs: Mapping[str, str] = field(default_factory=dict)
    """Streams that are its own, with the root of their subjects."""
    durables: tuple[str, ...] = ()
    """Its consumers of events."""
    reads_events: bool = False
    """It reads events from a place of its own."""
    tells: tuple[str, ...] = ()
    """Subjects of others' facts that it tells, too."""
    streams: tuple[str, ...] = ()
    """More streams that it makes."""
    graves: tuple[str, ...] = ()
    """Durables that it gives events up for, beside its own."""
    writes_topics: bool = False
    reads_topics: bool = False


NEEDS: Mapping[str, Needs] = {
    "brain": Needs(),
    "ckptcache": Needs(buckets=("recmesh_checkpoints",)),
    "forecaster": Needs(durables=("forecaster-rates",)),
    "gateway": Needs(
        buckets=("recmesh-models", "recmesh-traffic", "recmesh-webhooks", "recmesh-webhook-lease"),
        durables=("gateway-labels", "gateway-register"), reads_events=True, streams=(AUDIT_STREAM,),
        graves=("*",), writes_topics=True,
    ),
    "jobmaster": Needs(
        buckets=("recmesh_jobs", "recmesh_jobmaster_leader"),
        durables=("jobmaster-submit", "jobmaster-stop", "jobmaster-pauses"),
        tells=(access.AUDIT_RECORDED.subject,),
    ),
    "shardsvc": Needs(
        buckets=("recmesh_runs", "recmesh_datasets", "recmesh_offsets"), logs={"RECMESH_TASKS": "recmesh.tasks"},
        reads_topics=True,
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rights:
    """Subjects that a user may publish and subscribe."""

    publish: Sequence[str]
    subscribe: Sequence[str]
    never: Sequence[str] = ()
    """Of what it may publish, what it may not: others' consumers."""


def rights(user: str, *, topics: Mapping[str, int] = TOPICS) -> Rights:
    """Of a service, or of `integration`. KeyError for anybody else."""
    anyone = [kind.subject for kind in EVENTS if kind.anyone]
    if user == INTEGRATION:
        lasting = [
            f"$JS.API.CONSUMER.DURABLE.CREATE.{EVENT_STREAM}.*", *_acks(EVENT_STREAM, "*"), f"$JS.FC.{EVENT_STREAM}.>",
            "$JS.API.STREAM.NAMES", "$JS.API.INFO",
        ]  # fmt: skip
        hearing = [f"{inbox(user)}.>", "_INBOX.>", f"{SUBJECT_ROOT}.>"]
        return Rights([*anyone, *_reading(EVENT_STREAM), *lasting], hearing, _others(user))
    needs = NEEDS[user]
    own = [kind.subject for kind in EVENTS if kind.service == user and not kind.anyone and not kind.topic]
    rates = [kind.subject for kind in EVENTS if kind.name in ("rate.observed", "rates.observed")]
    publish = [*own, *rates, *needs.tells]
    for stream in (EVENT_STREAM, DEAD_STREAM, *needs.streams):
        publish += _stream(stream)
    for bucket in needs.buckets:
        publish += [f"$KV.{bucket}.>", *_stream(f"KV_{bucket}"), *_reading(f"KV_{bucket}")]
    for log, root in needs.logs.items():
        publish += [f"{root}.>", *_stream(log), *_reading(log), f"$JS.API.STREAM.PURGE.{log}"]
    for durable in needs.durables:
        publish += [
            f"$JS.API.CONSUMER.DURABLE.CREATE.{EVENT_STREAM}.{durable}",
            f"$JS.API.CONSUMER.MSG.NEXT.{EVENT_STREAM}.{durable}", *_acks(EVENT_STREAM, durable),
        ]  # fmt: skip
    publish += [f"{DEAD_ROOT}.{each}" for each in (*needs.durables, *needs.graves)]
    if needs.reads_events:
        publish += [*_reading(EVENT_STREAM), *_reading(DEAD_STREAM)]
    publish += _of_topics(needs, topics)
    hears = [f"{inbox(user)}.>", *([f"{inbox(TOPIC_READER)}.>"] if needs.reads_topics else [])]
    micro = [name for verb in _MICRO for name in (verb, f"{verb}.{user}", f"{verb}.{user}.*")]
    never = _others(user) if needs.reads_events else []
    return Rights(list(dict.fromkeys(publish)), [*hears, *micro], never)


def _others(user: str) -> list[str]:
    """Consumers of other services: who may make consumers of any name may not change or empty these."""
    durables = [each for name, needs in NEEDS.items() if name != user for each in needs.durables]
    return [
        f"$JS.{verb}.{EVENT_STREAM}.{durable}{rest}" for durable in durables for verb, rest in (
            ("API.CONSUMER.CREATE", ""), ("API.CONSUMER.CREATE", ".>"), ("API.CONSUMER.DURABLE.CREATE", ""),
            ("API.CONSUMER.MSG.NEXT", ""), ("ACK", ".>"),
        )
    ]  # fmt: skip


def _of_topics(needs: Needs, topics: Mapping[str, int]) -> list[str]:
    if not (needs.writes_topics or needs.reads_topics):
        return []
    found = ["$JS.API.STREAM.INFO.*", "$JS.API.STREAM.NAMES", "$JS.API.STREAM.LIST", "$JS.API.INFO"]
    for topic, partitions in topics.items():
        for number in range(partitions):
            stream = f"{topic.replace('.', '_')}-{number}"
            found += [f"{topic}.{number}", *_stream(stream)] if needs.writes_topics else []
            found += [*_reading(stream), f"$JS.API.STREAM.MSG.GET.{stream}"] if needs.reads_topics else []
    return found


def _stream(name: str) -> list[str]:
    """Make it, look at it, and read its last message of a subject."""
    return [*(f"$JS.API.STREAM.{verb}.{name}" for verb in _STREAM_VERBS), f"$JS.API.DIRECT.GET.{name}.>"]


def _reading(stream: str) -> list[str]:
    """By consumers of any name."""
    return [
        f"$JS.API.STREAM.INFO.{stream}", f"$JS.API.CONSUMER.CREATE.{stream}", f"$JS.API.CONSUMER.CREATE.{stream}.>",
        f"$JS.API.CONSUMER.MSG.NEXT.{stream}.*", f"$JS.API.CONSUMER.INFO.{stream}.*",
    ]  # fmt: skip


def _acks(stream: str, durable: str) -> list[str]:
    return [f"$JS.ACK.{stream}.{durable}.>"]


def text(*, passwords: bool = False, topics: Mapping[str, int] = TOPICS) -> str:
    """The configuration; the same for the same catalogue of events."""
    lines = ["# Generated: python -m recmesh.runtime.bus.permissions", "authorization {", "  users: ["]
    for user in (*NEEDS, INTEGRATION):
        found = rights(user, topics=topics)
        lines.append("    {")
        lines.append(f'      user: "{user}"')
        lines += [f"      password: $NATS_{user.upper()}_PASSWORD"] if passwords else []
        lines.append("      permissions: {")
        lines += _listed("publish", found.publish, found.never)
        lines += _listed("subscribe", found.subscribe)
        lines += ["        allow_responses: true", "      }", "    }"]
    return "\n".join([*lines, "  ]", "}"]) + "\n"


def _listed(name: str, subjects: Sequence[str], never: Sequence[str] = ()) -> list[str]:
    denied = ["          ], deny: [", *(f'            "{each}"' for each in sorted(never))] if never else []
    return [
        f"        {name}: {{", "          allow: [", *(f'            "{each}"' for each in sorted(subjects)), *denied,
        "          ]", "        }",
    ]  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints it."""
    parser = argparse.ArgumentParser(prog="recmesh.runtime.bus.permissions", description="NATS permissions per service")
    parser.add_argument("--passwords", action="store_true", help="users by $NATS_<USER>_PASSWORD, not by certificate")
    parser.add_argument(
        "--topic", action="append", default=[], metavar="NAME=PARTITIONS", help="a topic beside predictions and labels"
    )
    given = parser.parse_args(arguments)
    topics = dict(TOPICS)
    for each in given.topic:
        name, _, count = each.partition("=")
        if not name or not (count or "1").isdigit():
            parser.error(f"--topic {each}: not NAME=PARTITIONS")
        topics[name] = int(count or 1)
    print(text(passwords=given.passwords, topics=topics), end="")


if __name__ == "__main__":
    main()
