"""Versions of a model swapped under load through the gateway: requests that fail, and how much slower they are.

A Wide & Deep in torch, whole (`swap`) and in halves (`split`), is asked over REST at a steady open-loop rate (latency
counts from the drawn time) while newer versions are registered, loaded, made the one that serves, and the older
freed. A swap lasts from the call that registers a version until a while after it serves, in which the older is
freed; the time before the first one is what it is held against.
"""

import time
from pathlib import Path
from typing import Any

import numpy as np

from bench.figures import Result
from bench.gateway import Gateway, gateway
from bench.mesh import say, scratch
from bench.offered_load import Offered, Target, cores, under_way
from bench.workloads import wide_deep
from recmesh.serving.split.partition import partition

RATE, ROWS = 150.0, 8
SWAPS, QUICK_SWAPS = 10, 2
BEFORE_S, QUICK_BEFORE_S = 30.0, 8.0
AFTER_S = 2.0
"""Of a swap, once the new version serves: the older one is freed."""
PAUSE_S = 1.0
LOAD_S = 60.0
"""For a load to be under way at most, so that the offered load outlasts all."""

Spans = list[tuple[float, float, float]]
"""Of each swap when it was asked for, when the new version served, and when it is over."""


def run(*, quick: bool) -> Result:
    """`dropped` (goal 0): requests that failed, over all time; `p99_ms_before`, `p99_ms_during` swaps, `longest_ms`
    during swaps (`longest_ms_before` beside it), `swap_s` (median: registered to serving). Those of halves: `*_split`.
    """
    swaps, before_s = (QUICK_SWAPS, QUICK_BEFORE_S) if quick else (SWAPS, BEFORE_S)
    figures: dict[str, float] = {}
    counts: dict[str, int] = {}
    for way, suffix in (("never", ""), ("always", "_split")):
        with scratch() as folder:
            found, spans = _swapped(folder, way, swaps=swaps, before_s=before_s)
        figures |= {f"{name}{suffix}": value for name, value in _figures(found, spans).items()}
        counts["requests" + suffix] = len(found.due)
        say(f"split {way}: { {name: round(value, 1) for name, value in figures.items()} }")
    return Result("swap", figures, {
        **counts, "swaps": swaps, "requests_per_s": RATE, "samples_per_request": ROWS, "before_s": before_s,
        "server_cores": cores()[0], "load_cores": cores()[1],
        "quick": f"{QUICK_SWAPS} swaps instead of {SWAPS}" if quick else "",
    })  # fmt: skip


def _swapped(folder: Path, way: str, *, swaps: int, before_s: float) -> tuple[Offered, Spans]:
    """What came of the load, and the swaps in it."""
    models = folder / "storage" / "models" / "model"
    serving: dict[str, Any] = {"split": way, "max_batch_size": 64}
    for version in range(1, swaps + 2):
        wide_deep.write(models / str(version), seed=version, serving=serving)
        if way == "always":
            partition(models / str(version))
    spans: Spans = []
    with gateway(folder, cores=cores()[0]) as ours:
        ours.serve("model", "torch")
        seconds = before_s + swaps * (LOAD_S + AFTER_S + PAUSE_S)
        with under_way(
            Target(ours.http, "model"), folder, phases=[(RATE, seconds)], rows=ROWS, binary=True
        ) as load:
            begun = load.began()
            time.sleep(max(0.0, begun + before_s - time.monotonic()))
            for version in range(2, swaps + 2):
                asked = time.monotonic()
                _swap(ours, str(version))
                serves = time.monotonic()
                time.sleep(AFTER_S)
                spans.append((asked, serves, time.monotonic()))
                say(f"  version {version} after {serves - asked:.1f} s")
                time.sleep(PAUSE_S)
            load.stop()
            return load.result(), spans


def _swap(ours: Gateway, version: str) -> None:
    ours.register("model", "torch", version=version)
    ends = time.monotonic() + LOAD_S
    while ours.model("model")["version"] != version:
        if time.monotonic() > ends:
            raise RuntimeError(f"version {version} does not serve after {LOAD_S} s")
        time.sleep(0.1)


def _figures(found: Offered, spans: Spans) -> dict[str, float]:
    before = found.between(float(found.due[0]) + 1.0, spans[0][0])
    during = [found.between(asked, over) for asked, _, over in spans]
    late = np.concatenate([each.latency_s for each in during])
    p99 = float(np.percentile(late, 99, method="higher"))
    return {
        "dropped": float(found.failed),
        "p99_ms_before": before.percentile_ms(99), "p99_ms_during": 1e3 * p99 if np.isfinite(p99) else -1.0,
        "p50_ms_before": before.percentile_ms(50),
        "p50_ms_during": 1e3 * float(np.median(late)),
        "longest_ms_before": before.percentile_ms(100),
        "longest_ms": 1e3 * float(late.max()) if np.isfinite(late).all() else -1.0,
        "swap_s": float(np.median([serves - asked for asked, serves, _ in spans])),
    }  # fmt: skip
