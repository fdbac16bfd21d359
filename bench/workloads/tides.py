"""Online jobs on the real mesh through one compressed day of real flights: how far behind they are, and what they cost.

Flights of several days are flown as one, so that the peak is what is asked; `recmesh replay` sends them, and a day
takes `day_s` seconds. All jobs read the same topic at the same time: they see the same traffic and the same machine.
What the forecaster knows are the days before, told as rates of the topic's own series, and that they repeat after
`day_s`. A worker is paced to `worker_per_s`, so that the machine's cores are not the limit; what a worker takes to
start is not compressed. It is used by `bench online_auc`, and by others that compare schemes.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from bench.mesh import ROOT, Mesh, mesh, one_thread, say
from bench.workloads import flights, peers_in_time
from bench.workloads.pacing import Paced
from recmesh.cli.mesh import state
from recmesh.cli.mesh.home import Home
from recmesh.partitions import Limits, ensure
from recmesh.pb import forecaster_pb2 as pb
from recmesh.pb import forecaster_pb2_grpc as rpc
from recmesh.runtime.bus import Link
from recmesh.runtime.rpc import sync_channel
from recmesh.trainer.session import Job

TOPIC = "tides"
PARTITIONS = 8
REAL_DAY_S = 86_400.0
STEP_S = 10.0
"""Of rates, and of schedules."""
STILL_S = 5.0
"""Progress is told every second or two: what is shorter is no standstill."""
START_S = 600.0
AHEAD_S, REPLAY_S = 5.0, 3.0
"""Before the day begins; of it, for the replay's own start, so that what is forecast and what comes are in step."""
F64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Tide:
    """One compressed day."""

    day_s: float
    """How long it takes; a multiple of 10."""
    flown: int
    """Days of flights in one."""
    first: int
    """Of them, in 2001; the days before are what the forecaster knows."""
    known: int
    """Compressed days that the forecaster knows."""
    worker_per_s: float
    most: int = 4
    """Workers."""
    batch_size: int = 128

    @property
    def compression(self) -> float:
        """Real seconds to one of the compressed day."""
        return REAL_DAY_S / self.day_s

    @property
    def slo_s(self) -> float:
        """Twenty minutes of a real day."""
        return 1200.0 / self.compression


@dataclass(slots=True)
class Ride:
    """What was seen of one job, once a second; `at` counts from the day's begin."""

    at: list[float] = field(default_factory=list)
    lag_s: list[float] = field(default_factory=list)
    """The largest of all partitions, as the mesh tells it (measured every 5 s)."""
    waiting: list[int] = field(default_factory=list)
    trained: list[int] = field(default_factory=list)
    workers: list[int] = field(default_factory=list)
    rolled_back: int = 0

    def columns(self, slo_s: float) -> dict[str, float]:
        """`lag_violation_share`, `accumulated_lag_s2`, `max_lag_s`, `worker_s`, `standstill_s`, `trained`."""
        widths, lag = np.diff(self.at, append=self.at[-1]), np.array(self.lag_s)
        return {
            "lag_violation_share": float(widths[lag > slo_s].sum() / widths.sum()),
            "accumulated_lag_s2": float((lag * widths).sum()),
            "max_lag_s": float(lag.max()),
            "worker_s": float((np.array(self.workers) * widths).sum()),
            "standstill_s": self._still_s(),
            "rollbacks": float(self.rolled_back),
            "trained": float(self.trained[-1]),
        }

    def _still_s(self) -> float:
        """In stretches of at least STILL_S in which nothing was trained though something waited."""
        total = since = 0.0
        for place in range(1, len(self.at)):
            took = self.at[place] - self.at[place - 1]
            stands = self.trained[place] == self.trained[place - 1] and self.waiting[place - 1] > 0
            if stands:
                since += took
            if (not stands or place == len(self.at) - 1) and since:
                total += since if since >= STILL_S else 0.0
                since = 0.0
        return total

    def lag_by_minute(self, tide: Tide) -> list[float]:
        """Minutes of a real day that the model is behind, for each of its minutes."""
        moments = (np.arange(1440) + 0.5) / 1440 * tide.day_s
        found = np.interp(moments, self.at, self.lag_s) * tide.compression / 60
        return [round(float(value), 2) for value in found]


# -- traffic --------------------------------------------------------------------------------------------


def day_of_flights(path: Path, tide: Tide) -> int:
    """Writes them in order of the time of day, as of one date; how many there are."""
    table = flights.read(first=tide.first, days=tide.flown)
    minute = table["minute"].to_numpy() % 1440
    order = np.argsort(minute, kind="stable")
    begin = np.datetime64(flights.BEGIN.replace(tzinfo=None), "s") + np.timedelta64(tide.first, "D")
    date = pa.array(begin + minute[order] * np.timedelta64(60, "s"))
    table = table.drop_columns(flights.AT).take(pa.array(order)).append_column("date", date)
    pq.write_table(table, path)
    return int(table.num_rows)


