"""Seconds from a gradient step to a changed prediction at the gateway's API, of an online job on a real mesh."""

import asyncio
import json
import random
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nats
import numpy as np

from bench.figures import Result
from bench.mesh import Mesh, mesh, one_thread, say, scratch
from bench.offered_load import Times
from bench.workloads.probes import PROBES
from recmesh.cli.mesh import state
from recmesh.cli.mesh.home import Home
from recmesh.client.views import Job
from recmesh.runtime.errors import MeshError

GOAL_S = 5.0
TOPIC, MODEL = "probed", "probed"
EVERY_S = 1.0
RATE, ITEMS = 200, 50_000
PROBE_S, QUICK_PROBE_S = 0.7, 0.5
PROBES_SENT, QUICK_PROBES_SENT = 300, 60
CHANGED = 1e-3
"""A prediction that differs by more was trained: a step moves the logit by far more; rows of one batch may differ in
their last bits."""
UNKNOWN = PROBES - 1
PATIENCE_S = 120.0
START_S = 300.0
ASK_S = 0.02


def run(*, quick: bool, halves: bool = False) -> Result:
    """`p50_s`, `p99_s`, `max_s`: from the call of a step's push (its ack comes later) until the gateway's answer to a
    request for that item differs from its answer for an item never trained. `sent` probes: `untrained` ones were never
    pushed; `missed` ones were, and never seen changed: they count as infinite (-1 where a percentile is one of them);
    `early` ones were seen changed before they were pushed, which must not be.
    `last_commit_to_install_s`: from the last version's commit until it served, as the model server tells. With `halves`
    a CN has the rows, and an HN the program."""
    count, probe_s = (QUICK_PROBES_SENT, QUICK_PROBE_S) if quick else (PROBES_SENT, PROBE_S)
    with scratch() as folder, mesh() as running:
        notes = folder / "notes"
        notes.touch()
        asyncio.run(_make(running))
        job_id = running.client.submit(_specification(notes, halves=halves)).job_id
        with _traffic(running) as traffic:
            running.wait(job_id, lambda job: job.progress.samples > 0, patience_s=START_S)
            _wait_until_served(running, job_id)
            say("the model serves while it trains")
            seen = _probed(running, traffic, count, probe_s)
            fresh = running.client.freshness(MODEL)
            job: Job = running.client.job(job_id)
        pushed = _read(notes)
    took = delays(pushed, seen)
    if not np.isfinite(took).any():
        raise RuntimeError(f"none of {len(pushed)} trained probes was seen to change: {fresh}")
    figures = {
        "p50_s": percentile(took, 50), "p99_s": percentile(took, 99), "max_s": percentile(took, 100),
        "min_s": float(took.min()), "sent": float(count), "untrained": float(count - len(took)),
        "missed": float(np.isinf(took).sum()), "early": float((took < 0).sum()),
        "versions": float(fresh["deltas"] + fresh["wholes"]), "wholes": float(fresh["wholes"]),
        "last_install_s": fresh["install_s"], "last_commit_to_install_s": fresh["commit_to_install_s"],
    }
    return Result("freshness", figures, {
        "goal": f"p99_s <= {GOAL_S:g}", "every_s": EVERY_S, "events_per_s": RATE, "items": ITEMS,
        "served": "in halves" if halves else "whole", "hns": len(fresh.get("hns", {})),
        "samples": job.progress.samples, "asked_every_s": ASK_S, "tiers": fresh["tables"],
        "left_out": f"{QUICK_PROBES_SENT} probes instead of {PROBES_SENT}" if quick else "",
    })


def delays(pushed: Mapping[int, float], seen: Mapping[int, float]) -> Times:
    """Seconds of each probe that was trained; infinite where it was never seen changed."""
    return np.array([seen.get(item, np.inf) - at for item, at in pushed.items()], np.float64)


def percentile(took: Times, percent: float) -> float:
    """-1 where it is infinite."""
    at = float(np.percentile(took, percent, method="higher"))
    return at if np.isfinite(at) else -1.0


def _specification(notes: Path, *, halves: bool) -> dict[str, Any]:
    worker = {"cpu": 1, "memory": "2Gi", "replicas": 1, "env": one_thread()}
    return {
        "name": MODEL,
        "model": {"entrypoint": "bench.workloads.probes:main", "params": {"notes": str(notes), "dim": 16}},
        "data": {
            "streams": [{"sources": [{
                "jetstream": f"{TOPIC}-*", "start": "earliest", "types": {"item": "int", "x": "float", "label": "int"},
            }]}],
            "label": "label", "features": [{"name": "item"}, {"name": "x", "kind": "dense"}], "task_rows": 64,
        },
        "training": {"batch_size": 32, "shard_batches": 2, "optimizer": {"kind": "adagrad", "lr": 0.5}},
        "roles": {"ps": {"replicas": 1, "cpu": 1, "memory": "1Gi", "env": one_thread()}, "worker": worker},
        "freshness": {"every_s": EVERY_S},
        "export": {"serving": {"freshness": {"halves": halves}}},
    }


