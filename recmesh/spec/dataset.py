"""`DatasetSpec`: which files a job trains on, and what their columns mean."""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from recmesh.spec.base import Fault, Name, PositiveInt, Spec, rule

FeatureKind = Literal["single", "bag", "sequence", "dense"]


class Source(Spec):
    """Files of one format."""

    format: Literal["parquet", "csv", "tsv", "criteo"] = "parquet"
    """`criteo` is its tab-separated format as published: label, 13 integers, 26 hexadecimal categories."""
    files: list[str] = Field(min_length=1)
    """Paths or fsspec URLs; `*`, `?` and `**` are patterns, listed in name order."""
    compression: Literal["infer", "none", "gzip"] = "infer"
    header: bool = True
    """csv and tsv: the first line names the columns."""
    columns: list[str] = []
    """csv and tsv without a header: the columns' names."""
    delimiter: str = Field(default="", max_length=1)
    """csv and tsv: empty means comma or tab."""
    quoted: bool | None = None
    """Fields may be enclosed in double quotes (RFC 4180). None: in csv yes, in tsv no."""
    types: dict[str, Literal["int", "float", "string"]] = {}
    """csv and tsv: types of columns; others are inferred from the start of each file, which must all agree."""
    rows: tuple[float, float] | None = None
    """Only this part of the rows, as fractions of the whole in file order: [0, 0.8] is the first 80 %."""

    @rule
    def _rows_are_fractions(self) -> Iterator[Fault]:
        if self.rows is not None and not 0.0 <= self.rows[0] < self.rows[1] <= 1.0:
            yield "rows", "must be two fractions 0 <= from < to <= 1"

    @rule
    def _columns_are_named(self) -> Iterator[Fault]:
        if self.format in ("csv", "tsv") and not self.header and not self.columns:
            yield "columns", "must name the columns of a file without a header"


class Feature(Spec):
    """One input of the model."""

    name: str = Field(min_length=1, max_length=128, pattern=r"^[A-Za-z_][\w-]*$")
    kind: FeatureKind = "single"
    """`single`: one id per row; `bag`: ids pooled; `sequence`: ids in order, unpooled; `dense`: a number."""
    column: str = ""
    """Empty: the feature's name. Strings are hashed to 64-bit ids; integers are ids as they are."""
    separator: str = ""
    """bag and sequence in text columns: what stands between ids. List columns need none."""
    weights: str = ""
    """bag: a list column with one weight per id."""
    max_length: PositiveInt = 64
    """sequence: the newest ids are kept."""
    fill: float = 0.0
    """dense: stands for a missing value. A missing id is an id of its own."""
    transform: Literal["none", "log1p", "criteo_log"] = "none"
    """dense: `log1p` is sign(x)·ln(1+|x|); `criteo_log` is ln(x)² above 2, x below (floored)."""

    @rule
    def _weights_of_bags(self) -> Iterator[Fault]:
        if self.weights and self.kind != "bag":
            yield "weights", f"feature {self.name}: weights belong to bags, not to {self.kind}"

    @rule
    def _transform_of_numbers(self) -> Iterator[Fault]:
        if self.transform != "none" and self.kind != "dense":
            yield "transform", f"feature {self.name}: transform belongs to dense features"

    @property
    def source_column(self) -> str:
        """The column that feeds the feature."""
        return self.column or self.name


class DatasetSpec(Spec):
    """Rows in files, what to predict, and from what."""

    name: Name | None = None
    source: Source
    label: str = "label"
    """The column of targets. 0 and 1, or numbers compared by `label_above`."""
    label_above: float | None = None
    """When set, the target is 1 where the column is greater than this, else 0."""
    labels: list[str] = []
    """Several targets (multi-task models); replaces `label`."""
    weight: str = ""
    """A column of sample weights."""
    features: list[Feature] = Field(min_length=1)
    shuffle: bool = True
    """Tasks among each other and rows within a task, by the job's seed."""
    task_rows: PositiveInt = 65536
    """Rows of one task record: the unit of shuffling and reading."""

    @rule
    def _names_differ(self) -> Iterator[Fault]:
        names = [feature.name for feature in self.features]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            yield "features", f"features named twice: {', '.join(twice)}"

    @property
    def label_columns(self) -> list[str]:
        """The target columns, in order."""
        return self.labels or [self.label]
