"""The inference API under other people's clients: tritonclient and KServe's, over HTTP and gRPC, in every encoding.

Each client runs in a process and an environment of its own (`RECMESH_BENCH_TRITON_PYTHON`, with `tritonclient[all]`;
`RECMESH_BENCH_KSERVE_PYTHON`, with `kserve`). Beside it stands KServe's own Python server under the same clients.
"""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.figures import Result
from bench.gateway import ROOT, end, gateway
from bench.mesh import say, scratch
from bench.peers.asking import free_port

TRITON_PYTHON, KSERVE_PYTHON = "RECMESH_BENCH_TRITON_PYTHON", "RECMESH_BENCH_KSERVE_PYTHON"
CLIENTS = {"tritonclient": (TRITON_PYTHON, "oip_tritonclient"), "kserve": (KSERVE_PYTHON, "oip_kserve")}
CELLS = {"tritonclient": 70, "kserve": 55}
"""Of a client that is not there, for `skipped`: about as many as it has."""
RUN_S = 1800.0
MODELS = {"adder": "torch", "half": "torch", "echo": "tensorflow", "slow": "tensorflow"}


def run(*, quick: bool = False) -> Result:
    """All cells; `quick` leaves out KServe's server."""
    pythons = {name: os.environ.get(variable, "") for name, (variable, _) in CLIENTS.items()}
    missing = {name: f"{CLIENTS[name][0]} is not set" for name, python in pythons.items() if not python}
    cells: dict[str, str] = {}
    beside: dict[str, str] = {}
    with scratch() as folder:
        runs = folder / "runs"
        make_models(folder / "storage" / "models", runs)
        with gateway(folder) as ours:
            for name, framework in MODELS.items():
                ours.serve(name, framework)
            for name, python in pythons.items():
                if python:
                    cells |= _ask(name, python, ours.http, ours.rpc, runs)
        if pythons["kserve"] and not quick:
            for name, python in pythons.items():
                with _kserve_server(pythons["kserve"], runs) as (http, rpc):
                    beside |= _ask(name, python, http, rpc, runs) if python else {}
    failed = {name: why for name, why in cells.items() if why}
    theirs = {name: why for name, why in beside.items() if why}
    figures = {
        "passed": float(len(cells) - len(failed)), "failed": float(len(failed)),
        "skipped": float(sum(CELLS[name] for name in missing)),
    }  # fmt: skip
    if beside:
        figures["kserve_server_passed"] = float(len(beside) - len(theirs))
        figures["kserve_server_failed"] = float(len(theirs))
    context: dict[str, Any] = {
        "failures": failed, "kserve_server_failures": theirs, "skipped_why": missing,
        "cells": sorted(cells), "left_out": ["KServe's server"] if quick else [],
    }  # fmt: skip
    return Result("conformance", figures, context)


def make_models(root: Path, runs: Path) -> None:
    """Exported models, by the frameworks alone, in a process that ends: neither is imported here."""
    subprocess.run(
        [sys.executable, "-m", "bench.workloads.oip_models", str(root), str(runs)], cwd=ROOT, check=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=RUN_S,
    )  # fmt: skip


def _ask(name: str, python: str, http: str, rpc: str, runs: Path) -> dict[str, str]:
    say(f"{name} asks {http}")
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [python, "-m", f"bench.peers.{CLIENTS[name][1]}", http, rpc, str(runs)], cwd=runs.parent, env=env,
        capture_output=True, timeout=RUN_S, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{name} failed: {done.stderr.decode()[-4000:]}")
    found: dict[str, str] = json.loads(done.stdout.decode().splitlines()[-1])
    return found


@contextlib.contextmanager
def _kserve_server(python: str, runs: Path) -> Iterator[tuple[str, str]]:
    http, rpc = free_port(), free_port()
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    with (runs.parent / "kserve.log").open("wb") as log:
        process = subprocess.Popen(
            [python, "-m", "bench.peers.oip_kserve_server", str(http), str(rpc), str(runs)], cwd=runs.parent, env=env,
            stdout=log, stderr=log,
        )  # fmt: skip
        try:
            yield f"127.0.0.1:{http}", f"127.0.0.1:{rpc}"
        finally:
            end(process)