def past_rates(tide: Tide) -> F64:
    """Per second, by steps of STEP_S, of the days that came before: (known * day_s / STEP_S,)."""
    steps = round(tide.day_s / STEP_S)
    made = []
    for day in range(tide.known, 0, -1):
        table = flights.read(first=tide.first - day * tide.flown, days=tide.flown)
        minute = table["minute"].to_numpy() % 1440
        made.append(np.bincount(minute * steps // 1440, minlength=steps) / STEP_S)
    return np.concatenate(made)


def tell_past(running: Mesh, rates: F64, *, before: float, topic: str = TOPIC) -> None:
    """forecaster's Observe: rates of steps that end at this moment."""
    begin = before - len(rates) * STEP_S
    points = [pb.Point(at=begin + place * STEP_S, value=rate) for place, rate in enumerate(rates)]
    with closing(sync_channel(running.address("forecaster"), token=running.token)) as line:
        request = pb.ObserveRequest(series=f"topic/{topic}", step_s=STEP_S, points=points)
        rpc.ForecasterStub(line).Observe(request, timeout=30)


def make_topic(running: Mesh, topic: str = TOPIC) -> None:
    """Empty."""
    home = Home(running.home)
    port = state.load(home.mesh_file).ports["nats"]

    async def make() -> None:
        link = Link(f"nats://127.0.0.1:{port}", name="bench", token=home.secrets()["nats"])
        await link.open(30)
        try:
            await ensure(link, topic, PARTITIONS, limits=Limits(unsynced=True), field="")
        finally:
            await link.close()

    asyncio.run(make())


@contextmanager
def replayed(running: Mesh, path: Path, *, speed: float, lasts_s: float, topic: str = TOPIC) -> Iterator[None]:
    """`recmesh replay` of a file by its `date`, partitioned by airport; has ended on exit. RuntimeError: it failed."""
    process = subprocess.Popen(
        [
            sys.executable, "-m", "recmesh.cli.main", "replay", str(path), "--to", topic, "--time", "date",
            "--speed", str(speed), "--partitions", str(PARTITIONS), "--key", "origin", "--unsynced",
            "--home", str(running.home),
        ],
        cwd=ROOT, env={**os.environ, **one_thread()}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )
    try:
        yield
        _, said = process.communicate(timeout=60 + lasts_s)
        if process.returncode:
            raise RuntimeError(f"recmesh replay failed:\n{said[-4000:]}")
    finally:
        process.kill()
        process.wait()


# -- jobs -----------------------------------------------------------------------------------------------


def main(job: Job) -> None:
    """A worker's: MMoE of the zoo, paced to params.per_s."""
    from recmesh.zoo.torch.mmoe import main as train  # torch takes seconds, which others need not

    per_s = job.params.pop("per_s")
    job.session = Paced(job.session, per_s)
    train(job)


def specification(name: str, planner: str, tide: Tide, params: Mapping[str, Any], *, lr: float) -> dict[str, Any]:
    """A job on the topic; an empty planner is one worker, for ever."""
    types = {"origin": "string", "destination": "string", "route": "string", "late": "int", "very_late": "int",
             "hour": "int", "weekday": "int", "distance": "float"}
    worker = {"cpu": 0.5, "memory": "2Gi", "env": one_thread()}
    slo_s = round(tide.slo_s, 3)
    scaling = {
        "planner": planner, "step_s": STEP_S, "horizon_s": 12 * STEP_S, "hold_s": 2 * STEP_S,
        "lag_slo_s": slo_s, "drain_s": slo_s,
    }
    return {
        "name": name,
        "model": {
            "entrypoint": "bench.workloads.tides:main", "params": {**params, "per_s": tide.worker_per_s},
        },
        "data": {
            "streams": [{"sources": [{"jetstream": f"{TOPIC}-*", "start": "earliest", "types": types}]}],
            "labels": ["late", "very_late"], "features": flights.FEATURES, "task_rows": 4 * tide.batch_size,
        },
        "training": {
            "batch_size": tide.batch_size, "shard_batches": 1, "optimizer": {"kind": "adagrad", "lr": lr},
        },
        **({"scaling": scaling} if planner else {}),
        "roles": {
            "ps": {"replicas": 1, "cpu": 0.5, "memory": "1Gi", "env": one_thread()},
            "worker": worker | ({"min": 1, "max": tide.most} if planner else {"replicas": 1}),
        },
        "checkpoint": {"every_s": 30, "keep": 1}, "export": None,
    }


def ridden(
    folder: Path, tide: Tide, schemes: Mapping[str, str], params: Mapping[str, Any], *, lr: float
) -> tuple[dict[str, Ride], dict[str, Any]]:
    """(by scheme, what was seen; context). schemes: name to planner, empty for one worker."""
    path = folder / "tide.parquet"
    count, past = day_of_flights(path, tide), past_rates(tide)
    settings = {
        "RECMESH_CORES": "32",      # workers are paced: what they ask for is not what they use
        "RECMESH_RATE_SEASON_S": str(tide.day_s),
    }
    peers_in_time.install(folder / "planners")
    env = {"PYTHONPATH": f"{folder / 'planners'}:{ROOT}"}
    with mesh(settings=settings, env=env) as running:
        make_topic(running)
        jobs = {}
        for name, planner in schemes.items():
            spec = specification(f"tide-{name.replace('_', '-')}", planner, tide, params, lr=lr)
            jobs[name] = running.client.submit(spec).job_id
        for job_id in jobs.values():
            running.wait(job_id, lambda job: job.phase == "Running", patience_s=START_S)
        begin = (time.time() + AHEAD_S) // STEP_S * STEP_S + STEP_S
        tell_past(running, past, before=begin)
        time.sleep(max(0.0, begin - REPLAY_S - time.time()))
        with replayed(running, path, speed=tide.compression, lasts_s=tide.day_s):
            time.sleep(max(0.0, begin - time.time()))
            rides = _watched(running, jobs, tide, begin)
        for name, job_id in jobs.items():
            events = running.client.events(job_id)
            rides[name].rolled_back = sum(event.type == "job.rolled_back" for event in events)
            told = [event.data["decided"] for event in events
                    if event.type == "job.decided" and event.data["matter"] == "demand"]
            say(f"  {name}: {'; '.join(told)}")
            running.client.stop(job_id)
    return rides, {
        "flights": count, "day_s": tide.day_s, "compression": tide.compression, "days_flown_as_one": tide.flown,
        "peak_per_s": round(count_peak(path, tide)), "slo_s": tide.slo_s, "worker_per_s": tide.worker_per_s,
        "most_workers": tide.most, "known_days": tide.known, "partitions": PARTITIONS, "batch_size": tide.batch_size,
        "side_by_side": "all schemes read the same topic at the same time",
    }


def count_peak(path: Path, tide: Tide) -> float:
    """Flights per second of the fullest step."""
    date = pq.read_table(path, columns=["date"])["date"].to_numpy().astype("datetime64[m]")
    minute = (date - date.astype("datetime64[D]")).astype(np.int64)
    steps = round(tide.day_s / STEP_S)
    return float(np.bincount(minute * steps // 1440).max() / STEP_S)


def _watched(running: Mesh, jobs: Mapping[str, str], tide: Tide, begin: float) -> dict[str, Ride]:
    rides = {name: Ride() for name in jobs}
    told = 0.0
    while (now := time.time() - begin) < tide.day_s:
        for name, job_id in jobs.items():
            _look(rides[name], running, job_id, begin)
        if now - told > 30:
            told = now
            say("  " + f"{now / tide.day_s * 24:.1f} h: " + _line(rides))
        time.sleep(max(0.0, begin + now + 1.0 - time.time()))
    return rides


def _look(ride: Ride, running: Mesh, job_id: str, begin: float) -> None:
    job = running.client.job(job_id)
    ride.at.append(time.time() - begin)
    ride.lag_s.append(job.progress.lag_s)
    ride.waiting.append(job.progress.lag_messages)
    ride.trained.append(job.progress.samples)
    ride.workers.append(sum((item.role, item.state) == ("worker", "running") for item in job.roles))


def _line(rides: Mapping[str, Ride]) -> str:
    return ", ".join(f"{name} {ride.workers[-1]} workers, lag {ride.lag_s[-1]:.0f} s" for name, ride in rides.items())


def as_lines(rides: Mapping[str, Ride], *, every: int = 10) -> dict[str, list[Sequence[float]]]:
    """For a report: (seconds, lag in s, trained, workers) of every so manieth look."""
    return {
        name: [
            (round(at, 1), round(lag, 2), trained, workers) for at, lag, trained, workers
            in list(zip(ride.at, ride.lag_s, ride.trained, ride.workers, strict=True))[::every]
        ]
        for name, ride in rides.items()
    }


if __name__ == "__main__":
    print(json.dumps(past_rates(Tide(300.0, 6, 70, 3, 200.0)).round(1).tolist()))
