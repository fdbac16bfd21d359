"""Parquet samples per second to a training loop, beside pyarrow alone, torch's DataLoader and tf.data.

Criteo-like rows (13 numbers, 26 ids, a label; int64 and float32, not compressed) in memory, batches of 4,096; every
reader has one compute thread, and each runs in a process of its own, one after another. tf.data has the same rows as
tf.Example in TFRecord files, which is what it reads itself; its service has its dispatcher and its worker beside.
`recmesh_executors_N` is a loop that N data executors serve, processes of their own; the loop of
`recmesh_materialised` reads from the cache that a pass before it has written. `recmesh_text` has a tenth of the rows as
tab-separated text, which is dear to read.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench.figures import Result
from bench.mesh import ROOT, criteo_data, one_thread, say, scratch
from bench.synthetic import criteo_like, write_parquet, write_tsv

ROWS, QUICK_ROWS = 1_000_000, 200_000
EXAMPLES, QUICK_EXAMPLES = 100_000, 20_000
BATCH, EPOCHS = 4_096, 2
READERS = (
    "pyarrow", "recmesh", "recmesh_shuffled", "recmesh_materialised", "recmesh_executors_1", "recmesh_executors_2",
    "recmesh_text", "recmesh_text_executors_2", "recmesh_torch", "torch_dataloader", "torch_dataloader_2_workers",
)
TF_READERS = ("tfdata", "tfdata_service")


def run(*, quick: bool) -> Result:
    """`samples_per_s_*` by the clock, `cpu_us_per_sample_*` of the process and its children."""
    rows, examples = (QUICK_ROWS, QUICK_EXAMPLES) if quick else (ROWS, EXAMPLES)
    figures: dict[str, float] = {}
    with scratch() as folder:
        parquet, records = folder / "rows.parquet", folder / "rows.tfrecord"
        write_parquet(parquet, criteo_like(rows, seed=1))
        say(f"  {rows:,} rows, {parquet.stat().st_size / rows:.0f} bytes each")
        write_tsv(folder / "rows.tsv", criteo_like(rows // 10, seed=1))
        for reader in READERS:
            figures |= _figures(reader, _read(reader, parquet))
        _read("write_examples", parquet, out=str(records), rows=examples)
        for reader in TF_READERS:
            figures |= _figures(reader, _read(reader, records))
    for other in ("pyarrow", "torch_dataloader", "tfdata_service"):
        figures[f"ratio_vs_{other}"] = figures["samples_per_s_recmesh"] / figures[f"samples_per_s_{other}"]
    return Result("load", figures, {
        "rows": rows, "epochs": EPOCHS, "batch": BATCH, "tfrecord_rows": examples,
        "quick": f"{QUICK_ROWS:,} rows instead of {ROWS:,}" if quick else "",
    })


def _read(reader: str, path: Path, **more: Any) -> dict[str, float]:
    task: dict[str, Any] = {"reader": reader, "path": str(path), "batch": BATCH, "epochs": EPOCHS, **more}
    task["data"] = criteo_data([str(path.with_name("rows.parquet"))])
    environment = {**os.environ, **one_thread(), "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [sys.executable, "-m", "bench.workloads.reading", json.dumps(task)], cwd=ROOT, env=environment, check=False,
        capture_output=True, text=True, timeout=900,
    )
    if done.returncode:
        raise RuntimeError(f"{reader} failed:\n{done.stderr[-4000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _figures(reader: str, found: dict[str, float]) -> dict[str, float]:
    rate = found["samples"] / found["s"]
    say(f"  {reader}: {rate:,.0f} samples/s")
    return {f"samples_per_s_{reader}": rate, f"cpu_us_per_sample_{reader}": 1e6 * found["cpu_s"] / found["samples"]}
