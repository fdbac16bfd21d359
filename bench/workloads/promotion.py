"""A served model and a training job on one mesh through a short day with a promotion's peak, and who had the room.

The peak is what three HNs bear at their target, which is low: an HN is a slice of a core. Outside it one is enough. Its
height follows from what a request takes here. Workers of the job are paced: each is a slot of a fraction of a core, and
what training does follows from how many it has. Requests come open loop, at drawn times.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from bench.mesh import ROOT, Mesh, mesh, say
from bench.offered_load import Offered, Target, offer, under_way
from bench.workloads import wide_deep
from bench.workloads.pacing import Paced
from recmesh.client.views import Job as JobView
from recmesh.serving.split.partition import partition
from recmesh.trainer.session import Job

MODEL = "promoted"
HIDDEN = (2048, 2048, 2048)
ROWS = 32
"""Samples of a request: some 15 ms of a core, so that the peak is tens of requests per second."""
TARGET = 0.25
TROUGH, PEAK = 0.1, 0.65
"""Of what one HN answers when nothing else is asked. At TARGET they need one HN, and three."""
WARM_S, WARM_PER_S = 12.0, 5.0
QUIET_S, PEAK_S, AFTER_S = 50.0, 40.0, 50.0
STEP_S, SEASON_S, SEASONS = 10.0, 900.0, 8
"""Of rates; promotions before, that the forecaster is told of, came so often."""
MOST = 3
"""HNs, and workers."""
WORKER_PER_S = 400.0
SLO_S = 0.25
"""From the drawn time; later, refused or lost is late."""
START_S = 300.0
RULES: Mapping[str, float] = {
    "own": 1, "most": 2, "most_draining": 2, "drain_s": 15, "start_s": 25, "return_s": 10, "hold_s": 10, "notice_s": 10,
    "slack_s": 120, "step_s": 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Scheme:
    """How the room is shared."""

    rules: Mapping[str, Any]
    hn: Mapping[str, int]
    worker: Mapping[str, int]
    is_told: bool = False
    """The forecaster knows earlier promotions."""


LOANS = {**RULES, "unit": {"cpu": 0.3}}
ELASTIC = {"min": 1, "max": MOST}
SCHEMES: Mapping[str, Scheme] = {
    "forecast": Scheme(LOANS, {"min": 1, "max": MOST}, ELASTIC, is_told=True),
    "reactive": Scheme(LOANS, {"min": 1, "max": MOST}, ELASTIC),
    "fixed": Scheme({**LOANS, "own": MOST, "most": 1}, {"min": MOST, "max": MOST}, {"replicas": 1}),
}
"""`fixed`: a pool for the peak, and the job in what is left."""


@dataclass(slots=True)
class Day:
    """What was seen, once a second; `at` counts from the first request."""

    at: list[float] = field(default_factory=list)
    lent: list[int] = field(default_factory=list)
    hns: list[int] = field(default_factory=list)
    workers: list[int] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)
    offered: Offered | None = None
    per_s: tuple[float, float] = (0.0, 0.0)
    """Requests, outside the peak and in it."""
    ledger: Sequence[Mapping[str, Any]] = ()
    rolled_back: int = 0
    scaled: Sequence[Mapping[str, Any]] = ()
    """HNs that were started and ended, and why."""

    @property
    def trained(self) -> int:
        """Samples."""
        return self.samples[-1] - self.samples[0]

    @property
    def unit_s(self) -> float:
        """Seconds of units that were lent."""
        return float((np.diff(self.at) * np.array(self.lent[:-1])).sum())

    def late_share(self, begin_s: float = 0.0, end_s: float = np.inf) -> float:
        """Of requests that were drawn for this time of the day."""
        assert self.offered is not None
        first = float(self.offered.due[0])
        return 1.0 - self.offered.between(first + begin_s, first + end_s).share_in_time(SLO_S)

    def lines(self, every: int = 5) -> list[tuple[float, int, int, int, int]]:
        """For a report: seconds, units lent, HNs, workers, samples."""
        seen = zip(self.at, self.lent, self.hns, self.workers, self.samples, strict=True)
        return [(round(at, 1), *rest) for at, *rest in list(seen)[::every]]    # type: ignore[misc]  # five of them


def main(job: Job) -> None:
    """A worker's: DCN-v2 of the zoo, paced to params.per_s."""
    from recmesh.zoo.torch.torch_dcn_v2 import main as train  # torch takes seconds, which others need not

    per_s = job.params.pop("per_s")
    job.session = Paced(job.session, per_s)
    train(job)


def lived(folder: Path, scheme: Scheme, per_s: tuple[float, float] | None = None) -> Day:
    """The day under a scheme, on a mesh of its own. per_s: requests outside the peak and in it; None: measured."""
    settings = {
        "RECMESH_LOANS": json.dumps(scheme.rules), "RECMESH_RATE_SEASON_S": f"{SEASON_S:g}",
        "RECMESH_PLAN_INTERVAL_S": "0", "RECMESH_GATEWAY_SCALING_STEP_S": "2",
        "RECMESH_CORES": "6",       # slots are of fractions of the cores that there are
    }  # fmt: skip
    with mesh(settings=settings, env={"PYTHONPATH": str(ROOT)}) as running:
        _serve(running, scheme)
        job_id = _train(running, scheme)
        target = Target(running.client.url.removeprefix("http://"), MODEL)
        warm = offer(target, folder, rate=WARM_PER_S, seconds=WARM_S, rows=ROWS, binary=True)
        bears = 1e3 / warm.percentile_ms(25)        # those that did not wait for a core
        say(f"  an HN answers {bears:,.1f} requests per second")
        found = per_s or (TROUGH * bears, PEAK * bears)
        day = Day(per_s=found)
        phases = [(found[0], QUIET_S), (found[1], PEAK_S), (found[0], AFTER_S)]
        with under_way(target, folder, phases=phases, rows=ROWS, binary=True) as load:
            begin = load.began()
            if scheme.is_told:
                peak_at = time.time() + begin + QUIET_S - time.monotonic()
                running.client.tell_rates(f"model/{MODEL}", _earlier(found, peak_at), step_s=STEP_S)
            _watched(day, running, job_id, begin)
            day.offered = load.result()
        day.ledger = [_line(loan, begin) for loan in running.client.loans()["loans"]]
        day.scaled = _scaled(running, begin)
        day.rolled_back = sum(event.type == "job.rolled_back" for event in running.client.events(job_id))
        return day


