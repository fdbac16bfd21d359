"""Plan, execute, measure on the composed mesh: a job that began too small, or too large, is mended without a stop."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.tiny_jobs import ROWS, tiny_job
from tests.support.waiting import until
from tests.support.whole_mesh import STEP_S, WholeMesh

pytestmark = [pytest.mark.integration, pytest.mark.e2e, pytest.mark.long]

SETTINGS = {
    "RECMESH_CORES": "1.4", "RECMESH_PLAN_INTERVAL_S": "1", "RECMESH_PLAN_SETTLE_S": "2", "RECMESH_PLAN_WINDOW_S": "6",
    "RECMESH_QUOTAS": '{"capped": {"cpu": 0.8, "memory_gib": 64}}',
}  # fmt: skip

SHARED = '''"""Steps of all workers together begin at a fixed pace until HURRY is there: more of them bring nothing."""

import fcntl
import os
import time

from recmesh.trainer.session import EmbeddingTable
from tiny import Tiny

EVERY_S, PLACE, HURRY = float(os.environ["EVERY_S"]), os.environ["PLACE"], os.environ["HURRY"]


def turn():
    """When the next step of anybody may begin, by a clock that all processes of a machine share."""
    with open(PLACE, "a+") as place:
        fcntl.flock(place, fcntl.LOCK_EX)
        place.seek(0)
        at = max(float(place.read() or 0.0), time.monotonic())
        place.truncate(0)
        place.write(repr(at + EVERY_S))
    return at


def main(job):
    job.attach(Tiny())
    for step in job.session.steps():
        at = turn()
        while time.monotonic() < at and not os.path.exists(HURRY):
            time.sleep(min(0.05, max(0.0, at - time.monotonic())))
        step.push({}, {}, loss=0.5)
'''


@pytest.fixture
def mesh(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[WholeMesh]:
    """A test's parameter adds settings of its own."""
    made = WholeMesh(tmp_path)
    made.home.root.mkdir()
    lines = [f"{name} = '{value}'" for name, value in (SETTINGS | getattr(request, "param", {})).items()]
    made.home.config_file.write_text("\n".join(["[env]", *lines, ""]))
    made.up()
    yield made
    made.down()


def endless(mesh: WholeMesh, name: str, **workers: Any) -> dict[str, Any]:
    """A step begins every half second whatever else the machine does, so that twice the workers train twice as fast."""
    spec = tiny_job(mesh, name, epochs=5_000)
    spec["roles"] = {
        "ps": {"replicas": 1, "cpu": 0.35},
        "worker": {"cpu": 0.35, "env": {"STEP_S": "0.5"}, "min": 1, "max": 3} | workers,
    }
    return spec


def test_a_job_that_began_too_small_grows_to_what_its_machine_allows(mesh: WholeMesh) -> None:
    job_id = mesh.submit(endless(mesh, "small", replicas=1))
    until(lambda: mesh.job(job_id).phase == "Running", timeout_s=STEP_S, poll_s=0.2)
    mesh.asked(lambda client: client.scale(job_id, "worker", None))
    until(lambda: len(running(mesh, job_id)) == 3, timeout_s=STEP_S, poll_s=0.2)
    until(lambda: len(outcomes(mesh, job_id)) == 2, timeout_s=STEP_S, poll_s=0.2)
    explained = mesh.asked(lambda client: client.plan(job_id))
    assert {change["verdict"] for change in explained["changes"]} == {"kept"}
    assert explained["changes"][0]["rate_after"] > 1.2 * explained["changes"][-1]["rate_before"]
    assert [point["workers"] for point in explained["look"]["fit"]["points"]][:2] == [1, 2]
    assert explained["look"]["planner"] == "pareto-greedy" and explained["look"]["why"]
    assert not mesh.events(job_id, "job.rolled_back"), "nothing was stopped for it"
    decided = [event.data for event in mesh.events(job_id, "job.decided")]
    assert [item["decided"][:12] for item in decided if item["matter"] == "plan"] == ["worker 1 → 2", "worker 2 → 3"]
    mesh.asked(lambda client: client.stop(job_id))


# All workers share one pace here: where a busy machine holds it up, that is no fault of the change.
@pytest.mark.parametrize("mesh", [{"RECMESH_PLAN_TOLERANCE": "0.5"}], indirect=True)
def test_a_job_that_began_too_large_gives_back_while_it_trains_and_loses_nothing(mesh: WholeMesh) -> None:
    hurry, epochs = mesh.folder / "hurry", 75
    spec = endless(mesh, "large", replicas=3, env={
        "EVERY_S": "0.2", "PLACE": str(mesh.folder / "place"), "HURRY": str(hurry),
    })
    (mesh.folder / "tiny" / "shared.py").write_text(SHARED)
    spec["model"]["entrypoint"], spec["training"]["epochs"] = "shared:main", epochs
    spec["roles"]["ps"]["max"] = 1
    job_id = mesh.submit(spec)
    until(lambda: len(running(mesh, job_id)) == 3, timeout_s=STEP_S, poll_s=0.2)
    mesh.asked(lambda client: client.scale(job_id, "worker", None))
    # Two steps to learn from, of which the first is down; then what it knows.
    until(lambda: len(outcomes(mesh, job_id)) >= 3, timeout_s=STEP_S, poll_s=0.2)
    changes = outcomes(mesh, job_id)
    assert {change["verdict"] for change in changes} == {"kept"}
    assert (counts(changes[-1]["before"]), counts(changes[0]["after"])) == (3, 1) == (3, len(running(mesh, job_id)))
    decided = [event.data["decided"] for event in mesh.events(job_id, "job.decided") if event.data["matter"] == "plan"]
    assert "worker 2 → 1 (pareto-greedy: SHRINK)" in decided, decided
    assert mesh.is_training(job_id), "it went on meanwhile"
    hurry.touch()
    job = mesh.ended(job_id)
    assert job.phase == "Succeeded", job.message
    assert job.progress.samples == job.progress.total == ROWS * epochs
    assert not mesh.events(job_id, "job.rolled_back"), "nothing was stopped for it"


def test_a_job_beyond_its_owner_s_quota_waits_until_there_is_room(mesh: WholeMesh) -> None:
    first, second = (mesh.submit(endless(mesh, name, replicas=1) | {"owner": "capped"}) for name in ("one", "two"))
    until(lambda: mesh.job(first).phase == "Running", timeout_s=STEP_S, poll_s=0.2)
    until(lambda: "left in the quota of owner 'capped'" in mesh.job(second).message, timeout_s=STEP_S, poll_s=0.2)
    waiting = mesh.job(second)
    assert waiting.phase == "Pending" and not waiting.roles
    assert "0.7 cores" in waiting.message and "0.1 cores" in waiting.message, waiting.message
    mesh.asked(lambda client: client.stop(first))
    until(lambda: mesh.job(second).phase == "Running", timeout_s=STEP_S, poll_s=0.2)
    mesh.asked(lambda client: client.stop(second))


def running(mesh: WholeMesh, job_id: str) -> list[int]:
    return [item.index for item in mesh.job(job_id).roles if (item.role, item.state) == ("worker", "running")]


def counts(plan: list[dict[str, Any]]) -> int:
    return next(int(part["replicas"]) for part in plan if part["role"] == "worker")


def outcomes(mesh: WholeMesh, job_id: str) -> list[Any]:
    return list(mesh.asked(lambda client: client.plan(job_id)).get("changes", []))
