"""`LabelJoin`: samples that were logged without a label, and labels that come later, joined by id within a window."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from recmesh.spec.base import Fault, Name, PositiveInt, Spec, rule
from recmesh.spec.dataset import TIME_FIELDS
from recmesh.spec.quantity import Duration, Memory

TopicName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$", max_length=200)]
"""Letters, digits, '-' and '_', and single dots inside."""


class Samples(Spec):
    """The topic of samples: each message one JSON object."""

    topic: TopicName
    key: str = Field(min_length=1)
    """The field by which a sample and its labels belong together: text or an integer, once per sample."""
    time: str = ""
    """The field of event time. Empty: the header `Recmesh-Time`, or when the server got the message."""
    disorder: Duration = 0.0
    """By how much a message may be older than the one before it in its partition."""


class Labels(Samples):
    """The topic of labels."""

    value: str = ""
    """The field of the label, a number or true and false. Empty: a message is a label of 1."""
    several: Literal["last", "first", "max"] = "last"
    """Which of several labels of a sample counts, by their event times or their values."""


class TopicOutput(Spec):
    """Joined samples as messages, in partitions by their key."""

    topic: TopicName
    partitions: Annotated[int, Field(ge=1, le=4096)] | None = None
    """Of a new topic, 1 by default; one that is there must have as many."""
    max_age: Duration = 0.0
    """Of a new topic: how long messages are kept; 0: for ever."""
    max_bytes: Memory | None = None
    """Of each partition of a new topic: the oldest go first. None: as many as there is room for."""
    replicas: Annotated[int, Field(ge=1, le=5)] = 1


class FileOutput(Spec):
    """Joined samples as files by the samples' time, as a stream of a dataset reads them."""

    folder: str = Field(min_length=1)
    """A path or fsspec URL with `{YYYY}`, `{MM}`, `{DD}`, `{HH}` and `{mm}` of a window's begin, in UTC."""
    format: Literal["parquet", "jsonl"] = "parquet"
    window: Duration = 3600.0
    """Whole minutes; windows begin at its multiples, counted from 1970."""
    done: str = "_SUCCESS"
    """The name of the file that is there once a window is complete; empty: none is made."""
    rows: PositiveInt = 65536
    """Of a file; what is not yet in one is held in memory."""
    types: dict[str, Literal["int", "float", "string", "list<int>", "list<float>", "list<string>"]] = {}
    """parquet: types of columns; others are those of each file's own values."""

    @rule
    def _windows_are_told_apart(self) -> Iterator[Fault]:
        if not 60 <= self.window or self.window % 60:
            yield "window", "must be whole minutes"
            return
        needed = TIME_FIELDS[: 5 if self.window % 3600 else 4 if self.window % 86400 else 3]
        if missing := [field for field in needed if field not in self.folder]:
            yield "folder", f"windows of {self.window:g} s need {', '.join(missing)} here, else several would be one"

    @rule
    def _done_is_a_name(self) -> Iterator[Fault]:
        if "/" in self.done:
            yield "done", "is the name of a file in the window's folder"


class LabelJoin(Spec):
    """A process that joins."""

    name: Name
    """Under which its positions are kept; two joins have two names."""
    server: str = ""
    """`nats://host:4222`; empty: the mesh's own. The token is $RECMESH_NATS_TOKEN."""
    samples: Samples
    labels: Labels
    window: Duration
    """How long after its sample a label counts, by their event times; so long a sample waits."""
    early: Duration | None = None
    """How long before its sample a label counts; None: as long as the window."""
    label: str = Field(default="label", min_length=1)
    """The field that a joined sample has its label in."""
    default_label: float | None = 0.0
    """The label of a sample for which none came. None: such a sample is dropped."""
    topic: TopicOutput | None = None
    files: FileOutput | None = None
    late_topic: TopicName | None = None
    """Where labels go that came too late; a topic of one partition. None: they are only counted."""
    limit: PositiveInt = 1_000_000
    """Samples that wait, and labels that wait for their sample: at so many of a kind no more of it are read."""
    idle: Duration = 60.0
    """A partition from which nothing comes for so long does not hold up the others. 0: it always does."""
    commit: Duration = Field(default=1.0, gt=0)
    """How often the positions are written down: after a crash so much is read, and joined, again."""

    @rule
    def _one_output(self) -> Iterator[Fault]:
        if (self.topic is None) == (self.files is None):
            yield "topic", "give either topic or files, where joined samples go"

    @rule
    def _topics_differ(self) -> Iterator[Fault]:
        named = [self.samples.topic, self.labels.topic]
        if self.topic is not None:
            named.append(self.topic.topic)
        if self.late_topic is not None:
            named.append(self.late_topic)
        if len(set(named)) != len(named):
            yield "topic" if self.topic else "labels.topic", "samples, labels and outputs are topics of their own"

    @rule
    def _window_is_some_time(self) -> Iterator[Fault]:
        if not self.window > 0:
            yield "window", "must be longer than nothing"

    @property
    def early_s(self) -> float:
        """How long before its sample a label counts."""
        return self.window if self.early is None else self.early
