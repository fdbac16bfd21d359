"""One run of `bench shuffle`'s judgement in a process of its own: `python -m bench.workloads.ordered JSON`.

Flights are events of 32 partitions, by the airport they leave, and each receiver of the events fills minibatches of its
own. Who receives what is all that differs. A flight is judged by what would have been served just before its minibatch
is trained. The last line is JSON.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from torch import nn

import recmesh.torch
from bench.workloads import flights
from bench.workloads.mixed import Single
from recmesh.partitions import fnv1a32
from recmesh.trainer.local import local_job
from recmesh.trainer.metrics import auc

PARTITIONS, CHUNK = 32, 128
"""Of a partition's events, in a task."""
LABEL, DAY = 0, 1
"""Columns of the labels."""
I64 = NDArray[np.int64]


def receivers_of(how: str, partitions: I64, *, receivers: int, seed: int) -> I64:
    """Of each event: `plain`, its partition's; `shuffled`, any; `tasks`, any for each run of a partition's events, as
    leases are."""
    rng = np.random.default_rng(seed)
    if how == "plain":
        return partitions % receivers
    if how == "shuffled":
        return rng.integers(0, receivers, partitions.size)
    found = np.empty(partitions.size, np.int64)
    for partition in range(PARTITIONS):
        places = np.flatnonzero(partitions == partition)
        runs = rng.integers(0, receivers, -(-places.size // CHUNK))
        found[places] = np.repeat(runs, CHUNK)[: places.size]
    return found


def order_of(receivers: I64, batch: int) -> I64:
    """Events in the order in which they are trained: minibatches when they are full, what is left at the end."""
    parts: list[tuple[int, I64]] = []
    left: list[I64] = []
    for receiver in range(int(receivers.max()) + 1):
        places = np.flatnonzero(receivers == receiver)
        whole = places.size // batch * batch
        parts += [(int(each[-1]), each) for each in places[:whole].reshape(-1, batch)]
        left.append(places[whole:])
    return np.concatenate([*(each for _, each in sorted(parts, key=lambda part: part[0])), *left])


def trained(task: dict[str, Any]) -> dict[str, Any]:
    """AUC of each day after the first `unjudged`."""
    table = flights.read(first=task["first"], days=task["days"])
    names = np.array([fnv1a32(str(name).encode()) % PARTITIONS for name in table["origin"].to_pylist()], np.int64)
    receivers = receivers_of(task["how"], names, receivers=task["receivers"], seed=task["seed"])
    days = pa.array(table["hour_number"].to_numpy() // 24)
    table = table.append_column("day", days).take(pa.array(order_of(receivers, task["batch_size"])))
    with tempfile.TemporaryDirectory(prefix="recmesh-bench-") as folder:
        path = Path(folder) / "rows.parquet"
        pq.write_table(table.drop_columns(flights.AT), path)
        return _trained(task, path)


def _trained(task: dict[str, Any], path: Path) -> dict[str, Any]:
    job = local_job({
        "name": "ordered",
        "model": {"entrypoint": "bench.workloads.ordered:trained", "params": task["params"]},
        "data": {
            "source": {"format": "parquet", "files": [str(path)]}, "labels": ["late", "day"],
            "features": flights.FEATURES, "shuffle": False,
        },
        "training": {
            "batch_size": task["batch_size"], "seed": task["seed"],
            "optimizer": {"kind": "adagrad", "lr": task["lr"]},
        },
        "export": None,
    })
    model = Single(job)
    trainer = recmesh.torch.attach(job, model)
    began, made, seen = time.perf_counter(), list[Any](), list[Any]()
    for batch in trainer:
        logits = model(batch)[:, LABEL]          # no dropout: the same that would be served
        made.append(torch.sigmoid(logits.detach()).numpy())
        seen.append(batch.labels.numpy().copy())
        loss = nn.functional.binary_cross_entropy_with_logits(logits, batch.labels[:, LABEL])
        trainer.step(loss)
    took = time.perf_counter() - began
    scores, truth = np.concatenate(made), np.concatenate(seen)
    by_day = [
        auc(truth[at, LABEL], scores[at])
        for at in (truth[:, DAY] == day for day in range(task["unjudged"], task["days"]))
    ]
    return {"days": by_day, "s": took, "samples": int(scores.size)}


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(trained(json.loads(sys.argv[1]))))
