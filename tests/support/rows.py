"""Small datasets on disk, and jobs over them."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from recmesh.spec.job import TrainingJob


def write_rows(path: Path, *, rows: int = 96, seed: int = 3) -> Path:
    """Columns of every kind: `user`, `item` (ids below 5), `tags` and `past` (lists), `share`, `x`, `click`, `buy`."""
    random = np.random.default_rng(seed)
    user, item = random.integers(0, 5, rows), random.integers(0, 5, rows)
    tags = [random.integers(0, 6, random.integers(0, 5)).tolist() for _ in range(rows)]
    past = [random.integers(0, 5, random.integers(0, 6)).tolist() for _ in range(rows)]
    share = [random.random(len(tag)).tolist() for tag in tags]
    x = random.normal(size=rows)
    click = (user + item + x + random.normal(size=rows) > 4).astype(np.int64)
    buy = click * random.integers(0, 2, rows)
    pq.write_table(
        pa.table({
            "user": user, "item": item, "tags": pa.array(tags, pa.list_(pa.int64())),
            "share": pa.array(share, pa.list_(pa.float64())), "past": pa.array(past, pa.list_(pa.int64())),
            "x": x, "click": click, "buy": buy, "weight": random.random(rows),
        }),
        path,
    )
    return path


def job_over(path: Path, *, features: list[dict[str, Any]] | None = None, **changes: Any) -> TrainingJob:
    """A job over `write_rows`; `training`, `data` and other keys are laid over the defaults."""
    training = {"batch_size": 32, "seed": 7, "optimizer": {"kind": "sgd", "lr": 0.5}} | changes.pop("training", {})
    data = {
        "source": {"files": [str(path)]},
        "label": "click",
        "shuffle": False,
        "features": features or [{"name": "user"}, {"name": "item"}, {"name": "x", "kind": "dense"}],
    } | changes.pop("data", {})
    return TrainingJob.parse({
        "name": "small", "model": {"entrypoint": "here:main"}, "data": data, "training": training, **changes
    })
