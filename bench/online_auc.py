"""AUC against lag on a real stream (KALE's figure 1), and of fixed-small, hpa and ours by the lags they had on a mesh.

Measured: (1) MMoE trained on flights as they come, each flight judged by the model of (its minute - lag); (2) how far
behind jobs on the real mesh are through one compressed day of those flights (bench.workloads.tides). Derived: AUC by
scheme is (1) with the lag timeline of (2), stretched to a real day, on every judged day. So a scheme's AUC is that of
the lag it had, with one model trained the same way for all; what staleness within a minibatch of many workers does is
not in it, and neither is a backlog that one day leaves to the next.
"""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from bench.figures import Result
from bench.mesh import ROOT, one_thread, say, scratch
from bench.workloads import flights, tides
from bench.workloads.lagging import LABELS
from bench.workloads.peers_in_time import FASTER, PREFIX
from bench.workloads.tides import Tide
from services.brain.simulator import svg

LAGS_S = (0, 600, 3600, 10_800, 21_600, 86_400)
FIRST_DAY = 70
SEEDS, DAYS, UNJUDGED = 3, 14, 4
QUICK_SEEDS, QUICK_DAYS, QUICK_UNJUDGED = 2, 5, 2
JUDGE: dict[str, Any] = {
    "batch_size": 64, "lr": 0.1,
    "params": {"embedding_dim": 16, "experts": 4, "expert_hidden": [64], "tower_hidden": [32]},
}
AT_ONCE = 2
TIDE = Tide(day_s=900.0, flown=24, first=78, known=3, worker_per_s=250.0)
"""Its peak is some 800 flights per second, for each of the schemes, which run side by side: what two cores bear."""
QUICK_TIDE = Tide(day_s=300.0, flown=7, first=70, known=4, worker_per_s=200.0)
SCHEMES = {"fixed_small": "", **{name: f"{PREFIX}{name}" for name in ("hpa", "kale", "horizon")}}
QUICK_SCHEMES = {name: SCHEMES[name] for name in ("fixed_small", "hpa", "horizon")}
IMAGE = ROOT / "docs" / "images" / "online-auc.svg"


def run(*, quick: bool) -> Result:
    """`auc_lag_N` (N seconds) and `auc_very_late_lag_N`: mean AUC per day, over seeds; `relative_auc_loss_lag_N` =
    1 - auc_lag_N / auc_lag_0, of `late`. By scheme, on the mesh: `lag_violation_share_*` (of the day, against 20 min
    of a real day), `accumulated_lag_s2_*` (sum of lag over the compressed seconds), `max_lag_s_*`, `worker_s_*`,
    `standstill_s_*`, `rollbacks_*`, `trained_*`; derived from it `auc_*`, `relative_auc_loss_*`."""
    seeds, days, unjudged = (QUICK_SEEDS, QUICK_DAYS, QUICK_UNJUDGED) if quick else (SEEDS, DAYS, UNJUDGED)
    tide, schemes = (QUICK_TIDE, QUICK_SCHEMES) if quick else (TIDE, SCHEMES)
    try:
        flights.source()
    except flights.DataMissing as missing:
        say(str(missing))
        return Result("online_auc", {}, {"missing": str(missing)})
    with scratch() as folder:
        rides, details = tides.ridden(folder, tide, schemes, JUDGE["params"], lr=JUDGE["lr"])
    figures = {
        f"{column}_{name}": value for name, ride in rides.items() for column, value in ride.columns(tide.slo_s).items()
    }
    lags: dict[str, Any] = {f"lag_{lag}": lag / 60 for lag in LAGS_S}
    lags |= {name: ride.lag_by_minute(tide) for name, ride in rides.items()}
    shared = JUDGE | {"first": FIRST_DAY, "days": days, "unjudged": unjudged, "lags": lags}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        made = list(pool.map(lambda seed: _judged(shared | {"seed": seed}), range(seeds)))
    aucs = {name: [_mean(each, name) for each in made] for name in lags}
    figures |= {f"auc_{name}": statistics.mean(values) for name, values in aucs.items()}
    figures |= {
        f"auc_very_late_lag_{lag}": statistics.mean(_mean(each, f"lag_{lag}", "very_late") for each in made)
        for lag in LAGS_S
    }
    best = figures["auc_lag_0"]
    figures |= {f"relative_auc_loss_{name}": 1 - figures[f"auc_{name}"] / best for name in lags if name != "lag_0"}
    if not quick:
        IMAGE.write_text(drawn(aucs))
    return Result("online_auc", figures, {
        "judged": f"{made[0]['samples']:,} flights of {days} days from day {FIRST_DAY} of 2001, the first {unjudged} "
                  "not judged",
        "model": JUDGE, "label": "arrival more than 15 min late; taken as known at departure", "seeds": seeds,
        "lag_0": "test-then-train: the model before the flight's own minibatch",
        "auc_per_seed": {name: [round(value, 5) for value in values] for name, values in aucs.items()},
        "mesh": details, "derived": "auc_SCHEME: the mesh's lag timeline in the judgement, see the module",
        "timeline": tides.as_lines(rides),
        "not_compressed": "a worker's start, looks at lag (every 5 s)",
        "planners_times": f"a 1/{FASTER:.0f} of those in the simulator, as a step is",
        "quick": f"{seeds} seeds, {days} days, a day in {tide.day_s:g} s instead of {SEEDS}, {DAYS}, {TIDE.day_s:g}; "
                 "without kale" if quick else "",
    })


def drawn(aucs: Mapping[str, list[float]]) -> str:
    """AUC against lag: the mean of seeds, and each seed."""
    hours = np.array(LAGS_S) / 3600
    by_seed = np.array([aucs[f"lag_{lag}"] for lag in LAGS_S])
    low, high = np.floor(by_seed.min() * 20) / 20, np.ceil(by_seed.max() * 20) / 20
    ticks = np.arange(low, high + 0.01, 0.05)
    colour, *_ = svg.COLOURS
    lines = [svg.Line("mean of seeds", hours, by_seed.mean(axis=1), colour)]
    lines += [svg.Line(f"seed {seed}", hours, each, colour, dashed=True) for seed, each in enumerate(by_seed.T)]
    return svg.chart(
        "AUC of late flights, each judged by a model that is so far behind", lines,
        x=svg.Axis(0.0, float(hours.max()), "lag", [(hour, f"{hour} h") for hour in (0, 3, 6, 12, 18, 24)]),
        y=svg.Axis(float(low), float(high), "AUC", [(float(tick), f"{tick:.2f}") for tick in ticks]),
    )


def _mean(each: Mapping[str, Any], name: str, label: str = LABELS[0]) -> float:
    return float(statistics.mean(each["auc"][name][label]))


def _judged(task: dict[str, Any]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "bench.workloads.lagging", json.dumps(task)], cwd=ROOT,
        env={**os.environ, **one_thread()}, check=False, capture_output=True, text=True, timeout=1800,
    )
    if done.returncode:
        raise RuntimeError(f"seed {task['seed']} failed:\n{done.stderr[-4000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    say(f"  seed {task['seed']}: AUC {_mean(found, 'lag_0'):.4f} without lag ({found['s']:.0f} s)")
    return found
