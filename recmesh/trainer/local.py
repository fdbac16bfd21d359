"""A job without a mesh: the same session over the same store, in this process. For notebooks and tests.

Batches are applied one after another, so that a seed gives the same model every time.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from recmesh.data import TaskReader, TaskRecord, index_tasks
from recmesh.data.order import Plan, generate
from recmesh.formats import tables as files
from recmesh.runtime.errors import FailedPrecondition, InvalidArgument, NotFound
from recmesh.spec.dataset import DatasetSpec
from recmesh.spec.job import LrPoint, Optimizer, TrainingJob
from recmesh.store import DenseSchema, Store, TableSchema, candidates
from recmesh.store import Init as StoreInit
from recmesh.store import Optimizer as StoreOptimizer
from recmesh.trainer.evaluation import ONE_SERVER, evaluate, evaluation_batches
from recmesh.trainer.layout import DenseLayout, Prepared, arenas, declaration, prepare
from recmesh.trainer.memory import aligned
from recmesh.trainer.ports import Chunk, Declared, TableDeclaration
from recmesh.trainer.session import DenseBlock, EmbeddingTable, Floats, FollowableModel, Job, Step, TableRows
from recmesh.trainer.stepping import Gradients, LiveStep, NanGuard, StepListener, StepMistake
from recmesh.trainer.usercode import seed_everything


@dataclass
class LocalJob(Job):
    """A Job that can also be judged and exported where it was trained."""

    def evaluate(self) -> dict[str, float]:
        """`eval_auc`, `eval_loss` and per label, over the job's evaluation rows."""
        session = self._session()
        if self.model is None:
            raise FailedPrecondition("attach a model first")
        return evaluate(
            self.model, evaluation_batches(self.spec), session.declared, session.fetch, labels=self.labels
        )

    def export(self, directory: str | Path, *, metrics: Mapping[str, float] | None = None) -> None:
        """Writes the model as a finished job would."""
        session = self._session()
        if self.model is None:
            raise FailedPrecondition("attach a model first")
        self.model.export(
            Path(directory), tables=session.tables(), dense=session.dense(), metrics=metrics or {}
        )

    def export_apart(self, directory: str | Path, *, checkpoints: str = "", snapshot: int = 1) -> None:
        """Writes the model and, beside it, its tables, as an online job would that serves while it trains."""
        session, folder = self._session(), Path(directory)
        if not isinstance(self.model, FollowableModel):
            raise FailedPrecondition("attach a model of recmesh.torch or recmesh.keras first")
        tables, dense = session.tables(), session.dense()
        files.write(
            folder / "tables", job_id=self.id, gen=1, snapshot=snapshot,
            tables={name: (held.ids, held.values) for name, held in tables.items()}, dense=dense,
        )
        self.model.export_apart(                 # model.json comes last: who sees it sees all
            folder, job_id=self.id, checkpoints=checkpoints, tables=tables, dense=dense, metrics={}
        )

    def _session(self) -> "LocalSession":
        assert isinstance(self.session, LocalSession)
        return self.session


def local_job(spec: TrainingJob | Mapping[str, Any] | str | os.PathLike[str]) -> LocalJob:
    """A job that trains in this process: of a specification, a mapping, or the path of a YAML or JSON file.

    Seeds Python, numpy and the frameworks that are loaded, so that equal specifications give equal models.
    """
    if isinstance(spec, (str, os.PathLike)):
        path = Path(spec)
        if not path.is_file():
            raise NotFound(f"there is no file {path}")
        spec = yaml.safe_load(path.read_text())
    job = spec if isinstance(spec, TrainingJob) else TrainingJob.parse(spec)
    if job.data is None:
        raise InvalidArgument("a local job needs its dataset inline: data, not the name of a registered one")
    seed_everything(job.training.seed)
    return LocalJob(job, LocalSession(job))


class Silent:
    """A StepListener that keeps the last loss and a count."""

    def __init__(self) -> None:
        self.samples = 0
        self.loss = float("nan")

    def trained(self, *, samples: int, loss: float, labels: Floats, predictions: Floats | None) -> None:
        """See StepListener.trained."""
        self.samples += samples
        self.loss = loss

    def skipped(self, samples: int) -> None:
        """See StepListener.skipped."""
        self.samples += samples


