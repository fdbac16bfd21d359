"""`DatasetSpec`: which files a job trains on, in which order of time, and what their columns mean."""

import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from recmesh.plugins.registry import names
from recmesh.spec.base import EntryPoint, Fault, Name, PositiveInt, Spec, rule
from recmesh.spec.quantity import MIB, Duration, Memory, Moment, Start

FILE_FORMATS = "recmesh.file_formats"
"""The entry point group by which packages add formats."""
BUILT_IN_FORMATS = ("parquet", "csv", "tsv", "criteo", "jsonl", "arrow", "tfrecord", "protobuf", "delta", "iceberg")
TABLE_FORMATS = ("delta", "iceberg")
"""One table, whose snapshot says which files it has."""
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

FeatureKind = Literal["single", "bag", "sequence", "dense"]

SampleKind = Literal["batch", "stream"]
"""Of which kind samples are, for models that learn from each in another way: `batch` have labels that came late and are
right, `stream` such as are known at once."""

_PLACEHOLDER = re.compile(r"(?<!\$)\{[A-Za-z]+\}")
TIME_FIELDS = ("{YYYY}", "{MM}", "{DD}", "{HH}", "{mm}")
"""Of a window's begin, in paths."""


class Source(Spec):
    """Files of one format."""

    format: str = "parquet"
    """`parquet`; `csv`, `tsv`; `criteo`, its tab-separated format as published: label, 13 integers, 26 hexadecimal
    categories; `jsonl`; `arrow` (IPC files, Feather 2); `tfrecord` of tf.Example; `protobuf`, messages with their
    length before them; `delta`, `iceberg`, tables of Parquet files; or one that an installed package adds
    (docs/reference/data.md)."""
    files: list[str] = Field(min_length=1)
    """Paths or fsspec URLs; `*`, `?` and `**` are patterns, listed in name order."""
    compression: Literal["infer", "none", "gzip", "zstd", "snappy"] = "infer"
    """Of the whole file; `infer` goes by its ending (.gz, .zst, .sz). `snappy` is the framing format. Parquet and Arrow
    pack inside, and need none."""
    header: bool = True
    """csv and tsv: the first line names the columns."""
    columns: list[str] = []
    """csv and tsv without a header: the columns' names."""
    delimiter: str = Field(default="", max_length=1)
    """csv and tsv: empty means comma or tab."""
    quoted: bool | None = None
    """Fields may be enclosed in double quotes (RFC 4180). None: in csv yes, in tsv no."""
    types: dict[str, Literal["int", "float", "string", "list<int>", "list<float>", "list<string>"]] = {}
    """csv, tsv, jsonl and tfrecord: types of columns (lists in the last two only); others are inferred from the start
    of each file, which must all agree. parquet and tables: of columns that stand in the path, as `day=2026-11-22`;
    others are text."""
    descriptors: str = ""
    """protobuf: a file of descriptors (`protoc --include_imports --descriptor_set_out=FILE`)."""
    message: str = ""
    """protobuf: the full name of the messages' type."""
    framing: Literal["varint", "fixed32-little", "fixed32-big"] = "varint"
    """protobuf: how the length before each message is written; `varint` as by `writeDelimitedTo`."""
    version: int | None = None
    """delta and iceberg: the table's version, or snapshot. None: the newest one, as it is when its files are listed."""
    partition: dict[str, str] = {}
    """delta and iceberg: only the files with these values of partition columns."""
    priority: float = Field(default=1.0, gt=0, le=1e6)
    """To data executors: how much sooner this source's tasks are read than those of others that wait as long."""
    rows: tuple[float, float] | None = None
    """Only this part of the rows, as fractions of the whole in file order: [0, 0.8] is the first 80 %."""

    @rule
    def _rows_are_fractions(self) -> Iterator[Fault]:
        if self.rows is not None and not 0.0 <= self.rows[0] < self.rows[1] <= 1.0:
            yield "rows", "must be two fractions 0 <= from < to <= 1"

    @rule
    def _format_is_there(self) -> Iterator[Fault]:
        if self.format not in BUILT_IN_FORMATS and self.format not in (known := names(FILE_FORMATS, {})):
            yield "format", f"there is no format {self.format!r}; there are {', '.join((*BUILT_IN_FORMATS, *known))}"

    @rule
    def _fields_fit_the_format(self) -> Iterator[Fault]:
        if self.format in ("parquet", "arrow", *TABLE_FORMATS) and self.compression not in ("infer", "none"):
            yield "compression", f"{self.format} files pack inside; as a whole they cannot be packed"
        if self.format in ("csv", "tsv", "criteo") and (
            wrong := [name for name, kind in self.types.items() if kind.startswith("list")]
        ):
            yield "types", f"columns of {self.format} hold no lists ({', '.join(wrong)}); separator splits text"
        if self.format in TABLE_FORMATS and len(self.files) > 1:
            yield "files", f"a {self.format} source is one table"
        for name in ("version", "partition"):
            if getattr(self, name) and self.format not in TABLE_FORMATS:
                yield name, f"belongs to tables ({', '.join(TABLE_FORMATS)}), not to {self.format}"
        if self.format == "protobuf" and not self.descriptors:
            yield "descriptors", "protobuf needs a file of descriptors"
        if self.format == "protobuf" and not self.message:
            yield "message", "protobuf needs the name of the messages' type"

    @property
    def sample_kind(self) -> SampleKind:
        """Of its samples: files are batches, unless a source of a stream says otherwise."""
        return "batch"

    @rule
    def _columns_are_named(self) -> Iterator[Fault]:
        if self.format in ("csv", "tsv") and not self.header and not self.columns:
            yield "columns", "must name the columns of a file without a header"


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


