"""`python -m bench.peers.stateful_loader JSON`: torchdata's StatefulDataLoader, left in the middle and resumed.

Resumed with as many workers, and with another number of them, for which it keeps no promise.
"""

import json
import sys
import time
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from torchdata.stateful_dataloader import StatefulDataLoader

WORKERS, OTHER_WORKERS = 2, 3
LEFT_AFTER = 200


class Rows(torch.utils.data.Dataset[Any]):  # type: ignore[misc,unused-ignore]  # Any where torch is not installed
    """All columns in memory: reading costs nothing here."""

    def __init__(self, path: str) -> None:
        table = pq.read_table(path)
        self.columns = np.stack([table[name].to_numpy() for name in table.column_names], axis=1)

    def __len__(self) -> int:
        return len(self.columns)

    def __getitem__(self, row: int) -> Any:
        return self.columns[row]


def main() -> None:
    """Prints how long the first batch took, and what was lost or doubled, as JSON."""
    task = json.loads(sys.argv[1])
    rows = Rows(task["file"])
    loader = _loader(rows, task["batch_size"], WORKERS)
    seen = []
    batches = iter(loader)
    for _ in range(LEFT_AFTER):
        seen.append(next(batches)[:, 0].numpy())
    state = loader.state_dict()
    del batches
    same_s, same = _resumed(rows, task["batch_size"], WORKERS, state)
    found: dict[str, Any] = {"next_batch_s": same_s, **_counted(len(rows), [*seen, *same], "_same_workers")}
    try:
        other_s, other = _resumed(rows, task["batch_size"], OTHER_WORKERS, state)
        found |= {"next_batch_other_s": other_s, **_counted(len(rows), [*seen, *other], "")}
    except Exception as error:                  # whatever it says of it is the finding
        found |= {"lost": float(len(rows) - LEFT_AFTER * task["batch_size"]), "doubled": 0.0,
                  "refused": f"{type(error).__name__}: {error}"[:300]}
    print(json.dumps(found | {"workers": WORKERS, "other_workers": OTHER_WORKERS}))


def _loader(rows: Rows, batch_size: int, workers: int) -> Any:
    return StatefulDataLoader(
        rows, batch_size=batch_size, shuffle=True, num_workers=workers, generator=torch.Generator().manual_seed(1)
    )


def _resumed(rows: Rows, batch_size: int, workers: int, state: Any) -> tuple[float, list[Any]]:
    loader = _loader(rows, batch_size, workers)
    began = time.perf_counter()
    loader.load_state_dict(state)
    batches = iter(loader)
    first = next(batches)
    took = time.perf_counter() - began
    return took, [first[:, 0].numpy(), *(batch[:, 0].numpy() for batch in batches)]


def _counted(rows: int, seen: list[Any], ending: str) -> dict[str, float]:
    counts = np.bincount(np.concatenate(seen), minlength=rows)
    return {f"lost{ending}": float((counts == 0).sum()), f"doubled{ending}": float(np.maximum(counts - 1, 0).sum())}


if __name__ == "__main__":
    main()
