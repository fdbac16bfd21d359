"""`DatasetSpec`: which files a job trains on, in which order of time, and what their columns mean.

Its parts stand beside it: `source`, `stream`, `feature`. Whoever needs a dataset finds all of them here.
"""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from recmesh.spec.base import Fault, Name, PositiveInt, Spec, rule
from recmesh.spec.feature import Feature, FeatureKind
from recmesh.spec.quantity import MIB, Memory
from recmesh.spec.source import BUILT_IN_FORMATS, FILE_FORMATS, TABLE_FORMATS, SampleKind, Source
from recmesh.spec.stream import (
    KAFKA_OPTION_FAMILIES,
    KAFKA_OPTIONS,
    KAFKA_SECRETS,
    MESSAGE_FORMATS,
    SASL,
    SASL_MECHANISMS,
    TIME_FIELDS,
    TOPIC_VARIABLES,
    VARIABLE,
    Stream,
    StreamSource,
)

__all__ = [
    "BUILT_IN_FORMATS", "FILE_FORMATS", "KAFKA_OPTIONS", "KAFKA_OPTION_FAMILIES", "KAFKA_SECRETS", "MESSAGE_FORMATS",
    "SASL", "SASL_MECHANISMS", "TABLE_FORMATS", "TIME_FIELDS", "TOPIC_VARIABLES", "VARIABLE", "BadRecords",
    "Condition", "DatasetSpec", "Feature", "FeatureKind", "Materialised", "SampleKind", "Scalar", "Source",
    "SourceSpec", "Stream", "StreamSource",
]

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
