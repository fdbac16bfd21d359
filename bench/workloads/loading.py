"""`python -m bench.workloads.loading JSON`: trains on a dataset with `recmesh.Dataset`, until it is killed.

Training is counting: how often each row was seen. Counts and the loader's state go into one file, replaced at once, as
a checkpoint of a training loop does.
"""

import json
import os
import sys
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import recmesh
from recmesh.data.loading import Loader


def main() -> None:
    """The task names data, rows, batch size, seed, rank, world, the checkpoint to go on from, and where to write."""
    began = time.perf_counter()
    task = json.loads(sys.argv[1])
    out = Path(task["out"])
    counts = np.zeros(task["rows"], np.int64)
    loader = recmesh.Dataset(task["data"]).batches(
        task["batch_size"], epochs=task["epochs"], seed=task["seed"], rank=task["rank"], world=task["world"]
    )
    if task["states"]:
        loader.load_state_dict(Loader.merge(json.loads(Path(path).read_text())["state"] for path in task["states"]))
    first_s = 0.0
    for number, batch in enumerate(loader):
        first_s = first_s or time.perf_counter() - began
        counts += np.bincount(batch.dense[:, 0].astype(np.int64), minlength=task["rows"])
        if number % task["every"] == 0:
            _save(out, loader, counts, first_s, ended=False)
    _save(out, loader, counts, first_s, ended=True)


def _save(out: Path, loader: Loader, counts: NDArray[np.int64], first_s: float, *, ended: bool) -> None:
    made = out.with_suffix(".new")
    made.write_text(json.dumps({
        "state": loader.state_dict(), "counts": counts.tolist(), "first_s": first_s, "ended": ended,
    }))
    os.replace(made, out)


if __name__ == "__main__":
    main()
