"""Samples per CPU second of Wide & Deep and DCN-v2, beside two peers in the same run.

They are TensorFlow's ParameterServerStrategy, and one process of torch with fbgemm's embedding tables, which sends
nothing to anybody.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from bench.figures import Result
from bench.mesh import ROOT, Mesh, cpu_seconds, criteo_data, mesh, one_thread, say, scratch
from bench.peers.memory import PEER_MEMORY
from bench.store import PEER_PYTHON
from bench.synthetic import Criteo, criteo_like, write_parquet, write_records
from recmesh.client.views import Job
from recmesh.pb import ps_pb2
from recmesh.pb.ps_pb2_grpc import ParameterServerStub
from recmesh.runtime.rpc import sync_channel

BATCH, DIM, LR = 4096, 16, 0.02
TEST_ROWS = 65_536
QUICK_STEPS, QUICK_TEST_ROWS = 60, 16_384
FROM, TO = 0.25, 0.95
PASSES = ("growing", "steady")
"""Over the same rows. In the first, a third of a batch's ids is new, and memory is made for their rows; the second, a
job that starts from the first one's snapshot, knows them all, as the peers always do: they make their whole tables
before they start. Their AUCs are compared after the first pass: the second fits the rows by heart."""
PATIENCE_S = 900.0
CORES = float(os.cpu_count() or 1)
"""No quota below the machine's: the peers' processes have none."""
POLL_S = 0.1
"""Asking costs the parameter server a call, which counts as ours."""
AUC_WITHIN = 0.002
STEPS = {"wide_deep": 180, "dcn_v2": 90, "torch_dcn_v2": 90}
TURNS = {"wide_deep": 2, "dcn_v2": 1, "torch_dcn_v2": 1}
"""The gated ratio is Wide & Deep's; a step of DCN-v2 takes three times as long."""
PEERS = ("tf_pss", "single_process")
MODELS: dict[str, dict[str, Any]] = {
    "wide_deep": {"hidden": [256, 128, 64]},
    "dcn_v2": {"hidden": [256, 128], "cross_layers": 3},
    "torch_dcn_v2": {"hidden": [256, 128], "cross_layers": 3},
}


@dataclass(frozen=True, slots=True)
class Files:
    """The same rows for both sides: Parquet for us, whole batches as raw records for the peers."""

    train: Path
    test: Path
    records: Path
    test_records: Path
    steps: int
    test_rows: int


def run(*, quick: bool) -> Result:
    """`samples_per_cpu_s` over all processes in a window of each pass; the sides take turns, medians are compared."""
    test_rows = QUICK_TEST_ROWS if quick else TEST_ROWS
    models = ["wide_deep"] if quick else list(MODELS)
    ours: dict[str, list[dict[str, Any]]] = {name: [] for name in models}
    theirs: dict[str, dict[str, list[dict[str, Any]]]] = {
        peer: {name: [] for name in models if not name.startswith("torch_")} for peer in PEERS
    }
    with scratch() as folder:
        steps = {name: QUICK_STEPS if quick else STEPS[name] for name in models}
        made = {count: _files(folder / str(count), count, test_rows) for count in set(steps.values())}
        with mesh() as running:
            turns = [(turn, name) for name in models for turn in range(1 if quick else TURNS[name])]
            for turn, name in turns:
                files = made[steps[name]]
                ours[name].append(_ours(running, name, files, turn))
                for peer, runs in theirs.items():
                    if name in runs:
                        runs[name].append(_peer(peer, name, files))
    return Result("train", _figures(ours, theirs), {
        "batch": BATCH, "dim": DIM, "tables": 26, "ids_per_table": 1_000_000, "zipf": 1.05, "lr_adagrad": LR,
        "ps": 1, "workers": 1, "threads_per_process": 1, "steps_per_pass": steps, "window": [FROM, TO],
        "test_rows": test_rows,
        "models": {name: MODELS[name] for name in models}, "recmesh": ours, **theirs,
        "quick": f"Wide & Deep only, one turn of {QUICK_STEPS} steps per pass" if quick else "",
    })


def _figures(
    ours: dict[str, list[dict[str, Any]]], theirs: dict[str, dict[str, list[dict[str, Any]]]]
) -> dict[str, float]:
    suffix = {"wide_deep": "", "dcn_v2": "_dcn", "torch_dcn_v2": "_torch_dcn"}
    figures: dict[str, float] = {}
    for name, runs in ours.items():
        for number, kind in enumerate(PASSES):
            of = suffix[name] + ("" if kind == "steady" else f"_{kind}")
            mine = figures[f"samples_per_cpu_s{of}"] = _median(runs, number, "samples_per_cpu_s")
            figures[f"samples_per_s{of}"] = _median(runs, number, "samples_per_s")
            for peer, of_models in theirs.items():
                beside = _median(_beside(of_models, name), number, "samples_per_cpu_s")
                figures |= {f"{peer}_samples_per_cpu_s{of}": beside, f"ratio_vs_{peer}{of}": mine / beside}
        mine = figures[f"auc{suffix[name]}"] = _median(runs, 0, "auc")
        for peer, of_models in theirs.items():
            beside = figures[f"{peer}_auc{suffix[name]}"] = _median(_beside(of_models, name), 0, "auc")
            if abs(mine - beside) > AUC_WITHIN:
                say(f"{name}, {peer}: the AUCs differ by more than {AUC_WITHIN}: the ratio compares different training")
    return figures