def _serve(running: Mesh, scheme: Scheme) -> None:
    folder = running.home / "storage" / "promoted"
    scaling = {"hn": dict(scheme.hn), "target_utilisation": TARGET, "hold_s": 5}
    wide_deep.write(folder, hidden=HIDDEN, serving={"split": "always", "scaling": scaling})
    partition(folder)
    running.client.register_model({"name": MODEL, "uri": str(folder), "framework": "torch"})
    ends = time.monotonic() + START_S
    while (state := running.client.model(MODEL)[-1]).state != "ready":
        if state.state == "failed" or time.monotonic() > ends:
            raise RuntimeError(f"{MODEL} does not serve: {state.state} {state.reason}")
        time.sleep(0.25)


def _train(running: Mesh, scheme: Scheme) -> str:
    """A job that has as many workers as it may."""
    client = running.client
    job_id = client.submit({
        "name": "elastic",
        "model": {
            "entrypoint": "bench.workloads.promotion:main",
            "params": {"embedding_dim": 8, "cross_layers": 1, "hidden": [32], "per_s": WORKER_PER_S},
        },
        "data": {
            "source": {"format": "parquet", "files": [str(ROOT / "examples" / "flights" / "flights.parquet")]},
            "label": "late", "task_rows": 8192,
            "features": [
                {"name": "origin"}, {"name": "destination"}, {"name": "route"}, {"name": "hour"},
                {"name": "distance", "kind": "dense", "transform": "log1p"},
            ],
        },
        "training": {
            "batch_size": 256, "epochs": 20, "shard_batches": 4, "optimizer": {"kind": "adagrad", "lr": 0.01},
        },
        "roles": {"ps": {"replicas": 1}, "worker": {"cpu": 0.3, **scheme.worker}},
        "checkpoint": {"every_s": 60, "keep": 1}, "export": None,
    }).job_id  # fmt: skip
    running.wait(job_id, lambda job: job.phase == "Running", patience_s=START_S)
    count = scheme.worker.get("max", scheme.worker.get("replicas", 1))
    if "max" in scheme.worker:
        client.scale(job_id, "worker", count)
    running.wait(job_id, lambda job: _workers(job) == count and job.progress.samples > 0, patience_s=START_S)
    if "max" in scheme.worker:
        client.scale(job_id, "worker", None)       # from now on it is its job's to choose, and so to lend
    return job_id


def _workers(job: JobView) -> int:
    return sum((role.role, role.state) == ("worker", "running") for role in job.roles)


def _earlier(per_s: tuple[float, float], peak_at: float) -> list[tuple[float, float]]:
    """Promotions as this one, each SEASON_S before the next."""
    now = time.time()
    first = int((now - SEASONS * SEASON_S) // STEP_S * STEP_S)
    moments = np.arange(first, now - STEP_S, STEP_S)
    since = (moments - peak_at + STEP_S) % SEASON_S - STEP_S
    in_peak_s = (np.minimum(since + STEP_S, PEAK_S) - np.maximum(since, 0.0)).clip(0.0)     # of each step
    rates = per_s[0] + in_peak_s / STEP_S * (per_s[1] - per_s[0])
    return [(float(at), float(rate)) for at, rate in zip(moments, rates, strict=True)]


def _scaled(running: Mesh, begin: float) -> list[dict[str, Any]]:
    """Oldest first; from when they were there on, times count from the first request."""
    found = httpx.get(f"{running.client.url}/v1/models/{MODEL}/scaling", timeout=30.0).json()["changes"]
    first, told = _first(begin), ("after", "took_s", "reason", "why")
    return [{"at": round(each["at"] - first, 1), **{name: each[name] for name in told}} for each in reversed(found)]


def _first(begin: float) -> float:
    """Unix seconds of a moment of the monotonic clock."""
    return time.time() - time.monotonic() + begin


def _line(loan: Mapping[str, Any], begin: float) -> dict[str, Any]:
    """Of the ledger; times count from the first request."""
    first = _first(begin)
    times = {key: round(loan[key] - first, 1) for key in ("planned", "lent", "ended", "due") if loan.get(key)}
    return {"state": loan["state"], "cause": loan["cause"], "late": loan.get("late", False), **times}


def _watched(day: Day, running: Mesh, job_id: str, begin: float) -> None:
    told = 0.0
    while (now := time.monotonic() - begin) < QUIET_S + PEAK_S + AFTER_S:
        job, pool = running.client.job(job_id), running.client.loans(open_only=True)["pool"]
        day.at.append(now)
        day.lent.append(pool.get("lent", 0))
        day.hns.append(pool.get("used", 0))
        day.workers.append(_workers(job))
        day.samples.append(job.progress.samples)
        if now - told >= 10.0:
            told = now
            say(f"  {now:3.0f} s: {day.hns[-1]} HNs, {day.lent[-1]} lent, {day.workers[-1]} workers")
        time.sleep(max(0.0, begin + now + 1.0 - time.monotonic()))
