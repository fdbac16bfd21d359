"""Loans on the composed mesh: a job shrinks ahead of a forecast peak, an HN takes the room, and it comes back."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.split_models import torch_model
from tests.support.tiny_jobs import tiny_job
from tests.support.waiting import until
from tests.support.whole_mesh import STEP_S, WholeMesh

pytestmark = [pytest.mark.integration, pytest.mark.e2e, pytest.mark.long]

SEASON_S, PEAK_S, STEP = 450.0, 60.0, 5.0
"""Traffic repeats so often, and is high for so long of it."""
AHEAD_S = 80.0
"""The peak begins so long after it is known. By `drain_s` and `start_s` the loan is begun at once: all of it is there
for the worker to leave, on a machine that does much else. Most of it is waited for: the HN starts as late as it may."""
POOL = {
    "own": 1, "most": 1, "drain_s": 30, "start_s": 30, "return_s": 10, "hold_s": 10, "notice_s": 10, "slack_s": 120,
    "step_s": 1, "unit": {"cpu": 0.3},
}  # fmt: skip
SETTINGS = {
    "RECMESH_LOANS": json.dumps(POOL), "RECMESH_RATE_SEASON_S": f"{SEASON_S:g}", "RECMESH_PLAN_INTERVAL_S": "0",
    "RECMESH_GATEWAY_SCALING_STEP_S": "2", "RECMESH_GATEWAY_RATE_STEP_S": f"{STEP:g}", "RECMESH_CORES": "6",
}  # fmt: skip


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[WholeMesh]:
    made = WholeMesh(tmp_path)
    made.home.root.mkdir()
    lines = [f"{name} = '{value}'" for name, value in SETTINGS.items()]
    made.home.config_file.write_text("\n".join(["[env]", *lines, ""]))
    made.up()
    yield made
    made.down()


def elastic(mesh: WholeMesh) -> dict[str, Any]:
    spec = tiny_job(mesh, "elastic", epochs=5_000)
    spec["roles"] = {
        "ps": {"replicas": 1}, "worker": {"cpu": 0.3, "env": {"STEP_S": "0.5"}, "min": 1, "max": 3},
    }  # fmt: skip
    return spec


def workers(mesh: WholeMesh, job_id: str) -> int:
    job = mesh.job(job_id)
    return sum(role.role == "worker" and role.state == "running" for role in job.roles)


def loans(mesh: WholeMesh) -> dict[str, Any]:
    return mesh.asked(lambda client: client.loans())


def request(mesh: WholeMesh, count: int) -> None:
    """From some of them is learned what one takes, over several looks of the gateway."""
    asked = {"inputs": [
        {"name": "id", "datatype": "INT64", "shape": [1], "data": [7]},
        {"name": "x", "datatype": "FP32", "shape": [1], "data": [1.0]},
    ]}  # fmt: skip
    for _ in range(count):
        mesh.asked(lambda client: client.infer("served", asked))
        time.sleep(0.05)


def season(now: float, *, peak_at: float) -> list[tuple[float, float]]:
    """Eight of them before now, so that the next peak begins at `peak_at`."""
    first = int((now - 8 * SEASON_S) // STEP) * STEP
    count = int((now - first) // STEP)
    moments = [first + place * STEP for place in range(count)]
    return [(at, 4000.0 if (at - peak_at) % SEASON_S < PEAK_S else 1.0) for at in moments]


def test_a_job_shrinks_ahead_of_a_forecast_peak_an_hn_takes_the_room_and_gives_it_back(mesh: WholeMesh) -> None:
    serving = {"scaling": {"hn": {"min": 1, "max": 2}, "hold_s": 5}, "split": "always"}
    folder = torch_model(mesh.home.root / "storage" / "served", post=True)
    mesh.asked(lambda client: client.register_model(
        {"name": "served", "uri": str(folder), "framework": "torch", "serving": serving}
    ))  # fmt: skip
    job_id = mesh.submit(elastic(mesh))
    until(lambda: mesh.asked(lambda client: client.model("served"))[-1].state == "ready", timeout_s=STEP_S, poll_s=0.5)
    until(lambda: workers(mesh, job_id) >= 2, timeout_s=STEP_S, poll_s=0.5)
    before = workers(mesh, job_id)
    request(mesh, 100)
    assert loans(mesh)["loans"] == [], "nothing is lent without need"
    now = time.time()
    peak_at = now + AHEAD_S
    points = season(now, peak_at=peak_at)
    mesh.asked(lambda client: client.tell_rates("model/served", points, step_s=STEP))

    until(lambda: loans(mesh)["pool"].get("lent", 0) == 1, timeout_s=STEP_S, poll_s=0.5)
    assert time.time() < peak_at, "it was lent ahead of the peak"
    assert workers(mesh, job_id) == before - 1
    [line] = [event.data for event in mesh.events(job_id, "job.decided") if event.data["matter"] == "loan"]
    assert line["decided"] == f"worker {before} → {before - 1}: it lends 1, 1 are lent now"

    mesh.kill("brain")
    told = loans(mesh)
    assert [loan["state"] for loan in told["loans"]] == ["lent"], "the ledger outlives the process"
    request(mesh, 60)
    until(lambda: loans(mesh)["pool"]["used"] == 2, timeout_s=STEP_S, poll_s=0.5)

    until(lambda: loans(mesh)["loans"][0]["state"] == "returned", timeout_s=2 * STEP_S, poll_s=1.0)
    [loan] = loans(mesh)["loans"]
    assert (loan["job_id"], loan["cause"], loan.get("late", False)) == (job_id, "FORECAST", False)
    assert loan["planned"] < loan["lent"] < peak_at < loan["ended"] <= loan["due"]
    until(lambda: workers(mesh, job_id) == before, timeout_s=STEP_S, poll_s=0.5)
    assert loans(mesh)["pool"]["used"] == 1
    assert not mesh.events(job_id, "job.rolled_back"), "nothing was stopped for it"
    assert "returned" in mesh.ok("loans", "--all")
