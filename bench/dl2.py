"""DL2's measurements: training speed of eight models on a parameter-server cluster, by workers and PSes.

Each line of the file: model, mode, batch of all workers together, PSes, workers, samples per second of each worker,
CPUs used by each PS, CPUs used by each worker. The speed of a configuration is the sum over its workers.
"""

import ast
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
FILE = Path("jobs") / "dl2" / "config_speed.txt"


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
    for line in source().read_text(encoding="utf-8").splitlines():
        if not line.strip():
            continue
        model, mode, batch, ps, workers, speeds, _, _ = ast.literal_eval(line)
        if sum(speeds) > 0:
            rows.setdefault((model, mode, float(batch)), []).append((float(workers), float(ps), float(sum(speeds))))
    return [Table(*key, *np.array(found, dtype=np.float64).T) for key, found in sorted(rows.items())]
