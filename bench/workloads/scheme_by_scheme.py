"""One online job after another on the real mesh, each under another scheme, over the same compressed day of traffic.

The day is one of a real series (services.brain.simulator.online.series), scaled as in `bench autoscale`; its samples
are real flights, whose airports make some partitions several times as full as others. `recmesh replay` publishes them
to a JetStream topic of the job's own, so that forecaster knows of it what it is told: the same days before, for each.
A job trains a logistic regression with an embedding per value, online, each sample once. Workers are paced, so that
two cores are not the limit.
"""

import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from bench.mesh import ROOT, Mesh, mesh, one_thread, say
from bench.workloads import flights, peers_in_time, tides
from bench.workloads.tides import F64, PARTITIONS, STEP_S, Ride
from recmesh.partitions import partitions_of
from services.brain.simulator.online.comparison import PEAK_TO_TROUGH
from services.brain.simulator.online.series import series_named

DAY_MINUTES = 1440
FIRST_FLIGHT_DAY = 60
START_S = 300.0
LEAD_IN_S = 30.0
"""Of the day before: workers show what they can train, and the job takes its size, before anything counts."""
GAP_S = 5.0
"""From the replay's start to its first sample, at least."""
TYPES = {
    "origin": "string", "destination": "string", "route": "string", "late": "int", "hour": "int", "weekday": "int",
    "distance": "float",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Day:
    """How a day of a series is compressed."""

    series: str
    day_s: float
    """How long it takes; a multiple of 10."""
    peak_per_s: float = 2000.0
    known: int = 7
    """Days before it that forecaster is told of."""
    worker_per_s: float = 250.0
    most: int = 12
    """Workers."""
    slo_s: float = 20.0
    batch_size: int = 64

    @property
    def compression(self) -> float:
        """Real seconds to one."""
        return DAY_MINUTES * 60.0 / self.day_s

    @property
    def adequate(self) -> int:
        """Workers with which nothing ever waits."""
        return math.floor(self.peak_per_s / self.worker_per_s) + 1


def rates(day: Day, data: Path) -> tuple[F64, F64]:
    """(of the days before, (known · 1440,); of the lead-in and the judged day): samples per second by real minute.

    The judged day is the last that begins where the hours before it are low, so that a job which starts with few
    workers has nothing to catch up with; its peak is 7.65 times its trough.
    """
    values = series_named(day.series, data, days=day.known + 2.0)
    lead = round(LEAD_IN_S * day.compression / 60)
    ends = range(len(values) - 2 * DAY_MINUTES, len(values) - DAY_MINUTES)
    highest = [values[end - lead : end].max() for end in ends]
    last = len(values) - DAY_MINUTES + int(np.argmin(highest))
    values = values[last - (day.known + 1) * DAY_MINUTES : last]
    low, high = values[-DAY_MINUTES:].min(), values[-DAY_MINUTES:].max()
    share = (values - low) / (high - low)
    made = np.maximum(0.0, day.peak_per_s * (share + (1 - share) / PEAK_TO_TROUGH))
    return made[: -DAY_MINUTES], made[-DAY_MINUTES - lead :]


def samples(path: Path, per_minute: F64, day: Day) -> int:
    """Writes flights with a `date`, so many in each real minute that a replay has the rates; how many there are."""
    ends = np.cumsum(per_minute * 60.0 / day.compression)
    total = int(ends[-1])
    table = flights.read(first=FIRST_FLIGHT_DAY, days=60)
    table = table.take(pa.array(np.arange(total) % table.num_rows)).drop_columns([*flights.AT, "very_late"])
    minutes = np.interp(np.arange(total), np.concatenate([[0.0], ends]), np.arange(len(per_minute) + 1))
    at = np.datetime64(flights.BEGIN.replace(tzinfo=None), "us") + (minutes * 60e6).astype(np.int64)
    pq.write_table(table.append_column("date", pa.array(at)), path)
    return total


def by_step(per_minute: F64, day: Day) -> F64:
    """Means over the mesh's steps of STEP_S; whole days in."""
    steps = round(len(per_minute) / DAY_MINUTES * day.day_s / STEP_S)
    edges = np.linspace(0, len(per_minute), steps + 1)
    sums = np.interp(edges, np.arange(len(per_minute) + 1), np.concatenate([[0.0], np.cumsum(per_minute)]))
    made: F64 = np.diff(sums) / np.diff(edges)
    return made


def specification(name: str, topic: str, planner: str, day: Day) -> dict[str, Any]:
    """A job on the topic; without a planner it has `adequate` workers, for ever."""
    worker = {"cpu": 0.2, "memory": "1Gi", "env": one_thread()}
    scaling = {
        "planner": planner, "step_s": STEP_S, "horizon_s": 12 * STEP_S, "hold_s": 300.0 / peers_in_time.FASTER,
        "lag_slo_s": day.slo_s, "drain_s": day.slo_s,
    }  # fmt: skip
    return {
        "name": name,
        "model": {"entrypoint": "bench.workloads.logistic:main", "params": {"per_s": day.worker_per_s}},
        "data": {
            "streams": [{"sources": [{"jetstream": f"{topic}-*", "start": "earliest", "types": TYPES}]}],
            "labels": ["late"], "features": flights.FEATURES, "task_rows": 4 * day.batch_size,
        },
        "training": {
            "batch_size": day.batch_size, "shard_batches": 1, "optimizer": {"kind": "adagrad", "lr": 0.1},
        },
        **({"scaling": scaling} if planner else {}),
        "roles": {
            "ps": {"replicas": 1, "cpu": 0.5, "memory": "1Gi", "env": one_thread()},
            "worker": worker | {"max": day.most} | ({"min": 1} if planner else {"replicas": day.adequate}),
        },
        "checkpoint": {"every_s": 60, "keep": 1}, "export": None,
    }  # fmt: skip


def compared(
    folder: Path, data: Path, day: Day, schemes: Mapping[str, str]
) -> tuple[dict[str, Ride], dict[str, Any]]:
    """(by scheme, what was seen; context). schemes: name to planner, empty for `adequate`."""
    past, coming = rates(day, data)
    path = folder / "day.parquet"
    count = samples(path, coming, day)
    peers_in_time.install(folder / "planners")
    env = {"PYTHONPATH": f"{folder / 'planners'}:{ROOT}"}
    settings = {
        "RECMESH_CORES": "32",      # workers are paced: what they ask for is not what they use
        "RECMESH_RATE_SEASON_S": str(day.day_s),
    }
    rides, told, load = {}, {}, {}
    with mesh(env=env, settings=settings) as running:
        for name, planner in schemes.items():
            rides[name], told[name] = _ridden(running, path, name, planner, day, by_step(past, day))
            load[name] = round(os.getloadavg()[1], 1)
    skew = np.bincount(_partitions(path), minlength=PARTITIONS)
    return rides, {
        "series": day.series, "samples_each": count,
        "samples_of_the_day": round(float(coming[-DAY_MINUTES:].sum() * 60 / day.compression)),
        "day_s": day.day_s, "compression": day.compression,
        "peak_per_s": round(float(coming.max())), "trough_per_s": round(float(coming.min())),
        "known_days": day.known, "slo_s": day.slo_s, "worker_per_s": day.worker_per_s, "most_workers": day.most,
        "adequate_workers": day.adequate, "partitions": PARTITIONS, "batch_size": day.batch_size,
        "fullest_partition_share": round(float(skew.max() / skew.sum()), 3),
        "emptiest_partition_share": round(float(skew.min() / skew.sum()), 3),
        "lead_in_s": LEAD_IN_S, "decided": told, "load_5min": load,
        "in_turn": "one job at a time, each on a topic of its own",
        "planners_times": f"a 1/{peers_in_time.FASTER:g} of those in the simulator, as a step is",
    }  # fmt: skip


def _partitions(path: Path) -> NDArray[np.int64]:
    """Of each sample."""
    keys = pq.read_table(path, columns=["origin"])["origin"].combine_chunks().dictionary_encode()
    found: NDArray[np.int64] = partitions_of(keys.dictionary, PARTITIONS)[keys.indices.to_numpy()]
    return found


def _ridden(
    running: Mesh, path: Path, name: str, planner: str, day: Day, past: F64
) -> tuple[Ride, list[str]]:
    """One job through the day, and what was decided for it."""
    topic = f"day-{name}"
    tides.make_topic(running, topic)
    job_id = running.client.submit(specification(topic, topic, planner, day)).job_id
    running.wait(job_id, lambda job: job.phase == "Running", patience_s=START_S)
    begin = (time.time() + GAP_S + LEAD_IN_S) // STEP_S * STEP_S + STEP_S
    # the lead-in is measured by the mesh itself
    tides.tell_past(running, past[: len(past) - round(LEAD_IN_S / STEP_S)], before=begin - LEAD_IN_S, topic=topic)
    time.sleep(max(0.0, begin - LEAD_IN_S - tides.REPLAY_S - time.time()))
    ride = Ride()
    with tides.replayed(running, path, speed=day.compression, lasts_s=day.day_s + LEAD_IN_S, topic=topic):
        time.sleep(max(0.0, begin - time.time()))
        before = running.client.job(job_id).progress.samples
        said = 0.0
        while (now := time.time() - begin) < day.day_s:
            look(ride, running, job_id, begin)
            if now - said > 30:
                said = now
                say(f"  {name}, {now / day.day_s * 24:.1f} h: {ride.workers[-1]} workers, lag {ride.lag_s[-1]:.1f} s")
            time.sleep(max(0.0, begin + now + 1.0 - time.time()))
    ride.trained = [each - before for each in ride.trained]
    events = running.client.events(job_id)
    ride.rolled_back = sum(event.type == "job.rolled_back" for event in events)
    told = [
        event.data["decided"] for event in events
        if event.type == "job.decided" and event.data["matter"] == "demand"
    ]  # fmt: skip
    running.client.stop(job_id)
    deadline = time.monotonic() + START_S
    while not running.client.job(job_id).over:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{name} has not stopped after {START_S:g} s")
        time.sleep(0.5)
    return ride, told


def look(ride: Ride, running: Mesh, job_id: str, begin: float) -> None:
    """One look; workers that start up are held, and count."""
    job = running.client.job(job_id)
    ride.at.append(time.time() - begin)
    ride.lag_s.append(job.progress.lag_s)
    ride.waiting.append(job.progress.lag_messages)
    ride.trained.append(job.progress.samples)
    ride.workers.append(sum(item.role == "worker" and item.state != "exited" for item in job.roles))
