"""`Stream`: data in order of time, window by window, of files by time and of topics."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import Field, model_validator

from recmesh.spec.base import Fault, Spec, rule
from recmesh.spec.quantity import Duration, Moment, Start
from recmesh.spec.source import TABLE_FORMATS, SampleKind, Source

MESSAGE_FORMATS = ("jsonl", "protobuf", "tfrecord")
"""What a message of a topic can be."""
TOPIC_VARIABLES = "RECMESH_TOPICS_"
"""How the names of variables begin that topics may be given: all others of whoever reads are its own."""
VARIABLE = re.compile(r"\$\{([A-Za-z_]\w*)\}")
KAFKA_OPTIONS = frozenset((
    "security.protocol", "sasl.mechanism", "sasl.mechanisms", "sasl.username", "sasl.password", "ssl.ca.pem",
    "ssl.certificate.pem", "ssl.key.pem", "ssl.key.password", "ssl.endpoint.identification.algorithm", "client.id",
    "client.rack", "client.dns.lookup", "broker.address.family", "broker.address.ttl", "metadata.max.age.ms",
    "topic.metadata.refresh.interval.ms", "connections.max.idle.ms", "reconnect.backoff.ms",
    "reconnect.backoff.max.ms", "retry.backoff.ms", "receive.message.max.bytes", "max.partition.fetch.bytes",
    "queued.min.messages", "queued.max.messages.kbytes", "check.crcs",
))
"""Of librdkafka's settings those that may be given: none that loads code, runs commands, reads files, or changes what
is read. Besides them all that begin with KAFKA_OPTION_FAMILIES."""
KAFKA_OPTION_FAMILIES = ("fetch.", "socket.")
KAFKA_SECRETS = ("sasl.password", "ssl.key.pem", "ssl.key.password")
SASL = ("sasl.mechanism", "sasl.mechanisms")
SASL_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
"""GSSAPI runs a command, OAUTHBEARER asks addresses of its own."""
_MUST_BE_VARIABLE = f"must be a variable (${{{TOPIC_VARIABLES}NAME}}): the specification is stored and shown"
_PASSWORD = re.compile(r"//(?:[^/@:,]*:)?([^/@,]*)@")
_PLACEHOLDER = re.compile(r"(?<!\$)\{[A-Za-z]+\}")
TIME_FIELDS = ("{YYYY}", "{MM}", "{DD}", "{HH}", "{mm}")
"""Of a window's begin, in paths."""


