"""`Source`: files of one format, and what a sample is."""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from recmesh.plugins.registry import names
from recmesh.spec.base import Fault, Spec, rule

FILE_FORMATS = "recmesh.file_formats"
"""The entry point group by which packages add formats."""
BUILT_IN_FORMATS = ("parquet", "csv", "tsv", "criteo", "jsonl", "arrow", "tfrecord", "protobuf", "delta", "iceberg")
TABLE_FORMATS = ("delta", "iceberg")
"""One table, whose snapshot says which files it has."""

SampleKind = Literal["batch", "stream"]
"""Of which kind samples are, for models that learn from each in another way: `batch` have labels that came late and are
right, `stream` such as are known at once."""


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
        for name, kind in self.types.items():
            if kind.startswith("list") and self.format in ("csv", "tsv", "criteo"):
                yield f"types.{name}", f"columns of {self.format} hold no lists; separator splits text"
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
