"""What a model sees of training, whatever its framework and wherever it runs.

A framework skin declares its embedding tables and dense blocks once, then takes steps: each brings a batch
of the job's data, the current rows of the ids in it and the current dense values; the skin answers with
gradients. Who holds the rows, which process leased the batch and what happens when something dies is not
visible from here.

    job.session.declare(tables, dense)
    for step in job.session.steps():
        loss, row_grads, dense_grads, predictions = ...
        step.push(row_grads, dense_grads, loss=loss, predictions=predictions)
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from recmesh.runtime.errors import FailedPrecondition, InvalidArgument, Violation
from recmesh.spec.dataset import DatasetSpec, Feature
from recmesh.spec.job import Optimizer, TablePolicy, TrainingJob

if TYPE_CHECKING:
    from recmesh.data import Batch

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Pooling = Literal["sum", "mean", "max", "none"]
BlockKind = Literal["parameter", "statistic"]
Mode = Literal["train", "build"]

_log = logging.getLogger("recmesh.job")


@dataclass(frozen=True)
class Init:
    """The value of a row that was never trained: a pure function of (seed, table, id)."""

    kind: Literal["zeros", "uniform", "normal"] = "uniform"
    scale: float = 0.05
    """Half width of `uniform`, standard deviation of `normal`."""

    @staticmethod
    def zeros() -> "Init":
        """All zeros."""
        return Init("zeros", 0.0)

    @staticmethod
    def uniform(scale: float = 0.05) -> "Init":
        """Between -scale and scale; 0.05 is what Keras' `Embedding` starts with."""
        return Init("uniform", scale)

    @staticmethod
    def normal(scale: float = 0.01) -> "Init":
        """Mean 0, standard deviation `scale`."""
        return Init("normal", scale)


@dataclass(frozen=True)
class EmbeddingTable:
    """One embedding table. The names are torchrec's; there is no size, rows appear with their ids."""

    name: str
    dim: int
    features: Sequence[str] = ()
    """The id features that look up here; empty: the feature named like the table."""
    pooling: Pooling = "sum"
    """Of its bags: single ids need none, and sequences stay unpooled. An empty bag is zero.

    With weights, `sum` is Σ w·row and `mean` that over Σ w; `max` pays them no heed. `none` leaves bags unpooled.
    """
    optimizer: Optimizer | None = None
    """None: what the job says for this table (`training.table_optimizers`), else `training.optimizer`."""
    init: Init = field(default_factory=Init.uniform)
    policy: TablePolicy | None = None
    """None: what the job says for this table (`training.tables`), else rows for all ids, for ever."""

    def __post_init__(self) -> None:
        """Refuses what can't be a table."""
        if not self.name or self.dim < 1:
            raise InvalidArgument(f"embedding table {self.name!r} needs a name and dim >= 1, not {self.dim}")
        object.__setattr__(self, "features", tuple(self.features) or (self.name,))


@dataclass(frozen=True)
class DenseBlock:
    """A named dense tensor that lives on the parameter servers in chunks."""

    name: str
    value: Floats
    """Its initial value; the first declaration in a job's life wins."""
    kind: BlockKind = "parameter"
    """`statistic` (running means and variances): pushes are deltas that are added as they are."""
    optimizer: Optimizer | None = None
    """None: `training.optimizer`. A statistic has none."""


@dataclass(frozen=True)
class TableRows:
    """All trained rows of one table, ascending by id."""

    ids: Ints
    values: Floats


class Step(Protocol):
    """One batch between pull and push. Arrays belong to the step; take copies of what outlives it."""

    @property
    def batch(self) -> "Batch":
        """The samples, as the dataset's specification orders them."""

    @property
    def rows(self) -> Mapping[str, Floats]:
        """By table: float32 [unique ids, dim], the current rows of the batch's distinct ids."""

    @property
    def index(self) -> Mapping[str, Ints]:
        """By feature: for each of the column's values, which row of its table's `rows` it is.

        Where several tables have the feature, that is the first of them; for the others see `index_of`.
        """

    @property
    def dense(self) -> Mapping[str, Floats]:
        """By block: the current value, in its declared shape."""

    def push(
        self,
        row_grads: Mapping[str, Floats | None],
        dense_grads: Mapping[str, Floats | None],
        *,
        loss: float,
        predictions: Floats | None = None,
    ) -> None:
        """Hands over the gradients of (sum of per-sample losses) / job.batch_size.

        `row_grads` [unique ids, dim] by table; `dense_grads` by block, for statistics their deltas; what is
        missing counts as zero, on which an optimizer may well move (momentum, weight decay). None: the batch does not
        train this, and it stays bit for bit as it is; of a table, its ids do not count as seen either. `loss` is the
        batch's mean per sample and `predictions` float32 [B] or [B, labels]; both are only reported. Returns before the
        servers have answered. Gradients that are not finite are dealt with by `training.nan`.
        """

    def skip_nan(self) -> None:
        """Passes the batch over for numbers that are not finite: its ids are pushed with zero gradients."""