class Traffic:
    """Events at a steady rate, and probes among them."""

    def __init__(self) -> None:
        self._waiting: list[int] = []
        self._lock = threading.Lock()
        self.over = threading.Event()

    def probe(self, item: int) -> None:
        """Send an event of this item next."""
        with self._lock:
            self._waiting.append(item)

    def take(self) -> list[int]:
        """Probes to be sent now."""
        with self._lock:
            taken, self._waiting = self._waiting, []
        return taken


@contextmanager
def _traffic(running: Mesh) -> Iterator[Traffic]:
    made = Traffic()
    thread = threading.Thread(target=lambda: asyncio.run(_send(running, made)), daemon=True)
    thread.start()
    try:
        yield made
    finally:
        made.over.set()
        thread.join(10)


async def _connected(running: Mesh) -> Any:
    home = Home(running.home)
    port = state.load(home.mesh_file).ports["nats"]
    return await nats.connect(f"nats://127.0.0.1:{port}", token=home.secrets()["nats"])


async def _make(running: Mesh) -> None:
    connection = await _connected(running)
    await connection.jetstream().add_stream(name=f"{TOPIC}-0", subjects=[f"{TOPIC}.0"], allow_direct=True)
    await connection.close()


async def _send(running: Mesh, traffic: Traffic) -> None:
    connection = await _connected(running)
    stream, draw, due = connection.jetstream(), random.Random(1), time.monotonic()
    while not traffic.over.is_set():
        items = [*traffic.take(), draw.randrange(ITEMS)]
        waiting = [
            await stream.publish_async(f"{TOPIC}.0", json.dumps({
                "item": item, "x": draw.random(), "label": 1 if item >= PROBES else int(draw.random() < 0.5),
            }).encode())
            for item in items
        ]
        await asyncio.gather(*waiting)
        due += 1 / RATE
        await asyncio.sleep(max(0.0, due - time.monotonic()))
    await connection.close()


def _wait_until_served(running: Mesh, job_id: str) -> None:
    ends, why = time.monotonic() + START_S, "it has no version"
    while True:
        try:
            if running.client.freshness(MODEL)["fresh_version"]:
                return
        except MeshError as error:
            why = str(error)
        running.wait(job_id, lambda job: True, patience_s=10)      # says so when the job has failed
        if time.monotonic() > ends:
            raise RuntimeError(f"the model is not served: {why}")
        time.sleep(0.5)


def _probed(running: Mesh, traffic: Traffic, count: int, probe_s: float) -> dict[int, float]:
    """By probe: when a prediction of it was first different."""
    seen: dict[int, float] = {}
    waiting: set[int] = set()
    sent, due, ends = 0, time.monotonic(), None
    while sent < count or waiting:
        now = time.monotonic()
        if sent < count and now >= due:
            item = PROBES + sent
            traffic.probe(item)
            waiting.add(item)
            sent, due = sent + 1, due + probe_s
            if sent % 50 == 0:
                say(f"  {sent} probes sent, {len(waiting)} wait")
        if sent == count:
            ends = ends or now + PATIENCE_S
            if now > ends:
                return seen
        if waiting:
            asked = sorted(waiting)
            answer = running.client.infer(MODEL, _request([UNKNOWN, *asked]))
            at = time.time()
            base, *made = answer["outputs"][0]["data"]
            for item, value in zip(asked, made, strict=True):
                if abs(value - base) > CHANGED:
                    seen[item] = at
                    waiting.discard(item)
        time.sleep(ASK_S)
    return seen


def _request(items: list[int]) -> Mapping[str, Any]:
    return {"inputs": [
        {"name": "item", "datatype": "INT64", "shape": [len(items)], "data": items},
        {"name": "x", "datatype": "FP32", "shape": [len(items)], "data": [0.5] * len(items)},
    ]}


def _read(notes: Path) -> dict[int, float]:
    """When each probe was first pushed."""
    found: dict[int, float] = {}
    for line in notes.read_text().splitlines():
        item, at = line.split()
        found.setdefault(int(item), float(at))
    return found
