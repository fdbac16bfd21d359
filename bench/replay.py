"""Rows per second of `recmesh replay` at full speed, beside nats-py's own asynchronous publishing; and `recmesh join`.

Criteo-like rows (13 numbers, 26 ids) from Parquet to one partition, as JSON of about a kilobyte, each with its id; the
server is the same, once as it is by default and once as a mesh has it, which syncs each message before it answers (but
for a topic made with --unsynced). nats-py gets the
messages made ahead, in memory, so what it is measured by is publishing alone; the replay reads, and makes, its own.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from bench.figures import Result
from bench.mesh import ROOT, one_thread, say, scratch
from bench.workloads.nats import nats_server

ROWS, QUICK_ROWS = 200_000, 40_000
DELAY_S, WINDOW_S = 60.0, 300.0


def run(*, quick: bool) -> Result:
    """`rows_per_s_*` by the clock; `join_messages_per_s` of samples and labels, the start of the process included."""
    rows = QUICK_ROWS if quick else ROWS
    figures: dict[str, float] = {}
    labels = 0
    with scratch() as folder, tempfile.TemporaryDirectory(prefix="recmesh-bench-") as disk:
        shown, clicks = folder / "shown.parquet", folder / "clicks.parquet"
        _recmesh("generate", "--out", str(shown), "--rows", str(rows), "--days", "0.05", "--labels", str(clicks),
                 "--delay", f"{DELAY_S:.0f}s")
        for name, synced in (("", False), ("_synced", True)):
            with nats_server(Path(disk) / f"nats{name}", synced=synced) as url:
                say(f"  {'synced' if synced else 'default'} server")
                count = rows // 20 if synced else rows
                done = _replayed(shown, f"{url}/shown", count)
                figures[f"rows_per_s_replay{name}"] = done["sent"] / done["seconds"]
                other = _nats_py(shown, url, count)
                figures[f"rows_per_s_nats_py{name}"] = other["rows"] / other["seconds"]
                figures[f"ratio_vs_nats_py{name}"] = (
                    figures[f"rows_per_s_replay{name}"] / figures[f"rows_per_s_nats_py{name}"]
                )
                if synced:
                    done = _replayed(shown, f"{url}/unsynced", rows, "--unsynced")
                    figures["rows_per_s_replay_synced_server_unsynced_topic"] = done["sent"] / done["seconds"]
                    continue
                figures["bytes_per_row"] = done["size_bytes"] / done["sent"]
                labels = int(_replayed(clicks, f"{url}/clicks", rows)["sent"])
                began = time.monotonic()
                counts = _joined(folder, url)
                figures["join_messages_per_s"] = (rows + labels) / (time.monotonic() - began)
                figures["join_samples_lost_or_doubled"] = abs(rows - counts["labelled"] - counts["defaulted"])
    return Result("replay", figures, {
        "rows": rows, "labels": labels, "partitions": 1,
        "synced": "a twentieth of the rows",
        "join": f"from a cold start, window {WINDOW_S:g} s, to a topic",
        "quick": f"{QUICK_ROWS:,} rows instead of {ROWS:,}" if quick else "",
    })


def _recmesh(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "recmesh.cli.main", *arguments], cwd=ROOT, env={**os.environ, **one_thread()},
        capture_output=True, text=True, check=False, timeout=900,
    )
    if done.returncode:
        raise RuntimeError(f"recmesh {arguments[0]} failed:\n{done.stderr[-4000:]}")
    return done.stdout


def _replayed(file: Path, to: str, rows: int, *options: str) -> dict[str, float]:
    found: dict[str, float] = json.loads(_recmesh(
        "replay", str(file), "--to", to, "--time", "time", "--speed", "max", "--limit", str(rows), "--json", *options
    ))
    return found


def _joined(folder: Path, url: str) -> dict[str, int]:
    spec: dict[str, Any] = {
        "name": "bench", "server": url, "window": WINDOW_S, "samples": {"topic": "shown", "key": "id"},
        "labels": {"topic": "clicks", "key": "id"}, "topic": {"topic": "joined"},
    }
    path = folder / "join.yaml"
    path.write_text(yaml.safe_dump(spec))
    found: dict[str, int] = json.loads(_recmesh("join", str(path), "--to-end", "--json"))
    return found


def _nats_py(file: Path, url: str, rows: int) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-m", "bench.workloads.publishing", str(file), url, str(rows)], cwd=ROOT, check=False,
        env={**os.environ, **one_thread()}, capture_output=True, text=True, timeout=900,
    )
    if done.returncode:
        raise RuntimeError(f"nats-py failed:\n{done.stderr[-4000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found
