"""Keras' training loop over the job's parameter servers: `model.fit(attach(job, model))`."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import keras
import numpy as np
import tensorflow as tf

from recmesh.keras.embedding import EmbeddingCollection, looking_up
from recmesh.keras.export import export_apart, export_saved_model
from recmesh.keras.feeds import Feeds, concatenate, lend, split
from recmesh.keras.inputs import signature
from recmesh.keras.mixed import training_on
from recmesh.keras.optim import translate
from recmesh.runtime.errors import InvalidArgument, Violation
from recmesh.serving.apart import Apart, ApartTable
from recmesh.spec.dataset import SampleKind
from recmesh.trainer.layout import Arena, DenseLayout, joined
from recmesh.trainer.pooling import take_back
from recmesh.trainer.ports import DenseDeclaration
from recmesh.trainer.session import BuildOnly, DenseBlock, EmbeddingTable, Floats, Ints, Job, Step, TableRows

if TYPE_CHECKING:
    from recmesh.data import Batch


def attach(job: Job, model: keras.Model) -> Any:
    """Gives the model's parameters to the job's servers; returns the dataset for `model.fit`.

    `model` is compiled, and built on `recmesh.keras.inputs(job)`. Its optimizer (SGD, Adagrad, Adam or Ftrl) says how
    the servers update the dense parameters, and is never stepped here. `fit` ends when the job's data is trained;
    its `epochs` stays 1, as epochs are the job's. Where only the model is wanted (evaluation, export) this does
    not return.
    """
    attached = Attached(job, model)
    job.attach(attached)
    if job.mode == "build":
        raise BuildOnly
    return attached.take_over_fit()


class Attached:
    """See ServableModel."""

    framework = "tensorflow"

    def __init__(self, job: Job, model: keras.Model) -> None:
        self.job, self.model = job, model
        if not getattr(model, "compiled", False):
            raise InvalidArgument("compile the model before it is attached: the servers need its optimizer")
        layers = [layer for layer in model.layers if isinstance(layer, EmbeddingCollection)]
        self.tables: tuple[EmbeddingTable, ...] = tuple({t.name: t for layer in layers for t in layer.tables}.values())
        self._home = {feature: table for table in reversed(self.tables) for feature in table.features}
        """Of the tables that have a feature, the first: its rows stand for ids in what the model is fed."""
        self._twins = [table for table in self.tables if self._home[table.features[0]] is not table]
        _check_twins(self.tables, self._home)
        self._trained = list(model.trainable_variables)
        self._statistics = [v for v in model.non_trainable_variables if v.dtype == "float32"]
        _check(self._trained)
        optimizer = translate(model.optimizer)
        self.dense: tuple[DenseBlock, ...] = (
            *(DenseBlock(v.path, np.array(v), "parameter", optimizer) for v in self._trained),
            *(DenseBlock(v.path, np.array(v), "statistic") for v in self._statistics),
        )
        self._dims = sorted({table.dim for table in self.tables})
        self._feeds = Feeds(job)
        self._layout = DenseLayout([DenseDeclaration(block.name, block.value.shape, None) for block in self.dense])
        self._train = {kind: self._train_function(kind) for kind in get_args(SampleKind)}
        self._reached: dict[SampleKind, Reached] = {}
        self._predict = tf.function(self._predict_graph, input_signature=self._step_signature(labels=False))
        self._own_metrics = [metric for metric in model.metrics if metric.name != "loss"]

    # ---- training

    def take_over_fit(self) -> Any:
        """Makes `fit` take the session's steps; returns the dataset to fit on.

        The dataset only shows Keras the structure of a batch, endlessly; batches are the session's, so that none is
        read ahead of the rows that belong to it.
        """
        steps = self.job.session.steps()
        loss_sum = count = 0.0

        def train_function(_: Iterator[Any]) -> dict[str, Any]:
            nonlocal loss_sum, count
            step = next(steps, None)
            if step is None:
                self.model.stop_training = True
            else:
                loss_sum, count = loss_sum + self._take(step), count + 1
            return {"loss": loss_sum / max(count, 1), **{m.name: m.result() for m in self._own_metrics}}

        def make_train_function(force: bool = False) -> None:
            self.model.train_function = train_function

        self.model.make_train_function = make_train_function
        shown = {
            name: np.zeros([1 if size is None else size for size in spec.shape], spec.dtype.as_numpy_dtype)
            for name, spec in signature(self.job).items()
        }
        labels = np.zeros((1, len(self.job.labels)), np.float32)
        # fit's default is shuffle=True, at which it warns for every dataset; the session shuffles.
        warnings.filterwarnings("ignore", message="`shuffle=True` was passed", category=UserWarning)
        return tf.data.Dataset.from_tensors((shown, labels)).repeat()

    def _take(self, step: Step) -> float:
        columns = step.batch
        arenas = getattr(step, "arenas", None) or joined(self.tables, step.rows)
        scale = columns.size / self.job.batch_size
        weight = np.ones(columns.size, np.float32) if columns.weight is None else columns.weight
        flat = getattr(step, "flat", None)
        loss, output, grads, row_grads = self._train[columns.kind](
            self._feeds.feed(columns, step.index, arenas, self._home),
            {str(dim): lend(arenas[dim].values) for dim in self._dims},
            self._feeds.twins(step.index, arenas, self._home, self.tables),
            lend(self._layout.flatten(step.dense) if flat is None else flat),
            columns.labels,
            weight,
            np.float32(scale),
        )
        value, reached = float(loss), self._reached[columns.kind]
        pushed: dict[str, Floats | None] = dict(self._layout.views(np.asarray(grads)))
        pushed |= dict.fromkeys(reached.not_variables)
        pushed |= {v.path: None for v in self._statistics if not np.any(pushed[v.path])}
        given = self._rows(step.rows, arenas, row_grads)
        given |= {table.name: None for table in self.tables if table.name not in reached.tables}
        step.push(given, pushed, loss=value, predictions=_flat(output.numpy()))
        return value if np.isfinite(value) else 0.0

    def _rows(
        self, rows: Mapping[str, Floats], arenas: Mapping[int, Arena], sparse: Mapping[str, Any]
    ) -> dict[str, Floats | None]:
        """Gradients per occurrence added up to gradients of distinct rows, by table."""
        made: dict[str, Floats | None] = {}
        for dim in self._dims:
            arena = arenas[dim]
            summed = np.zeros_like(arena.values)
            for values, index in sparse[str(dim)]:
                take_back(np.asarray(values), np.asarray(index), summed)
            for table, first in arena.offset.items():
                made[table] = summed[first : first + len(rows[table])]
        return made

    def _step_signature(self, *, labels: bool) -> list[Any]:
        rows = {str(dim): tf.TensorSpec((None, dim), tf.float32) for dim in self._dims}
        vector = tf.TensorSpec((None,), tf.float32)
        label = tf.TensorSpec((None, len(self.job.labels)), tf.float32)
        twins = {table.name: tf.TensorSpec((None,), tf.int64) for table in self._twins}
        given = [self._feeds.signature, rows, twins, tf.TensorSpec((self._layout.size,), tf.float32)]
        return [*given, *([label, vector, tf.TensorSpec((), tf.float32)] if labels else [])]

    def _load(self, dense: list[Any]) -> None:
        for variable, value in zip([*self._trained, *self._statistics], dense, strict=True):
            variable.assign(value)

    def _train_function(self, kind: SampleKind) -> Any:
        """The graph of a step on samples of this kind: towers take turns (`recmesh.keras.mixed`)."""

        def graph(*given: Any) -> Any:
            with training_on(kind):
                return self._train_graph(kind, *given)

        return tf.function(graph, input_signature=self._step_signature(labels=True))

    def _train_graph(
        self, kind: SampleKind, given: Any, rows: dict[str, Any], twins: dict[str, Any], flat: Any, labels: Any,
        weight: Any, scale: Any,
    ) -> Any:
        fed, dense = self._feeds.inputs(given), split(flat, self._layout)
        self._load(dense)
        with tf.GradientTape() as tape:
            for value in rows.values():
                tape.watch(value)
            source = StepRows(rows, twins)
            with looking_up(source):
                output = self.model(fed, training=True)
            loss = self.model.compute_loss(x=fed, y=labels, y_pred=output, sample_weight=weight, training=True)
            scaled = loss * scale
        if self._own_metrics:
            self.model.compute_metrics(fed, labels, output, sample_weight=weight)
        trained = [variable.value for variable in self._trained]
        grads = tape.gradient(scaled, [*trained, *source.taken])
        reached = self._reached[kind] = Reached()       # when traced: it is the same in each call
        dense_grads = []
        for variable, grad in zip(self._trained, grads[: len(trained)], strict=True):
            if grad is None:
                reached.not_variables.append(variable.path)
            # dense even where it was sparse
            dense_grads.append(tf.zeros(variable.shape) if grad is None else tf.convert_to_tensor(grad))
        row_grads: dict[str, list[Any]] = {key: [] for key in rows}
        for (tables, key, index), grad in zip(source.places, grads[len(trained):], strict=True):
            if grad is not None:
                reached.tables.update(tables)
                flat = tf.reshape(grad, (-1, rows[key].shape[1]))
                row_grads[key].append((flat, tf.reshape(index, (-1,))))
        before = dense[len(trained):]
        deltas = [v.value - old for v, old in zip(self._statistics, before, strict=True)]
        return loss, output, concatenate([*dense_grads, *deltas]), row_grads

    # ---- evaluation and export

    def _predict_graph(self, given: Any, rows: dict[str, Any], twins: dict[str, Any], flat: Any) -> Any:
        self._load(split(flat, self._layout))
        with looking_up(StepRows(rows, twins)):
            return self.model(self._feeds.inputs(given), training=False)

    def predict(
        self,
        batch: "Batch",
        rows: Mapping[str, Floats],
        index: Mapping[str, Ints],
        dense: Mapping[str, Floats],
    ) -> Floats:
        """See ServableModel.predict; what the model returns is taken as predictions."""
        arenas = joined(self.tables, rows)
        made = self._predict(
            self._feeds.feed(batch, index, arenas, self._home),
            {str(dim): arenas[dim].values for dim in self._dims},
            self._feeds.twins(index, arenas, self._home, self.tables),
            self._layout.flatten(dense),
        )
        return _flat(made.numpy())

    def export(
        self,
        directory: Path,
        *,
        tables: Mapping[str, TableRows],
        dense: Mapping[str, Floats],
        metrics: Mapping[str, float],
    ) -> None:
        """See ServableModel.export."""
        self._load([dense[block.name] for block in self.dense])
        export_saved_model(
            self.model, directory, job=self.job, tables=self.tables, rows=tables, metrics=metrics
        )

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
        """See ServableModel.export_apart."""
        self._load([dense[block.name] for block in self.dense])
        named = tuple(ApartTable(table.name, table.dim, tuple(table.features)) for table in self.tables)
        variables = [*self._trained, *self._statistics]
        blocks = {block.name: block.name for block in self.dense}
        export_apart(
            self.model, directory, job=self.job, apart=Apart(job_id, checkpoints, named, blocks),
            parameters={block.name: v.value for block, v in zip(self.dense, variables, strict=True)},
            tables=self.tables, rows=tables, metrics=metrics,
        )


@dataclass
class Reached:
    """What a step's gradients reach; the rest stays as it is."""

    tables: set[str] = field(default_factory=set)
    not_variables: list[str] = field(default_factory=list)
    """Paths of those that none reaches."""


