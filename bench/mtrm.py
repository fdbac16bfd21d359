"""AUC per day of mixed training (MTRM) on flights, beside a single tower on both kinds of data.

The stream tells at once whether a flight is late, but takes 30 % of the late ones for punctual; batches tell the truth
24 hours later. Each flight is judged, on the truth, by what would have been served just before its minibatch is
trained. The single tower gets the same minibatches in the same order; it stands beside with one kind of data only, too.
"""

import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from bench.figures import Result
from bench.mesh import ROOT, one_thread, say, scratch
from bench.workloads import flights

SEEDS, DAYS, UNJUDGED = 10, 14, 4
QUICK_SEEDS, QUICK_DAYS, QUICK_UNJUDGED = 2, 8, 3
ONE_KIND_SEEDS = 2
FIRST_DAY = 70
"""Days before it, and other seeds, are what settings were chosen on."""
AT_ONCE = 2
T_975 = {1: 12.706, 2: 4.303, 4: 2.776, 9: 2.262}
"""Student's t, two-sided 95 %, by degrees of freedom."""
BOTH = ["stream", "batch"]
TUNED: dict[str, dict[str, Any]] = {
    "mtrm": {
        "model": "mtrm", "learns": BOTH, "lr": 0.02,
        "params": {"hidden": [64, 32], "adapt_hidden": [64, 32], "adapt_rate": 5.0, "answer": "own"},
    },
    # As many parameters as both towers of MTRM, tables included; with half of them it is worse.
    "single": {
        "model": "single", "learns": BOTH, "lr": 0.1,
        "params": {"hidden": [128, 64], "embedding_dim": 32, "embedding_dropout": 0.1},
    },
}
BATCH_SIZE = 512


def run(*, quick: bool) -> Result:
    """`relative_auc_gain` is the mean over seeds of mean AUC per day / the single tower's - 1; `interval_low` the lower
    end of its 95 % interval (Student's t, paired by seed)."""
    seeds, days, unjudged = (QUICK_SEEDS, QUICK_DAYS, QUICK_UNJUDGED) if quick else (SEEDS, DAYS, UNJUDGED)
    models = {
        **TUNED,
        "only_stream": TUNED["single"] | {"learns": ["stream"]},
        "only_batch": TUNED["single"] | {"learns": ["batch"]},
    }
    with scratch() as folder:
        try:
            rows = flights.prepare(folder, first=FIRST_DAY, days=days, seeds=range(seeds))
        except flights.DataMissing as missing:
            say(str(missing))
            return Result("mtrm", {}, {"missing": str(missing)})
        say(f"  {rows:,} flights of {days} days")
        shared = {"folder": str(folder), "first": FIRST_DAY, "days": days, "unjudged": unjudged,
                  "batch_size": BATCH_SIZE}
        tasks = [
            (name, shared | model | {"seed": seed}) for seed in range(seeds) for name, model in models.items()
            if name in TUNED or (not quick and seed < ONE_KIND_SEEDS)
        ]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            made = list(pool.map(lambda task: _run(*task), tasks))
    found: dict[str, list[dict[str, Any]]] = {}
    for (name, _), each in zip(tasks, made, strict=True):
        found.setdefault(name, []).append(each)
    figures = {f"auc_{name}": statistics.mean(_aucs(runs)) for name, runs in found.items()}
    for other in ("single", "only_stream", "only_batch"):
        if other in found:
            mean, low, high = gain(_aucs(found["mtrm"])[: len(found[other])], _aucs(found[other]))
            name = "relative_auc_gain" if other == "single" else f"relative_auc_gain_vs_{other}"
            figures[name] = mean
            if other == "single":
                figures |= {"interval_low": low, "interval_high": high}
    figures["days_won_share"] = statistics.mean(
        ours > theirs for ours, theirs in zip(_by_day(found["mtrm"]), _by_day(found["single"]), strict=True)
    )
    figures |= {f"samples_per_s_{name}": _rate(found[name]) for name in TUNED}
    return Result("mtrm", figures, {
        "flights": rows, "days": days, "unjudged_days": unjudged, "first_day_of_2001": FIRST_DAY, "seeds": seeds,
        "seeds_on_one_kind": 0 if quick else ONE_KIND_SEEDS,
        "label_delay_h": 24, "late_flights_unseen_by_the_stream": flights.UNSEEN, "batch_size": BATCH_SIZE,
        "models": models, "chosen_on": "days 14 to 69 of 2001 and another seed, for each model by itself",
        "parameters": {
            name: [runs[0]["dense_parameters"], runs[0]["embedding_parameters"]] for name, runs in found.items()
        },
        "auc_per_day": {name: [round(value, 5) for value in _by_day(runs)] for name, runs in found.items()},
        "auc_per_seed": {name: [round(value, 5) for value in _aucs(runs)] for name, runs in found.items()},
        "quick": f"{seeds} seeds, {days} days instead of {SEEDS}, {DAYS}; none on one kind alone" if quick else "",
    })


def gain(ours: list[float], theirs: list[float]) -> tuple[float, float, float]:
    """Mean and 95 % interval of ours / theirs - 1, paired; at least two pairs."""
    each = [one / other - 1 for one, other in zip(ours, theirs, strict=True)]
    mean = statistics.mean(each)
    half = T_975[len(each) - 1] * statistics.stdev(each) / math.sqrt(len(each))
    return mean, mean - half, mean + half


def _aucs(runs: Iterable[dict[str, Any]]) -> list[float]:
    return [statistics.mean(each["days"]) for each in runs]


def _by_day(runs: list[dict[str, Any]]) -> list[float]:
    return [statistics.mean(day) for day in zip(*(each["days"] for each in runs), strict=True)]


def _rate(runs: list[dict[str, Any]]) -> float:
    samples, seconds = (sum(float(each[name]) for each in runs) for name in ("samples", "s"))
    return samples / seconds


def _run(name: str, task: dict[str, Any]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "bench.workloads.mixed", json.dumps(task)], cwd=ROOT, env={**os.environ, **one_thread()},
        check=False, capture_output=True, text=True, timeout=1800,
    )
    if done.returncode:
        raise RuntimeError(f"{name}, seed {task['seed']}, failed:\n{done.stderr[-4000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    say(f"  seed {task['seed']}, {name}: {statistics.mean(found['days']):.5f} ({found['s']:.0f} s)")
    return found
