"""Job time with one of 4 workers at 3 % of its CPU, over the time that the capacity left would take."""

import math
import time
from pathlib import Path
from typing import Any

from bench.figures import Result
from bench.mesh import Mesh, mesh, say, scratch
from bench.quotas import (
    CORES_SUM,
    MODEL,
    SLOW_SHARE,
    Fleet,
    PeersPace,
    rates,
    restart_elsewhere,
    slowed,
    started,
    unix,
    until_stopped,
    until_trained,
)
from bench.synthetic import criteo_like, write_parquet

FLEET = Fleet(workers=4, servers=1)
VICTIM = 3
ROWS, IDS = 65_536, 100_000
FULL_S, QUICK_S = 300.0, 90.0
"""Of the job that is slowed, from the slowing on, at the capacity that is left."""
WINDOW_S, COOLDOWN_S, WORTH_S = 15.0, 10.0, 30.0
"""The product's defaults; a quick run scales them like its job."""


def run(*, quick: bool) -> Result:
    """`excess_vs_ideal` (goal 1.10) and `detect_s` (goal 60), beside static shares and stop-and-restart."""
    scale = QUICK_S / FULL_S if quick else 1.0
    settings = {
        "RECMESH_STRAGGLER_WINDOW_S": f"{WINDOW_S * scale:g}",
        "RECMESH_STRAGGLER_COOLDOWN_S": f"{COOLDOWN_S * scale:g}",
        "RECMESH_BACKUP_WORTH_S": f"{WORTH_S * scale:g}",
    }
    with scratch() as folder:
        rows = folder / "rows.parquet"
        write_parquet(rows, criteo_like(ROWS, seed=1, ids=IDS))
        with mesh(settings=settings | {"RECMESH_BACKUP_WORKERS": "0"}) as running:
            control = _control(running, rows, window_s=FULL_S / 5 * scale)
            pace = control["samples_per_s"]
            epochs = math.ceil((FULL_S * scale * pace * _left() + 20 * pace) / ROWS)
            mitigated = _mitigated(running, "slowed", rows, epochs, pace)
        with mesh(settings=settings) as running:
            helped = _mitigated(running, "helped", rows, epochs, pace)
        with mesh(settings=settings | {"RECMESH_STRAGGLER_WINDOW_S": "0"}) as running:
            restarted = _restarted(running, rows, epochs, pace, detect_s=mitigated["detect_s"])
    # One share each: the slowed worker's is done at 3 % of its pace, whatever the others do meanwhile.
    static_s = mitigated["samples"] / FLEET.workers / (pace / FLEET.workers * SLOW_SHARE)
    figures = {
        "excess_vs_ideal": mitigated["job_s"] / mitigated["ideal_s"], "detect_s": mitigated["detect_s"],
        "excess_vs_peers_pace": mitigated["job_s"] / mitigated["ideal_at_peers_pace_s"],
        "job_s": mitigated["job_s"], "ideal_s": mitigated["ideal_s"],
        "excess_with_backup": helped["job_s"] / helped["ideal_s"],
        "excess_with_backup_vs_peers_pace": helped["job_s"] / helped["ideal_at_peers_pace_s"],
        "reduction_vs_none": 1 - helped["job_s"] / static_s,
        "reduction_vs_restart": 1 - helped["job_s_per_sample"] / restarted["job_s_per_sample"],
        "reduction_vs_restart_at_peers_pace": 1 - (helped["job_s"] / helped["ideal_at_peers_pace_s"])
        / (restarted["job_s"] / restarted["ideal_at_peers_pace_s"]),
        "control_samples_per_s": pace,
        "peers_vs_control": mitigated["peers_samples_per_s"] / control["peers_samples_per_s"],
    }
    return Result("straggler", figures, {
        "workers": FLEET.workers, "ps": FLEET.servers, "cores_each": FLEET.cpu, "cores_sum": CORES_SUM,
        "slow_share": SLOW_SHARE, "how": mitigated["how"], "model": dict(MODEL), "settings": settings,
        "rows": ROWS, "epochs": epochs, "control": control, "mitigated": mitigated, "helped": helped,
        "restarted": restarted,
        "ideal": "samples left at the slowing / (control rate x (n - 1 + share) / n)",
        "excess_vs_peers_pace": "the same, at the pace of the other workers in this very run instead of the control's",
        "none": f"static shares are computed, not run: {static_s:,.0f} s for the slowed worker's share at its quota",
        "restart": "checkpoint and kill -9 of all roles when the slow worker was detected; the new one is not slow",
        "backup": "excess_vs_ideal is without a backup worker, which has a quota of its own beyond the capacity that "
        "the ideal counts; the reductions are with it, as the product does by itself",
        "quick": f"{QUICK_S:g} s instead of {FULL_S:g} s, windows scaled alike" if quick else "",
    })


