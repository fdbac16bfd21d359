"""What `store` and its peers look up and update: the same ids, batch by batch, in each process."""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.synthetic import zipf_ids

TABLES, DIM, BATCH, LR = 26, 16, 4096, 0.02
BATCHES = 24
I64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Load:
    """`keys` ids in all, the same number in each table, drawn by zipf 1.05 or evenly."""

    keys: int
    law: str

    @property
    def ids_per_table(self) -> int:
        """Ids of one table: its row numbers where a table is static."""
        return self.keys // TABLES

    def batches(self) -> Iterator[I64]:
        """[BATCH, TABLES] row numbers; rows of a rank lie anywhere, as those of real ids do."""
        rng, n = np.random.default_rng(7), self.ids_per_table
        place = rng.permutation(n)
        for _ in range(BATCHES):
            drawn = zipf_ids(rng, (BATCH, TABLES), ids=n) if self.law == "zipf" else rng.integers(0, n, (BATCH, TABLES))
            yield place[drawn]


def measure(step: Callable[[Any], None], batches: Sequence[Any], *, window_s: float,
            cpu_s: Callable[[], float]) -> float:
    """Samples per CPU second: the median over the steps of a window, after one pass to warm up."""
    for batch in batches:
        step(batch)
    spent, began = [], time.perf_counter()
    while time.perf_counter() < began + window_s:
        for batch in batches:
            before = cpu_s()
            step(batch)
            spent.append(cpu_s() - before)
    return BATCH / statistics.median(spent)