class StepRows:
    """Rows of one step; remembers what was taken, so that gradients stop there.

    The gradient per occurrence is summed outside the graph, by a kernel that is several times faster than TensorFlow's
    own on one core.
    """

    def __init__(self, rows: Mapping[str, Any], twins: Mapping[str, Any]) -> None:
        self._rows, self._twins = rows, twins
        self.taken: list[Any] = []
        self.places: list[tuple[list[str], str, Any]] = []

    def look_up(self, table: EmbeddingTable, ids: Any) -> Any:
        """See RowSource.look_up."""
        return self._take([table], tf.gather(self._twins[table.name], ids) if table.name in self._twins else ids)

    def look_up_together(self, tables: Sequence[EmbeddingTable], ids: Any) -> Any:
        """Of tables of one dimension, ids [B, tables]: indices already point into their arena, but those of twins."""
        if any(table.name in self._twins for table in tables):
            columns = zip(tables, tf.unstack(ids, num=len(tables), axis=1), strict=True)
            places = [tf.gather(self._twins[t.name], each) if t.name in self._twins else each for t, each in columns]
            ids = tf.stack(places, axis=1)
        return self._take(tables, ids)

    def _take(self, tables: Sequence[EmbeddingTable], places: Any) -> Any:
        key = str(tables[0].dim)
        taken = tf.gather(self._rows[key], places)
        self.taken.append(taken)
        self.places.append(([table.name for table in tables], key, places))
        return taken


def _flat(output: Floats) -> Floats:
    """[B] where the model has one output."""
    return output.reshape(-1) if output.ndim > 1 and output.shape[1] == 1 else output


def _check_twins(tables: Sequence[EmbeddingTable], home: Mapping[str, EmbeddingTable]) -> None:
    wrong = [
        Violation(f"tables.{table.name}.features", f"must be those of {home[feature].name}, which has {feature!r} too")
        for table in tables for feature in table.features
        if set(home[feature].features) != set(table.features)
    ]
    if wrong:
        raise InvalidArgument("the model's embedding tables can't be fed", violations=wrong)


def _check(variables: list[Any]) -> None:
    wrong = [
        Violation(variable.path, f"is {variable.dtype}, and the servers hold float32")
        for variable in variables if variable.dtype != "float32"
    ]
    if wrong:
        raise InvalidArgument("the model's parameters can't be trained on the servers", violations=wrong)
