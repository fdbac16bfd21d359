"""Judging a model on the evaluation rows, wherever its parameters are; ids never trained read as zero."""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from recmesh.data import whole_dataset
from recmesh.runtime.errors import FailedPrecondition
from recmesh.spec.job import TrainingJob
from recmesh.trainer.layout import Placement, Prepared, prepare
from recmesh.trainer.metrics import evaluation_metrics
from recmesh.trainer.ports import Declared
from recmesh.trainer.session import Floats, ServableModel, TableRows

if TYPE_CHECKING:
    from recmesh.data import Batch

Fetch = Callable[[Prepared], tuple[Mapping[str, Floats], Mapping[str, Floats]]]
"""The rows of a batch's distinct ids by table, and the dense blocks by name."""

ONE_SERVER = Placement(0, 0, np.empty(0, np.uint16), (0,))
"""Where rows are not on servers, any order of ids does."""


def evaluation_batches(spec: TrainingJob, *, batch_size: int = 8192) -> Iterator["Batch"]:
    """The evaluation rows; FailedPrecondition when the job names none."""
    evaluation = spec.evaluation
    if evaluation is None or spec.data is None:
        raise FailedPrecondition("the job has no evaluation data")
    data, rows = (evaluation.data, None) if evaluation.data is not None else (spec.data, evaluation.rows)
    return whole_dataset(data, batch_size=batch_size, rows=rows, max_rows=evaluation.max_rows)


def evaluate(
    model: ServableModel,
    batches: Iterator["Batch"],
    declared: Declared,
    fetch: Fetch,
    *,
    labels: list[str],
    placement: Callable[[], Placement] = lambda: ONE_SERVER,
    stop: Callable[[], bool] = lambda: False,
) -> dict[str, float]:
    """`eval_auc`, `eval_loss`, `eval_rows` and per label; of what was seen when `stop` turns true."""
    seen_labels, predictions, weights = [], [], []
    for batch in batches:
        prepared = prepare(batch, declared, placement())
        rows, dense = fetch(prepared)
        made = model.predict(batch, rows, prepared.index, dense)
        predictions.append(np.asarray(made, np.float32).reshape(batch.size, -1))
        seen_labels.append(batch.labels.reshape(batch.size, -1))
        if batch.weight is not None:
            weights.append(batch.weight)
        if stop():
            break
    if not predictions:
        return {"eval_rows": 0.0}
    return evaluation_metrics(
        labels,
        np.concatenate(seen_labels),
        np.concatenate(predictions),
        np.concatenate(weights) if weights else None,
    )


def fetch_from(tables: Mapping[str, TableRows], dense: Mapping[str, Floats], declared: Declared) -> Fetch:
    """From whole tables in memory."""

    def fetch(prepared: Prepared) -> tuple[Mapping[str, Floats], Mapping[str, Floats]]:
        rows = {}
        for table, ids in zip(declared.tables, prepared.unique, strict=True):
            held = tables[table.name]
            found = np.zeros((len(ids), table.dim), np.float32)
            if len(held.ids):
                place = np.minimum(np.searchsorted(held.ids, ids), len(held.ids) - 1)
                known = held.ids[place] == ids
                found[known] = held.values[place[known]]
            rows[table.name] = found
        return rows, dense

    return fetch
