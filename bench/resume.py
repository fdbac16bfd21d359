"""Workers killed in the middle of an epoch, and others, more or fewer, that go on from their states.

Beside it stands torchdata's StatefulDataLoader, where `RECMESH_BENCH_TORCHDATA_PYTHON` names an interpreter with it.
"""

import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.figures import Result
from bench.mesh import ROOT, one_thread, say, scratch

PEER_PYTHON = "RECMESH_BENCH_TORCHDATA_PYTHON"
ROWS, BATCH, EVERY = 200_000, 256, 8
EPOCHS = 2
WORLDS = (3, 5, 2, 4, 1)
ROUNDS, QUICK_ROUNDS = 5, 1
ROW_GROUP, TASK_ROWS = 8_192, 4_096


def run(*, quick: bool) -> Result:
    """`lost` and `doubled` rows, as the checkpoints count them; `next_batch_s` of a worker that goes on."""
    rounds = QUICK_ROUNDS if quick else ROUNDS
    lost = doubled = kills = 0
    waits: list[float] = []
    with scratch() as folder:
        data = _data(folder)
        for number in range(rounds):
            found = _round(folder / f"round-{number}", data, random.Random(number))
            counts: Any = found["counts"]
            lost += int(np.maximum(EPOCHS - counts, 0).sum())
            doubled += int(np.maximum(counts - EPOCHS, 0).sum())
            kills, waits = kills + found["kills"], waits + found["waits"]
            say(f"  round {number + 1}: {found['kills']} kills, {counts.sum():,} samples")
        figures = {
            "samples": float(ROWS * EPOCHS * rounds), "lost": float(lost), "doubled": float(doubled),
            "kills": float(kills),
            "next_batch_s": statistics.median(waits), "next_batch_s_worst": max(waits),
        }
        peer, shown = _peer(folder, data)
    return Result("resume", figures | peer, {
        "rows": ROWS, "epochs": EPOCHS, "rounds": rounds, "workers": list(WORLDS), "batch": BATCH,
        "checkpoint_every_batches": EVERY,
        "next_batch_s": "from the start of `main` to the first batch, imports not counted",
        "peer": shown, "quick": f"{QUICK_ROUNDS} round instead of {ROUNDS}" if quick else "",
    })


def _data(folder: Path) -> dict[str, Any]:
    path, rng = folder / "rows.parquet", np.random.default_rng(0)
    table = {"row": pa.array(np.arange(ROWS)), "label": pa.array(rng.integers(0, 2, ROWS))}
    table |= {f"c{k}": pa.array(rng.integers(0, 1 << 40, ROWS)) for k in range(8)}
    pq.write_table(pa.table(table), path, row_group_size=ROW_GROUP)
    features: list[dict[str, Any]] = [{"name": "row", "kind": "dense"}]
    return {"source": {"files": [str(path)]}, "features": features + [{"name": f"c{k}"} for k in range(8)],
            "task_rows": TASK_ROWS}


def _round(folder: Path, data: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """All worlds but the last are killed; what each has counted when it died is in its checkpoint."""
    folder.mkdir()
    states: list[str] = []
    total = np.zeros(ROWS, np.int64)
    waits: list[float] = []
    kills = 0
    for number, world in enumerate(WORLDS):
        outs = [folder / f"{number}-{rank}.json" for rank in range(world)]
        workers = [
            _start({"data": data, "rows": ROWS, "batch_size": BATCH, "epochs": EPOCHS, "seed": 1, "rank": rank,
                    "world": world, "states": states, "every": EVERY, "out": str(out)})
            for rank, out in enumerate(outs)
        ]
        last = number == len(WORLDS) - 1
        if not last:
            _until(outs, workers)
            time.sleep(rng.uniform(0.0, 0.4))
            for worker in workers:
                kills += worker.poll() is None
                worker.send_signal(signal.SIGKILL)
        for worker in workers:
            code = worker.wait(600)
            if code not in (0, -signal.SIGKILL):
                raise RuntimeError(f"a worker ended with {code}")
        saved = [json.loads(out.read_text()) for out in outs]
        for each in saved:
            total += np.asarray(each["counts"])
        if states:
            waits += [each["first_s"] for each in saved if each["first_s"]]
        states = [str(out) for out in outs]
    return {"counts": total, "kills": kills, "waits": waits}


def _start(task: dict[str, Any]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-m", "bench.workloads.loading", json.dumps(task)], cwd=ROOT,
                            env={**os.environ, **one_thread()})


def _until(outs: list[Path], workers: "list[subprocess.Popen[bytes]]") -> None:
    """Each worker has written a checkpoint, or has ended."""
    deadline = time.monotonic() + 120.0
    while not all(out.exists() for out in outs):
        if time.monotonic() > deadline or any(worker.poll() not in (None, 0) for worker in workers):
            raise RuntimeError("a worker has no checkpoint")
        time.sleep(0.01)


def _peer(folder: Path, data: dict[str, Any]) -> tuple[dict[str, float], object]:
    python = os.environ.get(PEER_PYTHON, "")
    if not python:
        return {}, f"left out: {PEER_PYTHON} names no interpreter that has torchdata"
    task = {"file": data["source"]["files"][0], "batch_size": BATCH, "folder": str(folder)}
    done = subprocess.run([python, "-m", "bench.peers.stateful_loader", json.dumps(task)], cwd=ROOT, check=False,
                          env={**os.environ, **one_thread()}, capture_output=True, text=True, timeout=900)
    if done.returncode != 0:
        raise RuntimeError(f"torchdata's side failed:\n{done.stderr[-4000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    return {"torchdata_next_batch_s": found["next_batch_s"], "torchdata_lost_other_world": found["lost"],
            "torchdata_doubled_other_world": found["doubled"]}, found
