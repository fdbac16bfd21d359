"""From nothing to a mesh, and from a submitted job to its first applied step."""

import contextlib
import re
import time
from datetime import UTC, datetime
from typing import Any

from bench.figures import Result
from bench.mesh import Mesh, criteo_data, mesh, say, scratch
from bench.synthetic import criteo_like, write_parquet
from recmesh.client.views import Job
from recmesh.pb import ps_pb2
from recmesh.pb.ps_pb2_grpc import ParameterServerStub
from recmesh.runtime.errors import MeshError
from recmesh.runtime.rpc import sync_channel

ROWS, IDS, RUNS = 65_536, 100_000, 3
LOOK_S, PATIENCE_S = 0.01, 180.0


def run(*, quick: bool) -> Result:
    """`up_s`; `submit_to_first_step_s` is the median of several jobs, each from POST to its first applied step."""
    runs = 1 if quick else RUNS
    with scratch() as folder, mesh() as running:
        data = folder / "rows.parquet"
        write_parquet(data, criteo_like(ROWS, seed=1, ids=IDS))
        timed = []
        for k in range(runs):
            timed.append(_first_step(running, _spec(str(data), k)))
            say(f"submit to first step: {timed[-1]['first step']:.2f} s {timed[-1]}")
        timed.sort(key=lambda each: each["first step"])
        median = timed[len(timed) // 2]
        return Result("startup", {
            "up_s": running.up_s, "submit_to_first_step_s": median["first step"],
        }, {
            "model": "torch_dcn_v2", "ps": 1, "workers": 1, "rows": ROWS, "jobs": runs,
            "all_s": [round(each["first step"], 2) for each in timed],
            "seconds_after_submit": {name: round(at, 2) for name, at in median.items()},
            "first_job": "also pays for what the file system has not cached yet",
            "quick": f"1 job instead of {RUNS}" if quick else "",
        })


def _spec(file: str, number: int) -> dict[str, Any]:
    return {
        "name": f"startup-{number}",
        "model": {"zoo": "torch_dcn_v2", "params": {"embedding_dim": 16, "cross_layers": 2, "hidden": [128, 64]}},
        "data": criteo_data([file]),
        "training": {"batch_size": 1024, "optimizer": {"kind": "adagrad", "lr": 0.01}},
        "roles": {"ps": {"replicas": 1}, "worker": {"replicas": 1}},
        "export": None,
    }


def _first_step(running: Mesh, spec: dict[str, Any]) -> dict[str, float]:
    """Seconds after the POST at which each thing happened."""
    began = time.time()
    job_id = running.client.submit(spec).job_id
    marks = {"accepted": time.time() - began}
    deadline = time.monotonic() + PATIENCE_S
    stub: ParameterServerStub | None = None
    with contextlib.ExitStack() as stack:
        while time.monotonic() < deadline:
            if stub is None:
                job = running.client.job(job_id)
                address = next((role.address for role in job.roles if role.role == "ps"), "")
                if address:
                    channel = stack.enter_context(contextlib.closing(sync_channel(address, token=running.token)))
                    stub = ParameterServerStub(channel)
                    marks["parameter server known"] = time.time() - began
            else:
                with contextlib.suppress(MeshError):
                    if stub.Stats(ps_pb2.StatsRequest(job_id=job_id), timeout=5.0).pushes:
                        marks["first step"] = time.time() - began
                        break
            time.sleep(LOOK_S)
        else:
            raise TimeoutError(f"no step after {PATIENCE_S:g} s")
    job = running.client.job(job_id)
    marks |= _phases(job, began) | _logged(running, job_id, began)
    running.wait(job_id, lambda job: job.over, patience_s=PATIENCE_S)
    return dict(sorted(marks.items(), key=lambda item: item[1]))


def _phases(job: Job, began: float) -> dict[str, float]:
    return {f"phase {change.to_phase}": change.at - began for change in job.transitions if change.at >= began}


def _logged(running: Mesh, job_id: str, began: float) -> dict[str, float]:
    """Marks in the worker's and the parameter server's log."""
    marks: dict[str, float] = {}
    for log in running.client.logs(job_id, tail=200):
        for line in log.lines:
            found = re.match(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),(\d{3}) \w+ \S+ (.*)", line)
            if found:
                at = datetime.strptime(found[1], "%Y-%m-%d %H:%M:%S").astimezone(UTC).timestamp() + int(found[2]) / 1000
                marks.setdefault(f"{log.role}: {found[3][:40]}", at - began)
    return marks
