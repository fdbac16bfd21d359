"""Look up and update growing tables, beside static ones: torch's EmbeddingBag and fbgemm's table-batched kernel."""

import gc
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.figures import Result
from bench.mesh import ROOT, one_thread, say
from bench.peers.memory import PEER_MEMORY
from bench.store_load import BATCH, DIM, I64, LR, TABLES, Load, measure
from recmesh.formats import splitmix64
from recmesh.store import Init, Optimizer, Store, TableSchema, dedup, scatter_add, take_rows

PEER_PYTHON = "RECMESH_BENCH_FBGEMM_PYTHON"
"""Names an interpreter that has fbgemm_gpu beside torch and numpy: it pins versions that the project's may not have."""
SIZES = {"4m": 4_000_000, "30m": 30_000_000}
LAWS = ("zipf", "uniform")


def run(*, quick: bool) -> Result:
    """Both laws at each size, ours and the peers in turns."""
    sizes = {"1m": 1_000_000} if quick else SIZES
    turns, window_s = (1, 2.0) if quick else (2, 6.0)
    peers = {"torch": sys.executable}
    if python := os.environ.get(PEER_PYTHON, ""):
        peers["fbgemm"] = python
    figures: dict[str, float] = {}
    context: dict[str, object] = {}
    for size, keys in sizes.items():
        found = [_turn(keys, peers, window_s=window_s) for _ in range(turns)]
        rates = {name: statistics.median(turn.rates[name] for turn in found) for name in found[0].rates}
        for law in LAWS:
            ours = figures[f"samples_per_cpu_s_{law}_{size}"] = rates[f"recmesh {law}"]
            for kind in peers:
                figures[f"{kind}_samples_per_cpu_s_{law}_{size}"] = rates[f"{kind} {law}"]
                figures[f"ratio_vs_{kind}_{law}_{size}"] = ours / rates[f"{kind} {law}"]
        figures[f"max_growth_stall_ms_{size}"] = max(turn.growth.stall_ms for turn in found)
        context |= {
            f"growth_{size}": [str(turn.growth) for turn in found], f"bytes_per_key_{size}": found[-1].bytes_per_key,
            f"turns_{size}": [{name: round(rate) for name, rate in turn.rates.items()} for turn in found]}
    first = next(iter(sizes))
    figures["ratio_vs_torch"] = figures[f"ratio_vs_torch_zipf_{first}"]
    if "fbgemm" in peers:
        figures |= {f"ratio_vs_fbgemm_{law}": figures[f"ratio_vs_fbgemm_{law}_{first}"] for law in LAWS}
    return Result("store", figures, {
        "tables": TABLES, "dim": DIM, "batch": BATCH, "keys": sizes, "turns": turns, "window_s": window_s, **context,
        "step": "distinct ids, pull, one row per sample, sum of gradients, Adagrad; the peers: forward and backward",
        "left_out": "" if "fbgemm" in peers else f"fbgemm: {PEER_PYTHON} names no interpreter that has it",
        "quick": "1,000,000 keys, one turn, short windows" if quick else "",
    })


@dataclass(frozen=True, slots=True)
class Turn:
    """Samples per CPU second by who and law, and what growing to that size was like."""

    rates: dict[str, float]
    growth: "Growth"
    bytes_per_key: float


def _turn(keys: int, peers: dict[str, str], *, window_s: float) -> Turn:
    tables, rates = Tables(keys // TABLES), {}
    growth = tables.fill()
    for law in LAWS:
        batches = [tables.ids(batch) for batch in Load(keys, law).batches()]
        rates[f"recmesh {law}"] = measure(tables.step, batches, window_s=window_s, cpu_s=time.process_time)
    bytes_per_key = tables.store.memory_bytes / keys
    del tables
    gc.collect()                                   # the peers' tables take gigabytes too
    for kind, python in peers.items():
        for law in LAWS:
            task = {"kind": kind, "keys": keys, "law": law, "window_s": window_s}
            rates[f"{kind} {law}"] = _peer(python, task)
    say(f"{keys:,} keys: {({name: round(rate) for name, rate in rates.items()})}; {growth}")
    return Turn(rates, growth, round(bytes_per_key, 1))


@dataclass(frozen=True, slots=True)
class Growth:
    """What pushes of new ids took while the tables grew to their size."""

    longest_ms: float
    median_ms: float
    longest_wall_ms: float

    @property
    def stall_ms(self) -> float:
        """CPU time of the longest push beyond that of a usual one: partitions that grew, and fresh pages for them."""
        return self.longest_ms - self.median_ms

    def __str__(self) -> str:
        return (f"longest push {self.longest_ms:.1f} ms of CPU ({self.longest_wall_ms:.1f} ms of wall clock), "
                f"median {self.median_ms:.1f} ms")


class Tables:
    """The store, with ids of 64 bits that say nothing of their rows."""

    def __init__(self, ids_per_table: int) -> None:
        self.store, self._ids_per_table, self._step = Store(), ids_per_table, 0
        optimizer = Optimizer("adagrad", lr=LR, initial_accumulator=0.0)
        self._numbers = [self.store.add_table(TableSchema(f"C{k + 1}", DIM, optimizer, Init("uniform", 0.05)))
                         for k in range(TABLES)]
        self._gradient = np.full((BATCH, DIM), 1e-3, np.float32)

    def ids(self, rows: I64) -> list[I64]:
        """Of a batch, by table."""
        return [np.ascontiguousarray(splitmix64(rows[:, k].astype(np.uint64) + np.uint64(k << 40)).view(np.int64))
                for k in range(TABLES)]

    def fill(self) -> Growth:
        """Grow every table to its size in pushes of BATCH new ids each, one table after another in turn."""
        spent, walls = [], []
        gradient = np.zeros((BATCH, DIM), np.float32)
        for lo in range(0, self._ids_per_table, BATCH):
            rows = np.arange(lo, min(lo + BATCH, self._ids_per_table))[:, None].repeat(TABLES, axis=1)
            for number, ids in zip(self._numbers, self.ids(rows), strict=True):
                wall, before = time.perf_counter(), time.thread_time()
                self._push(number, ids, gradient[:len(ids)], None)
                spent.append(time.thread_time() - before)
                walls.append(time.perf_counter() - wall)
        return Growth(max(spent) * 1e3, statistics.median(spent) * 1e3, max(walls) * 1e3)

    def step(self, batch: list[I64]) -> None:
        """What worker and server do with a batch, without the wire."""
        for number, ids in zip(self._numbers, batch, strict=True):
            unique = dedup(ids)
            take_rows(self.store.pull(number, unique.ids), unique.inverse)
            grads = scatter_add(self._gradient, unique.inverse, rows=len(unique.ids))
            self._push(number, unique.ids, grads, unique.counts)
        self._step += 1

    def _push(
        self, number: int, ids: I64, grads: NDArray[np.float32], counts: NDArray[np.uint32] | None
    ) -> None:
        with self.store.reserved({number: len(ids)}):
            self.store.apply(number, ids, grads, counts, step=self._step)


def _peer(python: str, task: dict[str, object]) -> float:
    done = subprocess.run(
        [python, "-W", "ignore", "-m", "bench.peers.embedding_bags", json.dumps(task)], cwd=ROOT,
        env={**os.environ, **one_thread(), **PEER_MEMORY}, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode:
        raise RuntimeError(f"{task['kind']} failed: {done.stderr[-2000:]}")
    return float(json.loads(done.stdout.splitlines()[-1])["samples_per_cpu_s"])