def _beside(of_models: dict[str, list[dict[str, Any]]], name: str) -> list[dict[str, Any]]:
    """A peer's runs of the same model, in whichever framework it has it."""
    return of_models.get(name) or of_models["dcn_v2"]


def _median(runs: list[dict[str, Any]], number: int, name: str) -> float:
    """Of a pass."""
    return float(statistics.median(each["passes"][number][name] for each in runs))


def _files(folder: Path, steps: int, test_rows: int) -> Files:
    made = Files(folder / "train.parquet", folder / "test.parquet", folder / "train.bin", folder / "test.bin",
                 steps, test_rows)
    folder.mkdir()
    say(f"{steps * BATCH:,} rows of training data")
    both = criteo_like(steps * BATCH + test_rows, seed=1)
    cut = steps * BATCH
    for lo, hi, parquet, records in ((0, cut, made.train, made.records), (cut, None, made.test, made.test_records)):
        part = Criteo(both.ids[lo:hi], both.dense[lo:hi], both.label[lo:hi])
        write_parquet(parquet, part)
        write_records(records, part, batch=BATCH)
    return made


# ---- recmesh


def _ours(running: Mesh, model: str, files: Files, turn: int) -> dict[str, Any]:
    spec = {
        "name": f"{model.replace('_', '-')}-{turn}",
        "model": {"zoo": model, "params": {"embedding_dim": DIM, **MODELS[model]}},
        "data": criteo_data([str(files.train)], shuffle=False),     # in the file's order, as the peers read them
        "evaluation": {"data": criteo_data([str(files.test)])},
        "training": {"batch_size": BATCH, "optimizer": {"kind": "adagrad", "lr": LR}, "seed": turn},
        "roles": {
            role: {"replicas": 1, "cpu": CORES, "env": one_thread()} for role in ("ps", "worker")
        },
        "checkpoint": {"every_s": 3600},
        "export": None,
    }
    first, learned = _pass(running, spec, files.steps)
    again = {"name": f"{spec['name']}-again", "init_from": {"job": learned}}
    found = {"passes": [first, _pass(running, spec | again, files.steps)[0]]}
    say(f"recmesh {model}: {found}")
    return found


def _pass(running: Mesh, spec: dict[str, Any], steps: int) -> tuple[dict[str, Any], str]:
    """One job over all rows: what its window took, and its id."""
    job_id = running.client.submit(spec).job_id
    job = running.wait(job_id, lambda job: bool(_address(job)), patience_s=PATIENCE_S)
    with closing(sync_channel(_address(job), token=running.token)) as line:
        stub = ParameterServerStub(line)

        def pushes() -> int:
            return int(stub.Stats(ps_pb2.StatsRequest(job_id=job_id), timeout=30.0).pushes)

        first = _await(pushes, int(steps * FROM))
        job = running.client.job(job_id)
        everyone = running.services() | {
            role.role: psutil.Process(int(role.handle)) for role in job.roles if role.handle.isdigit()
        }
        began, before = time.perf_counter(), cpu_seconds(everyone)
        last = _await(pushes, int(steps * TO))
        wall_s, after = time.perf_counter() - began, cpu_seconds(everyone)
    spent = {name: after[name] - before[name] for name in after if name in before}
    worker = next((role for role in running.client.job(job_id).roles if role.role == "worker" and role.step), None)
    job = running.wait(job_id, lambda job: job.over, patience_s=PATIENCE_S)
    return {
        "auc": job.metrics["eval_auc"],
        "samples_per_cpu_s": (last - first) * BATCH / sum(spent.values()),
        "samples_per_s": (last - first) * BATCH / wall_s,
        "cpu_ms_per_step": {name: round(s / (last - first) * 1e3, 2) for name, s in spent.items() if s > 0.01},
        "step_s": {} if worker is None or worker.step is None else worker.step.model_dump(),
    }, job_id


def _address(job: Job) -> str:
    """Of the parameter server, once it serves."""
    return next((role.address for role in job.roles if role.role == "ps"), "")


def _await(count: Callable[[], int], least: int) -> int:
    """The count once it is at least so high: exactly when the window begins or ends."""
    deadline = time.monotonic() + PATIENCE_S
    while (now := count()) < least:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{now} of {least} steps after {PATIENCE_S:g} s")
        time.sleep(POLL_S)
    return now


# ---- the peers


def _peer(peer: str, model: str, files: Files) -> dict[str, Any]:
    task = {
        "model": model, "batch_size": BATCH, "dim": DIM, "ids": 1_000_000, "lr": LR, **MODELS[model],
        "steps": files.steps, "window": [int(files.steps * FROM), int(files.steps * TO)], "passes": len(PASSES),
        "train": str(files.records), "test": str(files.test_records), "test_rows": files.test_rows,
    }
    environment = {**os.environ, **one_thread(), **PEER_MEMORY}
    python = os.environ.get(PEER_PYTHON, "") if peer == "single_process" else ""
    done = subprocess.run(
        [python or sys.executable, "-m", f"bench.peers.{peer}", json.dumps(task)], cwd=ROOT, env=environment,
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{peer} failed:\n{done.stderr[-4000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    say(f"{peer} {model}: {found}")
    return found