def _left() -> float:
    """Share of the workers' capacity that is left."""
    return (FLEET.workers - 1 + SLOW_SHARE) / FLEET.workers


def _control(running: Mesh, rows: Path, *, window_s: float) -> dict[str, Any]:
    """No fault: the pace of the job and of each worker."""
    job_id = started(running, FLEET, "control", rows, 500)
    whole, each = rates(running, job_id, window_s=window_s)
    detected = [event for event in running.client.events(job_id) if event.type == "job.straggler_detected"]
    running.client.stop(job_id)
    until_stopped(running, job_id)
    say(f"control: {whole:,.0f} samples/s, {each}")
    peers = sum(pace for index, pace in each.items() if index != VICTIM)
    return {
        "samples_per_s": whole, "by_worker": each, "peers_samples_per_s": peers, "window_s": window_s,
        "called_slow_without_a_fault": len(detected),
    }


def _mitigated(running: Mesh, name: str, rows: Path, epochs: int, pace: float) -> dict[str, Any]:
    """One worker slowed; the product does what it does."""
    job_id = started(running, FLEET, name, rows, epochs)
    before = running.client.job(job_id)
    left = before.progress.total - before.progress.samples
    with slowed(running, job_id, "worker", VICTIM) as victim:
        began = time.time()
        peers = _peers(running, job_id)
        pace_now = PeersPace(VICTIM)
        ended, after = until_trained(running, job_id, patience_s=4 * FULL_S, look=pace_now.look)
    events = running.client.events(job_id)
    decisions = [event for event in events if event.type == "job.straggler_detected"]
    first = next(event for event in decisions if event.data["index"] == VICTIM)
    ideal_s, took_s = left / (pace * _left()), ended - began
    return {
        "job_s": took_s, "ideal_s": ideal_s, "detect_s": unix(first.time) - began, "samples": left,
        "peer_samples_per_s": pace_now.per_s,
        "ideal_at_peers_pace_s": left / (pace_now.per_s * (FLEET.workers - 1 + SLOW_SHARE)),
        "job_s_per_sample": took_s / left, "how": victim.how, "slowed_processes": len(victim.seen),
        "peers_samples_per_s": peers, "restarts": sum(role.restarts for role in after.roles), "gen": after.gen,
        "decisions": [
            {"s": round(unix(event.time) - began, 1), **{k: event.data[k] for k in ("index", "answer", "share")}}
            for event in decisions
        ],
    }


def _peers(running: Mesh, job_id: str) -> float:
    """Pace of those that are not slowed, before anything is decided."""
    _, each = rates(running, job_id, window_s=4.0)
    return sum(pace for index, pace in each.items() if index != VICTIM)


def _restarted(running: Mesh, rows: Path, epochs: int, pace: float, *, detect_s: float) -> dict[str, Any]:
    """One worker slowed, and the job stopped and started again elsewhere once that is known."""
    job_id = started(running, FLEET, "restarted", rows, epochs)
    began, left = restart_elsewhere(running, job_id, "worker", VICTIM, workers=FLEET.workers, detect_s=detect_s)
    pace_now = PeersPace(VICTIM)
    ended, after = until_trained(running, job_id, patience_s=4 * FULL_S, look=pace_now.look)
    took_s = ended - began
    return {
        "job_s": took_s, "ideal_s": left / (pace * _left()), "job_s_per_sample": took_s / left, "gen": after.gen,
        "peer_samples_per_s": pace_now.per_s,
        "ideal_at_peers_pace_s": left / (pace_now.per_s * (FLEET.workers - 1 + SLOW_SHARE)),
    }
