"""Parameter servers 1→2→3→1 while a job trains: pauses, bytes moved, steps lost; and the AUC of a job resized often."""

import itertools
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.figures import Result
from bench.mesh import ROOT, Mesh, criteo_data, mesh, say, scratch
from bench.quotas import until_stopped
from bench.synthetic import TABLES, criteo_like, write_parquet
from recmesh.client.views import Event

DIM, BATCH, IDS, ROWS = 16, 1024, 100_000, 200_000
CYCLE = (2, 3, 1)
CYCLES, QUICK_CYCLES = 5, 2
WINDOW_S = 1.0
"""Around a handoff; quiet windows, with none within it, are as long."""
PATIENCE_S = 300.0
SEEDS, QUICK_SEEDS = 5, 1
RESIZES = (2, 3, 2, 1)
FLIGHTS = ROOT / "examples" / "flights" / "flights.parquet"
ROW_BYTES = 8 + 2 * 4 * DIM + 4 + 4 + 8
"""A row on its way, with Adagrad's state: id, values, sums of squares, updates, frequency, last step."""


def run(*, quick: bool) -> Result:
    """Pauses are what a worker sees: the longest gap between two of its steps, less that of a quiet window.

    `max_pause_ms` is of the handoffs of a cycle the largest, each a median over cycles; `largest_pause_ms` of all.
    """
    with scratch() as folder, mesh() as running:
        figures, context = _resized(running, folder, QUICK_CYCLES if quick else CYCLES)
        more, scores = _quality(running, QUICK_SEEDS if quick else SEEDS)
    left_out = f"{QUICK_CYCLES} cycles instead of {CYCLES}, {QUICK_SEEDS} seed instead of {SEEDS}" if quick else ""
    return Result("resize", {**figures, **more}, {**context, **scores, "quick": left_out})


# ---- pauses and bytes


def _resized(running: Mesh, folder: Path, cycles: int) -> tuple[dict[str, float], dict[str, Any]]:
    data = folder / "rows.parquet"
    write_parquet(data, criteo_like(ROWS, seed=1, ids=IDS))
    job_id = running.client.submit(_spec(data, folder / "steps")).job_id
    running.wait(job_id, lambda job: job.progress.samples > 2 * ROWS, patience_s=PATIENCE_S)   # every row is there
    moves: list[Event] = []
    per_cycle: list[int] = []
    quiet: list[tuple[float, float]] = []
    for cycle in range(cycles):
        before = len(moves)
        for count in CYCLE:
            quiet.append(_quiet(3 * WINDOW_S))
            running.client.scale(job_id, "ps", count)
            moves = _settled(running, job_id, count)
            say(f"cycle {cycle + 1}: {count} parameter servers, {len(moves)} moves so far")
        per_cycle.append(len(moves) - before)
    running.client.stop(job_id)       # the worker ends what it has in its hands
    until_stopped(running, job_id)
    job = running.client.job(job_id)
    steps = _steps(folder)
    at = np.array([float(event.time) for event in moves])
    usual = statistics.median(_longest_gap(steps, middle) for middle in _middles(quiet))
    pauses = [1e3 * max(0.0, _longest_gap(steps, moment) - usual) for moment in at]
    by_place = itertools.zip_longest(*_chunks(pauses, per_cycle))
    base = sum(event.data["base_bytes"] for event in moves)
    least = cycles * _least_slots() / 4096 * _state_bytes(moves)
    trained = sum(size for _, size in steps)
    return {
        "max_pause_ms": max(statistics.median(p for p in place if p is not None) for place in by_place),
        "largest_pause_ms": max(pauses),
        "max_freeze_to_map_ms": max(event.data["pause_ms"] for event in moves),
        "max_latch_ms": max(event.data["latch_ms"] for event in moves),
        "moved_bytes_ratio": base / least,
        "delta_bytes_ratio": sum(event.data["delta_bytes"] for event in moves) / base,
        "steps_lost": (trained - job.progress.samples) / BATCH,
        "handoffs": float(len(moves)),
        "rollbacks": float(job.gen - 1),
    }, {
        "usual_longest_gap_ms": round(1e3 * usual, 2), "pauses_ms": [round(pause, 2) for pause in pauses],
        "steps": len(steps), "tables": TABLES, "dim": DIM, "batch": BATCH, "optimizer": "adagrad",
        "moved_mib": round(base / 2**20, 1), "cycle": list(CYCLE), "cycles": cycles,
    }


def _spec(data: Path, times: Path) -> dict[str, Any]:
    return {
        "name": "resize",
        "model": {
            "entrypoint": "constant:main", "code": str(ROOT / "bench" / "workloads"),
            "params": {"tables": TABLES, "dim": DIM, "times": str(times)},
        },
        "data": criteo_data([str(data)]),
        "training": {"batch_size": BATCH, "epochs": 1000, "optimizer": {"kind": "adagrad", "lr": 0.01}},
        "roles": {"ps": {"min": 1, "max": 4, "cpu": 2}, "worker": {"replicas": 1, "cpu": 2}},
        "checkpoint": {"every_s": 86_400},
        "export": None,
    }