class Feature(Spec):
    """One input of the model."""

    name: str = Field(min_length=1, max_length=128, pattern=r"^[A-Za-z_][\w-]*$")
    kind: FeatureKind = "single"
    """`single`: one id per row; `bag`: ids pooled; `sequence`: ids in order, unpooled; `dense`: a number."""
    column: str = ""
    """Empty: the feature's name. Strings are hashed to 64-bit ids; integers are ids as they are."""
    columns: list[str] = []
    """single: a cross, one id for each combination of values of these columns; replaces `column`. With `function` any
    kind: its arguments, in this order."""
    function: EntryPoint | None = None
    """A function of the job's code, called before all that follows: an Arrow array per column in, one as long out.
    It must depend on nothing but its arguments: workers, evaluation and serving call it on batches of any size."""
    separator: str = ""
    """bag and sequence in text columns: what stands between ids. List columns need none."""
    weights: str = ""
    """bag: a list column with one weight per id."""
    max_length: PositiveInt = 64
    """sequence: the newest ids are kept."""
    fill: float = 0.0
    """dense: stands for a missing value. A missing id is an id of its own."""
    clip: tuple[float | None, float | None] | None = None
    """dense: the least and the most, before `transform`; null leaves a side open."""
    transform: Literal["none", "log1p", "criteo_log"] = "none"
    """dense: `log1p` is sign(x)·ln(1+|x|); `criteo_log` is ln(x)² above 2, x below (floored)."""
    boundaries: list[float] = []
    """single, bag, sequence: the id is how many of these, ascending, the number reaches; missing stays missing."""
    vocabulary: list[str | int] = []
    """single, bag, sequence: the id is the value's place here, from 1 on; 0 for any other. Instead of hashing."""
    buckets: PositiveInt | None = None
    """single, bag, sequence: ids modulo this, after all else; a missing id is hashed like any other."""

    @rule
    def _weights_of_bags(self) -> Iterator[Fault]:
        if self.weights and self.kind != "bag":
            yield "weights", f"feature {self.name}: weights belong to bags, not to {self.kind}"

    @rule
    def _transform_of_numbers(self) -> Iterator[Fault]:
        if self.transform != "none" and self.kind != "dense":
            yield "transform", f"feature {self.name}: transform belongs to dense features"

    @rule
    def _columns_instead_of_one(self) -> Iterator[Fault]:
        if self.columns and self.column:
            yield "columns", f"feature {self.name}: column or columns, not both"
        if self.columns and self.kind != "single" and self.function is None:
            reason = f"a cross is a single id; for a {self.kind} name one column, or a function"
            yield "columns", f"feature {self.name}: {reason}"

    @rule
    def _steps_fit_the_kind(self) -> Iterator[Fault]:
        if self.clip is not None and self.kind != "dense":
            yield "clip", f"feature {self.name}: clip belongs to dense features"
        for name in ("boundaries", "vocabulary", "buckets"):
            if getattr(self, name) and self.kind == "dense":
                yield name, f"feature {self.name}: {name} makes ids, and a dense feature is a number"
        if self.boundaries and self.vocabulary:
            yield "vocabulary", f"feature {self.name}: boundaries or vocabulary, not both"
        if self.columns and self.function is None and (self.boundaries or self.vocabulary):
            yield "columns", f"feature {self.name}: a cross is hashed; boundaries and vocabulary are of one column"

    @rule
    def _numbers_are_ordered(self) -> Iterator[Fault]:
        if any(left >= right for left, right in pairwise(self.boundaries)):
            yield "boundaries", f"feature {self.name}: boundaries must ascend"
        low, high = self.clip or (None, None)
        if low is not None and high is not None and low > high:
            yield "clip", f"feature {self.name}: the least must not be above the most"
        if len({str(value) for value in self.vocabulary}) != len(self.vocabulary):
            yield "vocabulary", f"feature {self.name}: a value is there twice"

    @property
    def source_columns(self) -> list[str]:
        """The columns that feed the feature, its weights aside."""
        return self.columns or [self.column or self.name]


Scalar = int | float | str | bool
"""What a column is compared with."""


