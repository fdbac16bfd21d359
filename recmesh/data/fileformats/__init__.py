"""The kinds of files that a dataset may be made of."""

from collections.abc import Callable

from recmesh.data.faults import wrong
from recmesh.data.fileformats.interface import FileFormat, Indexed, SliceReader
from recmesh.plugins.registry import BrokenPlugin, UnknownPlugin, load
from recmesh.spec.dataset import FILE_FORMATS

__all__ = ["FileFormat", "Indexed", "SliceReader", "format_named"]


def _parquet() -> FileFormat:
    from recmesh.data.fileformats.parquet import Parquet

    return Parquet()


def _arrow() -> FileFormat:
    from recmesh.data.fileformats.arrow import ArrowFile

    return ArrowFile()


def _delimited() -> FileFormat:
    from recmesh.data.fileformats.text import Delimited

    return Delimited()


def _jsonl() -> FileFormat:
    from recmesh.data.fileformats.jsonl import JsonLines

    return JsonLines()


def _tfrecord() -> FileFormat:
    from recmesh.data.fileformats.framed import tf_records

    return tf_records()


def _protobuf() -> FileFormat:
    from recmesh.data.fileformats.framed import length_prefixed

    return length_prefixed()


_BUILT_IN: dict[str, Callable[[], FileFormat]] = {
    "parquet": _parquet, "delta": _parquet, "iceberg": _parquet, "arrow": _arrow, "csv": _delimited, "tsv": _delimited,
    "criteo": _delimited, "jsonl": _jsonl, "tfrecord": _tfrecord, "protobuf": _protobuf,
}


def format_named(name: str) -> FileFormat:
    """The format, of recmesh or of an installed package. InvalidArgument when there is none, or it is broken."""
    try:
        made: FileFormat = load(FILE_FORMATS, name, _BUILT_IN)()
    except (UnknownPlugin, BrokenPlugin) as error:
        raise wrong("data.source.format", str(error)) from None
    return made