class LocalSession:
    """See Session; over a store of its own."""

    def __init__(self, spec: TrainingJob, *, listener: StepListener | None = None) -> None:
        assert spec.data is not None
        self.spec = spec
        self.store = Store()
        self.declared = Declared()
        self.layout = DenseLayout(())
        self.listener = listener or Silent()
        self._data: DatasetSpec = spec.data
        self._nan = NanGuard(spec.training.nan)
        self._step = 0
        self._is_declared = self._closed = False

    def declare(self, tables: Sequence[EmbeddingTable], dense: Sequence[DenseBlock]) -> None:
        """See Session.declare."""
        if self._is_declared:
            raise FailedPrecondition("the model was declared before; a job trains one model")
        self._is_declared = True
        self.declared = declaration(self.spec, tables, dense)
        self.layout = DenseLayout(self.declared.dense)
        for table in self.declared.tables:
            self.store.add_table(_table_schema(table))
        for block in self.declared.dense:
            optimizer = _optimizer(block.optimizer, block.schedule)
            self.store.add_dense(DenseSchema(block.name, block.shape, optimizer))
        flat = self.layout.flatten(self.declared.initial)
        for block_number, chunk, values in self.layout.all_chunks(flat):
            self.store.create_chunk(block_number, chunk, values)

    def steps(self) -> Iterator[Step]:
        """See Session.steps."""
        if not self._is_declared:
            raise FailedPrecondition("declare a model first")
        reader = TaskReader(self._data)
        for task in self._tasks():
            for lo in range(task.base, task.base + task.rows, self.spec.training.batch_size):
                hi = min(lo + self.spec.training.batch_size, task.base + task.rows)
                step = self._pulled(prepare(reader.batch([task], lo, hi), self.declared, ONE_SERVER))
                if not step.batch.size:
                    step.pass_over()
                    continue
                yield step
                if self._closed:
                    return
                if not step.done:
                    raise StepMistake("the loop went on without pushing or skipping its step")

    def close(self) -> None:
        """See Session.close."""
        self._closed = True

    # ---- for evaluation and export

    def fetch(self, prepared: Prepared) -> tuple[Mapping[str, Floats], Mapping[str, Floats]]:
        """Rows as serving sees them: ids never trained are zero."""
        _, rows = self._rows(prepared, absent_as_zero=True)
        return rows, self.dense()

    def dense(self) -> dict[str, Floats]:
        """The blocks now."""
        return self.layout.views(self._flat())

    def tables(self) -> dict[str, TableRows]:
        """All rows now, ascending by id."""
        made = {}
        self.store.mark()
        try:
            for number, table in enumerate(self.declared.tables):
                schema = self.store.tables[number].schema
                blocks = [block.select(~candidates(schema, block)) for block in self.store.copy_rows(number)]
                none = (np.empty(0, np.int64), np.empty((0, table.dim), np.float32))
                ids = np.concatenate([none[0], *(block.ids for block in blocks)])
                values = np.concatenate([none[1], *(block.values for block in blocks)])
                order = np.argsort(ids)
                made[table.name] = TableRows(ids[order], np.ascontiguousarray(values[order]))
        finally:
            self.store.unmark()
        return made

    # ---- inside

    def _flat(self) -> Floats:
        flat = aligned((self.layout.size,))
        self.layout.put(flat, [Chunk(*item) for item in self.store.pull_dense()[0]])
        return flat

    def _tasks(self) -> Iterator[TaskRecord]:
        """In the order that a mesh gives them."""
        training = self.spec.training
        slices = tuple(index_tasks(self._data, seed=training.seed))
        plan = Plan(slices, training.epochs, training.seed, self._data.shuffle, in_time=bool(self._data.streams))
        return (record for record in generate(plan) if not record.close)

    def _rows(self, prepared: Prepared, *, absent_as_zero: bool) -> tuple[Any, dict[str, Floats]]:
        made, rows = arenas(self.declared, prepared)
        for number, (table, ids) in enumerate(zip(self.declared.tables, prepared.unique, strict=True)):
            self.store.tables[number].gather(ids, rows[table.name], absent_as_zero=absent_as_zero)
        return made, rows

    def _pulled(self, prepared: Prepared) -> LiveStep:
        made, rows = self._rows(prepared, absent_as_zero=False)
        flat = self._flat()

        def finish(grads: Gradients) -> None:
            rows = {number: part for number, part in enumerate(grads.rows) if part is not None}
            with self.store.reserved({number: prepared.unique[number].size for number in rows}):
                for number, part in rows.items():
                    ids, counts = prepared.unique[number], prepared.counts[number]
                    self.store.apply(number, ids, part, counts, step=self._step)
                dense = self.layout.all_chunks(grads.dense, without=grads.still)
                self.store.apply_dense(dense, step=self._step)
            self._step += 1

        return LiveStep(
            prepared=prepared,
            declared=self.declared,
            layout=self.layout,
            arenas=made,
            rows=rows,
            flat=flat,
            dense=self.layout.views(flat),
            finish=finish,
            listener=self.listener,
            nan=self._nan,
            clip_norm=self.spec.training.clip_norm,
        )


def _table_schema(table: TableDeclaration) -> TableSchema:
    init = StoreInit(table.init.kind, table.init.scale, table.seed)
    policy = table.policy
    return TableSchema(
        table.name, table.dim, _optimizer(table.optimizer, table.schedule), init, policy.min_frequency,
        policy.ttl_steps, policy.max_bytes or 0, policy.dtype)


def _optimizer(optimizer: Optimizer | None, schedule: Sequence[LrPoint]) -> StoreOptimizer:
    if optimizer is None:
        return StoreOptimizer(kind="accumulate", lr=1.0)
    points = tuple((point.step, point.factor) for point in schedule)
    return StoreOptimizer(**optimizer.model_dump(), schedule=points)