def _quiet(length_s: float) -> tuple[float, float]:
    began = time.time()
    time.sleep(length_s)
    return began, time.time()


def _middles(quiet: list[tuple[float, float]]) -> list[float]:
    return [(lo + hi) / 2 for lo, hi in quiet]


def _settled(running: Mesh, job_id: str, count: int) -> list[Event]:
    """All moves so far, once the job runs on `count` parameter servers."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        job = running.client.job(job_id)
        live = [role for role in job.roles if role.role == "ps" and role.state == "running"]
        if job.phase == "Running" and len(live) == count:
            return [event for event in running.client.events(job_id) if event.type == "job.slots_moved"]
        time.sleep(0.1)
    raise TimeoutError(f"there are not {count} parameter servers after {PATIENCE_S:g} s")


def _steps(folder: Path) -> list[tuple[float, int]]:
    lines = [line.split() for path in folder.glob("steps.*") for line in path.read_text().splitlines()]
    return sorted((float(at), int(size)) for at, size in lines)


def _longest_gap(steps: list[tuple[float, int]], middle: float) -> float:
    """Seconds between two steps in a row, at least one of them in the window around the moment."""
    at: npt.NDArray[np.float64] = np.array([moment for moment, _ in steps])
    lo, hi = np.searchsorted(at, [middle - WINDOW_S / 2, middle + WINDOW_S / 2])
    window = at[max(0, lo - 1):hi + 1]
    return float(np.diff(window).max()) if window.size > 1 else 0.0


def _chunks(values: list[float], sizes: list[int]) -> list[list[float]]:
    ends = list(itertools.accumulate(sizes))
    return [values[end - size:end] for end, size in zip(ends, sizes, strict=True)]


def _least_slots() -> float:
    """Of one cycle: slots that change owner when nothing moves without need."""
    counts = [1, *CYCLE]
    return sum(4096 * abs(after - before) / max(before, after) for before, after in itertools.pairwise(counts))


def _state_bytes(moves: list[Event]) -> float:
    """Of all rows and the dense block, from the moves' own counts: rows per slot that moved, times all slots."""
    slots = sum(event.data["slots"] for event in moves)
    rows = sum(event.data["rows"] for event in moves)
    return float(4096 * rows / slots * ROW_BYTES + 2 * 4 * 512 * 64)


# ---- what it does to the model


def _quality(running: Mesh, seeds: int) -> tuple[dict[str, float], dict[str, Any]]:
    """The same job, by seed: resized four times, and left alone."""
    scores: dict[str, list[float]] = {"elastic": [], "fixed": []}
    for seed, kind in itertools.product(range(seeds), scores):
        job_id = running.client.submit(_flights(f"resize-{kind}-{seed}", seed)).job_id
        if kind == "elastic":
            for k, count in enumerate(RESIZES):
                share = (k + 1) / (len(RESIZES) + 2)
                running.wait(job_id, lambda job: job.progress.share > share, patience_s=PATIENCE_S)  # noqa: B023
                running.client.scale(job_id, "ps", count)
        job = running.wait(job_id, lambda job: job.phase == "Succeeded", patience_s=PATIENCE_S)
        moved = sum(event.type == "job.slots_moved" for event in running.client.events(job_id))
        scores[kind].append(job.metrics["eval_auc"])
        say(f"{kind}, seed {seed}: AUC {scores[kind][-1]:.4f}, {moved} moves")
    differences = [a - b for a, b in zip(scores["elastic"], scores["fixed"], strict=True)]
    figures = {"auc_elastic_minus_fixed": statistics.fmean(differences)}
    if len(differences) > 1:
        figures["auc_elastic_minus_fixed_sd"] = statistics.stdev(differences)
    return figures, {"auc": {kind: [round(value, 4) for value in values] for kind, values in scores.items()}}


def _flights(name: str, seed: int) -> dict[str, Any]:
    return {
        "name": name,
        "model": {"zoo": "torch_dcn_v2", "params": {"embedding_dim": 8, "cross_layers": 2, "hidden": [64, 32]}},
        "data": {
            "source": {"format": "parquet", "files": [str(FLIGHTS)], "rows": [0.0, 0.9]},
            "label": "late",
            "features": [
                {"name": "origin"}, {"name": "destination"}, {"name": "route"}, {"name": "hour"},
                {"name": "distance", "kind": "dense", "transform": "log1p"},
            ],
        },
        "training": {"batch_size": 128, "epochs": 1, "seed": seed, "optimizer": {"kind": "adagrad", "lr": 0.02}},
        "roles": {"ps": {"min": 1, "max": 4}, "worker": {"replicas": 2}},
        "evaluation": {"rows": [0.9, 1.0]},
        "export": None,
    }
