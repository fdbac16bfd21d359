"""`Feature`: one input of a model, and the steps from columns to it."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Literal

from pydantic import Field

from recmesh.spec.base import EntryPoint, Fault, PositiveInt, Spec, rule

FeatureKind = Literal["single", "bag", "sequence", "dense"]


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
