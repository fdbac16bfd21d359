"""Rows of messages: a message is a row, and its offset where it stands."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.json as pj

from recmesh.data.faults import wrong
from recmesh.data.fileformats.messages import Columns, Decoder, example_decoder, message_decoder
from recmesh.data.records import FileSlice, Int64
from recmesh.data.schema import ARROW_TYPES, Kind, kind_of, needed_columns
from recmesh.data.topics import topic_of
from recmesh.data.topics.interface import NOT_THERE_YET, Message, Partition, Topic
from recmesh.runtime.errors import DataLoss, InvalidArgument, NotFound, Unavailable
from recmesh.spec.dataset import SourceSpec, StreamSource


class Rows(NamedTuple):
    """The messages that are there of a slice."""

    table: Any
    """`pyarrow.Table` with the needed columns."""
    rows: Int64 | None
    """Which rows of the slice these are, ascending. None: all."""


class TopicReader:
    """Reads slices of a topic's partitions. One thread at a time."""

    def __init__(self, spec: SourceSpec, topic: Topic | None = None) -> None:
        """As of `topic_of`."""
        source = spec.source
        assert isinstance(source, StreamSource)
        self._topic = topic or topic_of(source)
        self._parse = parser_of(spec)

    def read(self, piece: FileSlice) -> Rows:
        """DataLoss: the topic has let go of messages that are to be trained. InvalidArgument: they are no rows."""
        lo, hi = piece.first_row, piece.first_row + piece.rows
        found = self._found(piece, lo, hi)
        if len(found) < piece.rows:
            self._check(piece, found)
        else:
            self._check_tag(piece)
        found = [message for message in found if message.value]     # without one it is no row
        table = self._parse([message.value for message in found], piece)
        if len(found) == piece.rows:
            return Rows(table, None)
        return Rows(table, np.asarray([message.offset - lo for message in found], np.int64))

    def _found(self, piece: FileSlice, lo: int, hi: int) -> Sequence[Message]:
        try:
            return self._topic.read(piece.uri, lo, hi)
        except Unavailable as error:
            if error.reason == NOT_THERE_YET:   # what was there once: another one of its name may be, which is shorter
                self._listed(piece)
            raise

    def _check_tag(self, piece: FileSlice) -> None:
        """Another partition of its name may have as many messages. What was asked before the read would not tell."""
        try:
            tag = self._topic.tag_of(piece.uri)
        except NotFound:
            tag = self._listed(piece).tag
        if tag != piece.etag:
            raise _made_again(piece)

    def _listed(self, piece: FileSlice) -> Partition:
        """As it is now; DataLoss: it is not there any more."""
        for partition in self._topic.partitions():
            if (partition.uri, partition.tag) == (piece.uri, piece.etag):
                return partition
        raise _made_again(piece)

    def _check(self, piece: FileSlice, found: Sequence[Message]) -> None:
        """Offsets without messages are nothing unusual, but not at the topic's beginning: there it lets go of them."""
        partition = self._listed(piece)
        if partition.span.first > piece.first_row and not (found and found[0].offset == piece.first_row):
            raise DataLoss(
                f"{piece.uri} begins at offset {partition.span.first} now, and {piece.first_row} is to be trained: "
                "its retention is too short", reason="MESSAGES_GONE",
            )


def _made_again(piece: FileSlice) -> DataLoss:
    return DataLoss(f"{piece.uri} was deleted since it was read first", reason="FILE_CHANGED")


def kinds_of(spec: SourceSpec) -> Mapping[str, Kind]:
    """The columns of a topic's messages, as they are declared."""
    source = spec.source
    if source.format == "protobuf":
        return message_decoder(source.descriptors, source.message).columns((), declared={}, where="messages").kinds
    return {name: kind_of(ARROW_TYPES[kind]) for name, kind in source.types.items()}


def trimmed(piece: FileSlice, lo: int, hi: int) -> FileSlice:
    """Rows [lo, hi) of a slice, counted from its own first row."""
    return replace(piece, first_row=piece.first_row + lo, rows=hi - lo)


Parse = Callable[[Sequence[bytes], FileSlice], Any]


def parser_of(spec: SourceSpec) -> Parse:
    """From messages to a table of the columns that the specification needs."""
    source, needed = spec.source, needed_columns(spec)
    if source.format == "jsonl":
        schema = pa.schema([(name, ARROW_TYPES[kind]) for name, kind in source.types.items() if name in needed])
        return lambda values, piece: _json(values, schema, piece)
    decoder: Decoder = (
        example_decoder() if source.format == "tfrecord" else message_decoder(source.descriptors, source.message)
    )
    if source.format == "tfrecord":
        columns = Columns({name: ARROW_TYPES[kind] for name, kind in source.types.items()})
    else:
        columns = decoder.columns((), declared={}, where="messages")
    return lambda values, piece: decoder.table(
        values, columns, needed, where=piece.uri, first_row=piece.first_row
    )


def _unfit(where: str, reason: str) -> InvalidArgument:
    return wrong("data.source.types", f"{where} cannot be read: {reason}")


def _json(values: Sequence[bytes], schema: Any, piece: FileSlice) -> Any:
    where = f"{piece.uri} from offset {piece.first_row} on"
    if not values:
        return schema.empty_table()
    if any(not value.strip() for value in values):
        raise _unfit(where, "a message is empty")
    data = b"\n".join(value.replace(b"\n", b" ") for value in values)
    try:
        table = pj.read_json(
            pa.BufferReader(data),
            read_options=pj.ReadOptions(use_threads=False, block_size=max(1 << 20, len(data) + 1)),
            parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
        )
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise _unfit(where, str(error)) from None
    if table.num_rows != len(values):
        raise _unfit(where, f"{len(values)} messages are {table.num_rows} JSON objects")
    return table