def index_of(index: Mapping[str, Ints], table: str, feature: str) -> Ints:
    """Which row of a table each value of a feature is, of `Step.index`."""
    return index[other] if (other := f"{table}/{feature}") in index else index[feature]


class Session(Protocol):
    """The life of a model's parameters in one process."""

    def declare(self, tables: Sequence[EmbeddingTable], dense: Sequence[DenseBlock]) -> None:
        """Says what there is to train, once, before the first step; InvalidArgument names what is wrong."""

    def steps(self) -> Iterator[Step]:
        """Batches until the data is trained or the process shall stop; each ends by push or skip_nan."""

    def close(self) -> None:
        """Waits for pushes in flight, then gives the rest back; a step not pushed stays untrained."""


class ServableModel(Protocol):
    """What a skin attaches, so that evaluator and finisher can judge and export the model."""

    @property
    def framework(self) -> str:
        """`torch` or `tensorflow`."""

    @property
    def tables(self) -> Sequence[EmbeddingTable]:
        """As declared."""

    @property
    def dense(self) -> Sequence[DenseBlock]:
        """As declared."""

    def predict(
        self,
        batch: "Batch",
        rows: Mapping[str, Floats],
        index: Mapping[str, Ints],
        dense: Mapping[str, Floats],
    ) -> Floats:
        """Float32 [B] or [B, labels]: probabilities for binary targets. Arguments as in Step."""

    def export(
        self,
        directory: Path,
        *,
        tables: Mapping[str, TableRows],
        dense: Mapping[str, Floats],
        metrics: Mapping[str, float],
    ) -> None:
        """Writes the model with its rows inside (`saved_model/` or `model.pt2`), and `model.json`."""


@runtime_checkable
class FollowableModel(ServableModel, Protocol):
    """One that can be served while it trains."""

    def export_apart(
        self,
        directory: Path,
        *,
        job_id: str,
        checkpoints: str,
        tables: Mapping[str, TableRows],
        dense: Mapping[str, Floats],
        metrics: Mapping[str, float],
    ) -> None:
        """Writes the model without its rows: a program that takes those of a request, and `model.json`.

        `checkpoints` is the URI of the folder of the job's snapshots, which servers of the model follow.
        """


class BuildOnly(BaseException):
    """Raised where steps would start, in processes that only need the model; let it pass through."""


@dataclass
class Job:
    """What the user's `main(job)` gets."""

    spec: TrainingJob
    session: Session
    mode: Mode = "train"
    id: str = "local"
    model: ServableModel | None = None

    @property
    def params(self) -> dict[str, Any]:
        """`model.params` of the specification."""
        return self.spec.model.params

    @property
    def data(self) -> DatasetSpec:
        """What the job trains on, resolved."""
        if self.spec.data is None:
            raise FailedPrecondition("the job's dataset is not resolved yet")
        return self.spec.data

    @property
    def features(self) -> Sequence[Feature]:
        """All inputs, in order."""
        return self.data.features

    @property
    def dense_features(self) -> list[str]:
        """Names of the dense inputs: the columns of `batch.dense`, in order."""
        return [feature.name for feature in self.features if feature.kind == "dense"]

    @property
    def id_features(self) -> dict[str, Feature]:
        """Single, bag and sequence features by name, in order."""
        return {feature.name: feature for feature in self.features if feature.kind != "dense"}

    @property
    def labels(self) -> list[str]:
        """The target columns: the columns of `batch.labels`, in order."""
        if self.spec.data is None:
            raise FailedPrecondition("the job's dataset is not resolved yet")
        return self.spec.data.label_columns

    @property
    def batch_size(self) -> int:
        """The nominal batch size, by which summed losses are divided."""
        return self.spec.training.batch_size

    @property
    def seed(self) -> int:
        """Of initial values and shuffling."""
        return self.spec.training.seed

    def attach(self, model: ServableModel) -> None:
        """A skin declares its model: its tables and blocks go to the session."""
        check_tables(model.tables, self.id_features)
        self.model = model
        self.session.declare(model.tables, model.dense)

    def log(self, message: str, **fields: Any) -> None:
        """One line into the role's log."""
        _log.info("%s%s", message, "".join(f" {key}={value}" for key, value in fields.items()))


def check_tables(tables: Sequence[EmbeddingTable], id_features: Mapping[str, Feature]) -> None:
    """InvalidArgument unless names are distinct and each feature exists, has ids, and is in a table once at most."""
    violations: list[Violation] = []
    names: set[str] = set()
    for table in tables:
        path = f"tables.{table.name}"
        if table.name in names:
            violations.append(Violation(path, "there are two tables of this name"))
        names.add(table.name)
        for feature in table.features:
            if feature not in id_features:
                violations.append(Violation(f"{path}.features", f"the data has no id feature {feature!r}"))
            elif table.features.count(feature) > 1:
                violations.append(Violation(f"{path}.features", f"{feature!r} is there twice"))
    if violations:
        raise InvalidArgument("the model's embedding tables don't fit the data", violations=violations)