class Condition(Spec):
    """A comparison of a column; a missing value never holds one."""

    column: str = Field(min_length=1)
    op: Literal["=", "!=", "<", "<=", ">", ">=", "in"] = "="
    value: Scalar | None = None
    values: list[Scalar] = []
    """With `in`: one of these."""

    @rule
    def _value_or_values(self) -> Iterator[Fault]:
        if (self.op == "in") == (self.value is not None):
            yield "value", "belongs to a comparison; `in` has values" if self.op == "in" else "is missing"
        if (self.op == "in") != bool(self.values):
            yield "values", "are missing" if self.op == "in" else "belong to `in`"
        if len({isinstance(value, str) for value in self.values}) > 1:
            yield "values", "must all be texts, or all be numbers"


class BadRecords(Spec):
    """What becomes of records that cannot be read."""

    limit: int = Field(ge=0, le=1_000_000_000)
    """So many are passed over; one more, and the job fails."""
    folder: str = ""
    """Where they are written down, as JSON lines: file, row, reason. A path or fsspec URL; empty: nowhere."""


class Materialised(Spec):
    """A cache of rows as they are after the transform."""

    folder: str = Field(min_length=1)
    """On a disk of the machine (or one that machines share): every task that was decoded becomes a file in it, and is
    read from there next time, by workers, executors and loaders alike."""
    limit: Annotated[Memory, Field(ge=MIB)] = 16 << 30
    """Of all files in the folder; beyond it those go that were not used for longest."""


class DatasetSpec(Spec):
    """Rows in files, what to predict, and from what: a `source`, or `streams` of them."""

    name: Name | None = None
    source: Source | None = None
    streams: list[Stream] = Field(default=[], max_length=64)
    """Instead of `source`: data in order of time, window by window."""
    together: bool = False
    """Streams are served together, window by window; else one after another."""
    label: str = "label"
    """The column of targets. 0 and 1, or numbers compared by `label_above`."""
    label_above: float | None = None
    """When set, the target is 1 where the column is greater than this, else 0."""
    labels: list[str] = []
    """Several targets (multi-task models); replaces `label`."""
    weight: str = ""
    """A column of sample weights."""
    features: list[Feature] = Field(min_length=1)
    mode: Literal["forward", "rebalance"] | None = None
    """Of the job's data executors; None: as `roles.data.mode` says."""
    shuffle: bool = True
    """Tasks among each other and rows within a task, by the job's seed."""
    task_rows: PositiveInt = 65536
    """Rows of one task record: the unit of shuffling and reading."""
    where: list[Condition] = Field(default=[], max_length=64)
    """Only rows for which all of these hold. They are taken out after positions are counted, so batches are smaller;
    row groups of Parquet that can have no such rows are not even read."""
    bad_records: BadRecords | None = None
    """None: a record that cannot be read fails the job."""
    cache: Materialised | None = None
    """None: rows are read from their files each time."""

    @rule
    def _names_differ(self) -> Iterator[Fault]:
        names = [feature.name for feature in self.features]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            yield "features", f"features named twice: {', '.join(twice)}"

    @rule
    def _source_or_streams(self) -> Iterator[Fault]:
        if self.source is None and not self.streams:
            yield "source", "is missing: name files, or streams of them"
        if self.source is not None and self.streams:
            yield "streams", "source or streams, not both"

    @rule
    def _streams_end_before_others_begin(self) -> Iterator[Fault]:
        for index, stream in enumerate(self.streams[:-1]):
            if not self.together and any(source.end is None for source in stream.sources):
                yield f"streams.{index}", "never ends, so the stream after it would never begin; see together"

    @rule
    def _types_agree(self) -> Iterator[Fault]:
        known: dict[str, str] = {}
        for s, stream in enumerate(self.streams):
            for i, source in enumerate(stream.sources):
                for column, kind in source.types.items():
                    if known.setdefault(column, kind) != kind:
                        yield f"streams.{s}.sources.{i}.types", f"{column} is {known[column]} in another source"

    def views(self) -> "list[SourceSpec]":
        """The dataset as each of its sources sees it: the one, or those of all streams in order."""
        sources = [self.source] if self.source else [source for stream in self.streams for source in stream.sources]
        fields = {name: getattr(self, name) for name in DatasetSpec.model_fields} | {"streams": []}
        return [SourceSpec.model_construct(**fields | {"source": source}) for source in sources]

    @property
    def kinds(self) -> tuple[SampleKind, ...]:
        """By view: of which kind its samples are."""
        sources = [self.source] if self.source else [source for stream in self.streams for source in stream.sources]
        return tuple(source.sample_kind for source in sources)

    @property
    def endless(self) -> bool:
        """Whether rows come for ever."""
        return any(source.end is None for stream in self.streams for source in stream.sources)

    @property
    def has_topics(self) -> bool:
        """Whether some rows are messages."""
        return any(source.is_topic for stream in self.streams for source in stream.sources)

    @property
    def label_columns(self) -> list[str]:
        """The target columns, in order."""
        return self.labels or [self.label]


class SourceSpec(DatasetSpec):
    """A dataset of one source: what formats of files are given. Made by `DatasetSpec.views`."""

    source: Source