class StreamSource(Source):
    """A period of data: in files by time, or on the partitions of a topic.

    `{YYYY}`, `{MM}`, `{DD}`, `{HH}` and `{mm}` in `files` and `done`, and in `partition` of tables, stand for the parts
    of a window's begin, in UTC. Of a topic each message is a row, in `format`: `jsonl` (the default) is a JSON object,
    `protobuf` a message of that type, `tfrecord` a tf.Example; a window holds the messages of its time.
    """

    files: list[str] = []
    jetstream: str = ""
    """Instead of files, a topic: the name of a JetStream stream, or a pattern (`clicks-*`) of streams, each of which is
    a partition."""
    kafka: str = ""
    """Instead of files, the name of a topic in Kafka."""
    servers: str = ""
    """Of the topic, with commas between; `${RECMESH_TOPICS_NAME}` is taken from the environment of whoever reads.
    Kafka: where to begin (`host:port`). JetStream: `nats://host:port`; empty: the mesh's own. A password in it must be
    such a variable."""
    options: dict[str, str] = {}
    """Kafka: further settings of the client, as librdkafka names them (docs/reference/data.md lists them); variables as
    in servers. Secrets must be variables: the specification is stored and shown."""
    group: str = Field(default="", max_length=128, pattern=r"^[A-Za-z0-9_.-]*$")
    """Topics: under this name the offsets of what is trained, and will not be trained again, are committed. Empty: the
    job's id."""
    start: Start
    """Where the data begin: the first window holds it. Topics: also `earliest`, `latest`, or `group`, where another job
    of the group has come to; both of the last two are as they are when the job begins."""
    end: Moment | None = None
    """Where they end, itself not included; none: they never do."""
    done: str = ""
    """A file that is there once a window is complete. None: a window is complete `lateness` after its end."""
    lateness: Duration = 0.0
    """How long after a window's end files, or messages with a time within it, may still come."""
    offset: Duration = 0.0
    """How far it is behind: with 1d, yesterday's data of it are served together with today's of the others."""
    weight: float | None = Field(default=None, gt=0, le=1e6)
    """How many of its bytes are served within a window for one of a source of weight 1, and of a topic how many of the
    messages that wait; all are served before the next window. None: as it takes for all sources to end together."""
    may_be_empty: bool = False
    """A window without files is no error."""
    kind: SampleKind | None = None
    """`batch` or `stream`: each minibatch has samples of one kind, which the model is told (mixed training). None:
    `batch` of files, `stream` of topics."""

    @model_validator(mode="before")
    @classmethod
    def _messages_are_json(cls, value: Any) -> Any:
        return cls._given(value) if isinstance(value, Mapping) else value

    @classmethod
    def _given(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"format": "jsonl", **values} if values.get("jetstream") or values.get("kafka") else values

    @rule
    def _files_or_topic(self) -> Iterator[Fault]:
        given = [name for name in ("files", "jetstream", "kafka") if getattr(self, name)]
        if not given:
            yield "files", "is missing: name files, or a topic by jetstream or kafka"
        for name in given[1:]:
            yield name, f"{given[0]} or {name}, not both"

    @rule
    def _fields_of_topics(self) -> Iterator[Fault]:
        if self.is_topic:
            for name in ("done", "partition", "rows", "header", "columns", "may_be_empty"):
                if getattr(self, name) != type(self).model_fields[name].get_default(call_default_factory=True):
                    yield name, "belongs to files, not to a topic"
            if self.format not in MESSAGE_FORMATS:
                yield "format", f"messages of a topic are {', '.join(MESSAGE_FORMATS)}, not {self.format}"
            if self.format != "protobuf" and not self.types:
                yield "types", "must say the type of each column that is needed: messages of a topic are not looked at"
            if self.compression not in ("infer", "none"):
                yield "compression", "belongs to files, not to a topic"
            if self.kafka and not self.servers:
                yield "servers", "Kafka needs one at least (host:port)"
            if self.options and not self.kafka:
                yield "options", "are of Kafka's client"
            if self.start == "group" and not self.group:
                yield "group", "is missing: start is where it has come to"
            return
        for name in ("servers", "options", "group"):
            if getattr(self, name):
                yield name, "belongs to topics, not to files"
        if isinstance(self.start, str):
            yield "start", f"{self.start} is for topics; files begin at a moment"

    @rule
    def _variables_are_of_topics(self) -> Iterator[Fault]:
        for field, text in [("servers", self.servers), *((f"options.{name}", it) for name, it in self.options.items())]:
            if foreign := [name for name in VARIABLE.findall(text) if not name.startswith(TOPIC_VARIABLES)]:
                yield field, f"{', '.join(foreign)}: topics are given only variables that begin with {TOPIC_VARIABLES}"
        if any(not VARIABLE.fullmatch(password) for password in _PASSWORD.findall(self.servers)):
            yield "servers", f"a password {_MUST_BE_VARIABLE}"

    @rule
    def _options_are_harmless(self) -> Iterator[Fault]:
        for name, text in self.options.items():
            if name not in KAFKA_OPTIONS and not name.startswith(KAFKA_OPTION_FAMILIES):
                yield f"options.{name}", "is none of the settings that may be given"
            elif name in KAFKA_SECRETS and not VARIABLE.fullmatch(text):
                yield f"options.{name}", _MUST_BE_VARIABLE
            elif name in SASL and text not in SASL_MECHANISMS:
                yield f"options.{name}", f"must be one of {', '.join(SASL_MECHANISMS)}"
        if "sasl" in self.options.get("security.protocol", "").lower() and not {*SASL} & {*self.options}:
            yield "options.sasl.mechanism", f"is missing: {', '.join(SASL_MECHANISMS)}"

    @rule
    def _ends_after_it_starts(self) -> Iterator[Fault]:
        if self.end is not None and not isinstance(self.start, str) and self.end <= self.start:
            yield "end", "must be after start"

    @rule
    def _times_are_known(self) -> Iterator[Fault]:
        texts = [*((f"files.{index}", path) for index, path in enumerate(self.files)), ("done", self.done)]
        for path, text in [*texts, *((f"partition.{key}", value) for key, value in self.partition.items())]:
            if odd := [field for field in _PLACEHOLDER.findall(text) if field not in TIME_FIELDS]:
                yield path, f"{', '.join(odd)}: there are {', '.join(TIME_FIELDS)}"

    @rule
    def _servers_have_ports(self) -> Iterator[Fault]:
        if self.kafka:
            for server in filter(None, map(str.strip, self.servers.split(","))):
                port = re.fullmatch(r".+:(\d{1,5})", server)
                if not VARIABLE.search(server) and not (port and 0 < int(port[1]) < 65536):
                    yield "servers", f"{server} is no host:port"

    @rule
    def _whole_files(self) -> Iterator[Fault]:
        if self.rows is not None and not self.is_topic:
            yield "rows", "belongs to a dataset of one source; of a stream, start and end say which part"

    @property
    def is_topic(self) -> bool:
        """Whether its rows are messages."""
        return bool(self.jetstream or self.kafka)

    @property
    def begin(self) -> float:
        """Unix seconds; of a topic `resolved` before."""
        if isinstance(self.start, str):
            raise ValueError(f"start {self.start} is not known as a moment yet")
        return self.start

    def resolved(self, start: float) -> "StreamSource":
        """The same from that moment on."""
        return self.model_copy(update={"start": float(start)})

    @property
    def sample_kind(self) -> SampleKind:
        """See Source.sample_kind."""
        return self.kind or ("stream" if self.is_topic else "batch")

    @property
    def timed(self) -> list[tuple[str, str]]:
        """(field, text) of what must differ from window to window."""
        if self.is_topic:
            return []
        found = [("done", self.done)] if self.done else []
        if self.format in TABLE_FORMATS:
            return [*found, ("partition", " ".join(self.partition.values()))]
        return [*found, *((f"files.{index}", path) for index, path in enumerate(self.files))]


class Stream(Spec):
    """Sources that are served together, window by window, in order of time."""

    window: Duration = 3600.0
    """`1h` or `1d` as a rule. Windows begin at its multiples, counted from 1970."""
    sources: list[StreamSource] = Field(min_length=1, max_length=64)

    @property
    def is_topics(self) -> bool:
        """Whether all of its rows are messages."""
        return all(source.is_topic for source in self.sources)

    @rule
    def _weights_of_all_or_none(self) -> Iterator[Fault]:
        if len({source.weight is None for source in self.sources}) > 1:
            yield "sources", "either all of them have a weight, or none"

    @rule
    def _windows_are_told_apart(self) -> Iterator[Fault]:
        if not 60 <= self.window or self.window % 60:
            yield "window", "must be whole minutes"
            return
        for index, source in enumerate(self.sources):
            needed = TIME_FIELDS[: 5 if self.window % 3600 else 4 if self.window % 86400 else 3]
            for path, text in source.timed:
                missing = [field for field in needed if field not in text]
                if missing:
                    why = f"windows of {self.window:g} s need {', '.join(missing)} here, else several would be one"
                    yield f"sources.{index}.{path}", why
            if source.offset % self.window:
                yield f"sources.{index}.offset", "must be whole windows"
