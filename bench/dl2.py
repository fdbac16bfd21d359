"""DL2's measurements: training speed of eight models on a parameter-server cluster, by workers and PSes.

The speed of a configuration is the sum over its workers.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from services.brain.simulator.tables import DL2_FILE, dl2_runs

F64 = NDArray[np.float64]
FILE = Path(DL2_FILE)


class DataMissing(FileNotFoundError):
    """The measurements are not on this machine."""


@dataclass(frozen=True, slots=True)
class Table:
    """One model in one mode; all columns are (n,)."""

    model: str
    mode: str
    batch: float
    """Of all workers together."""
    workers: F64
    ps: F64
    rate: F64

    def __len__(self) -> int:
        return len(self.rate)


def source() -> Path:
    """Its path, in $RECMESH_DATA or ../shared/data; DataMissing says where it was looked for."""
    root = Path(os.environ.get("RECMESH_DATA") or Path(__file__).resolve().parent.parent.parent / "shared" / "data")
    if not (root / FILE).is_file():
        raise DataMissing(f"there is no {root / FILE}; set RECMESH_DATA to the folder that holds {FILE}")
    return root / FILE


def load() -> list[Table]:
    """One table per model and mode, by name; the rows with speed 0 (nothing ran) are dropped."""
    rows: dict[tuple[str, str, float], list[tuple[float, float, float]]] = {}
    for run in dl2_runs(source()):
        if run.rate > 0:
            key = run.model, run.mode, float(run.batch)
            rows.setdefault(key, []).append((float(run.workers), float(run.ps), float(run.rate)))
    return [Table(*key, *np.array(found, dtype=np.float64).T) for key, found in sorted(rows.items())]
