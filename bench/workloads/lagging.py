"""One run of `bench online_auc`'s judgement in a process of its own: `python -m bench.workloads.lagging JSON`.

Flights are trained in order of time, in small minibatches, by MMoE. A flight is judged by the model as it was when it
had trained what had come up to (the flight's minute - its lag); one pass judges all lags by the same models, so they
are paired. Lag 0 is test-then-train: the model before the flight's own minibatch. The last line is JSON.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray

import recmesh.torch
from bench.workloads import flights
from recmesh.data import whole_dataset
from recmesh.spec.dataset import DatasetSpec
from recmesh.trainer.evaluation import ONE_SERVER
from recmesh.trainer.layout import prepare
from recmesh.trainer.local import LocalSession, local_job
from recmesh.trainer.metrics import auc
from recmesh.zoo.torch.layers import logistic_loss
from recmesh.zoo.torch.mmoe import MMoE

LABELS = ["late", "very_late"]
MINUTES_OF_DAY = 1440
I64 = NDArray[np.int64]
F64 = NDArray[np.float64]


def states_of(minutes: I64, lags: F64, *, batch: int) -> I64:
    """How many minibatches the model has trained that a flight is judged by.

    minutes: of each flight, ascending; lags: minutes, of each flight. Never its own minibatch, and none that holds a
    flight after (its minute - its lag).
    """
    own = np.arange(minutes.size) // batch
    came = np.searchsorted(minutes, minutes - lags, side="right")
    states: I64 = np.minimum(own, np.where(lags > 0, came // batch, own))
    return states


def judged(task: dict[str, Any]) -> dict[str, Any]:
    """Of each of `lags` (by name, minutes by minute of the day; one number: always), by label, AUC per judged day."""
    table = flights.read(first=task["first"], days=task["days"])
    minutes = table["minute"].to_numpy()
    with tempfile.TemporaryDirectory(prefix="recmesh-bench-") as folder:
        path = Path(folder) / "rows.parquet"
        pq.write_table(table.drop_columns(flights.AT), path)
        began = time.perf_counter()
        truth, scores = _scored(task, path, minutes)
        took = time.perf_counter() - began
    days = minutes // MINUTES_OF_DAY
    return {
        "s": took, "samples": int(minutes.size),
        "auc": {
            name: {
                label: [
                    auc(truth[days == day, place], scores[name][days == day, place])
                    for day in range(task["unjudged"], task["days"])
                ]
                for place, label in enumerate(LABELS)
            }
            for name in scores
        },
    }


def _scored(task: dict[str, Any], path: Path, minutes: I64) -> tuple[Any, dict[str, Any]]:
    """(labels, predictions by name of lag), (flights, labels) each."""
    batch = task["batch_size"]
    data = {
        "source": {"format": "parquet", "files": [str(path)]}, "labels": LABELS, "features": flights.FEATURES,
        "shuffle": False,
    }
    job = local_job({
        "name": "lagging", "model": {"zoo": "mmoe", "params": task["params"]}, "data": data,
        "training": {
            "batch_size": batch, "seed": task["seed"], "optimizer": {"kind": "adagrad", "lr": task["lr"]},
        },
        "export": None,
    })
    model, session = MMoE(job), job.session
    assert isinstance(session, LocalSession)
    trainer = recmesh.torch.attach(job, model)
    [whole] = whole_dataset(DatasetSpec.parse(data), batch_size=minutes.size)
    due = _due(task["lags"], minutes, batch=batch)
    scores = {name: np.full((minutes.size, len(LABELS)), np.nan, np.float32) for name in due}

    def judge(state: int) -> None:
        """By the model as it is now: all whose turn it is, in one call."""
        now = {name: order[edges[state]:edges[state + 1]] for name, (order, edges) in due.items()}
        wanted, place = np.unique(np.concatenate(list(now.values())), return_inverse=True)
        if not wanted.size:
            return
        rows = whole.take(wanted)
        prepared = prepare(rows, session.declared, ONE_SERVER)
        values, dense = session.fetch(prepared)
        assert job.model is not None
        made = np.asarray(job.model.predict(rows, values, prepared.index, dense)).reshape(wanted.size, -1)
        begin = 0
        for name, each in now.items():
            scores[name][each] = made[place[begin:begin + each.size]]
            begin += each.size

    for state, rows in enumerate(trainer):
        judge(state)
        trainer.step(logistic_loss(model(rows), rows))
    if any(np.isnan(found).any() for found in scores.values()):
        raise RuntimeError("some flights were not judged")
    return whole.labels, scores


def _due(lags: dict[str, Any], minutes: I64, *, batch: int) -> dict[str, tuple[I64, I64]]:
    """By name: flights in the order of the states that judge them, and where each state's begin."""
    found = {}
    steps = -(-minutes.size // batch)
    for name, lag in lags.items():
        by_minute = np.broadcast_to(np.asarray(lag, np.float64), MINUTES_OF_DAY)
        states = states_of(minutes, by_minute[minutes % MINUTES_OF_DAY], batch=batch)
        order = np.argsort(states, kind="stable")
        found[name] = order, np.searchsorted(states[order], np.arange(steps + 1))
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(judged(json.loads(sys.argv[1]))))
