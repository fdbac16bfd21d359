"""What a job's own policies do on a real mesh (quarantine of batches that kill workers, batches without finite
numbers, early stopping), and how a person watches it.

The model is a few lines of numpy, so that a process starts in moments, and what it does depends on the rows alone.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from recmesh.client.views import Job
from tests.support.tiny_jobs import BATCH, ROWS, tiny_job
from tests.support.waiting import until
from tests.support.whole_mesh import STEP_S, WholeMesh, flights_job

pytestmark = [pytest.mark.integration, pytest.mark.e2e]

@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeMesh]:
    made = WholeMesh(tmp_path_factory.mktemp("policies"))
    try:
        made.up()
        yield made
    finally:
        made.down()


def run(mesh: WholeMesh, spec: dict[str, Any]) -> Job:
    """The job after its end; nothing of it runs any more."""
    job = mesh.ended(mesh.submit(spec))
    until(lambda: not mesh.roles(), timeout_s=STEP_S)
    return job


def killed(mesh: WholeMesh, job: Job) -> int:
    """Workers that ended unasked."""
    exits = [event.data for event in mesh.events(job.job_id, "job.role_exited")]
    return sum(data["role"] == "worker" and not data["expected"] for data in exits)


# -- quarantine -------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_batch_that_kills_three_workers_is_set_aside_and_everything_else_is_trained(mesh: WholeMesh) -> None:
    spec = tiny_job(mesh, "deadly")
    spec["model"]["params"]["deadly"] = [777]
    job = run(mesh, spec)
    assert job.phase == "Succeeded", (job.reason, job.message, job.notes)
    assert killed(mesh, job) == 3
    [event] = mesh.events(job.job_id, "job.batch_quarantined")
    assert event.data["attempts"] == 3 and event.data["hi"] - event.data["lo"] == BATCH
    assert job.progress.quarantined == 1
    assert (job.progress.samples, job.progress.total) == (ROWS - BATCH, ROWS)
    [note] = [note for note in job.notes if "set aside" in note]
    assert f"[{event.data['lo']}, {event.data['hi']})" in note
    assert note in mesh.ok("describe", job.job_id)


def test_more_deadly_batches_than_allowed_fail_the_job_with_the_limit(mesh: WholeMesh) -> None:
    spec = tiny_job(mesh, "deadlier", workers=1, quarantine_limit=1)
    spec["data"]["shuffle"] = False
    spec["model"]["params"]["deadly"] = [120, 620]
    job = run(mesh, spec)
    assert (job.phase, job.reason) == ("Failed", "QuarantineLimitExceeded"), (job.message, job.notes)
    assert job.message == "2 batches killed workers, 1 are allowed"
    assert killed(mesh, job) == 6
    assert [event.data["lo"] for event in mesh.events(job.job_id, "job.batch_quarantined")] == [100, 600]



# -- numbers that are not finite --------------------------------------------------------------------------


BAD = [60, 380, 700, 1020, 1340, 1660]
"""Each in a batch of its own, whatever the shuffle."""


def test_batches_without_finite_numbers_are_passed_over_up_to_the_limit(mesh: WholeMesh) -> None:
    spec = tiny_job(mesh, "tolerant", nan={"limit": len(BAD)})
    spec["data"]["shuffle"] = False
    spec["model"]["params"]["bad"] = BAD
    job = run(mesh, spec)
    assert job.phase == "Succeeded", (job.reason, job.message, job.notes)
    assert job.progress.skipped_nan == len(BAD)
    assert job.progress.samples == job.progress.total == ROWS
    assert f"{len(BAD)} batches that were not finite" in mesh.ok("describe", job.job_id)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ({"limit": len(BAD) - 1}, f"{len(BAD)} batches had no finite loss or gradients, {len(BAD) - 1} are allowed"),
        ({"action": "fail"}, "training.nan.action is fail"),
    ],
    ids=["one more than allowed, over all workers", "none is allowed"],
)
def test_too_many_batches_without_finite_numbers_fail_the_job(
    mesh: WholeMesh, policy: dict[str, Any], message: str
) -> None:
    spec = tiny_job(mesh, "intolerant" if "limit" in policy else "strict", nan=policy)
    spec["data"]["shuffle"] = False
    spec["model"]["params"]["bad"] = BAD
    job = run(mesh, spec)
    assert (job.phase, job.reason) == ("Failed", "NotFinite"), (job.message, job.notes)
    assert message in job.message
    assert killed(mesh, job) == 0


# -- early stopping ---------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_job_whose_evaluation_stagnates_ends_early_with_the_reason_and_an_honest_count(mesh: WholeMesh) -> None:
    spec = tiny_job(
        mesh, "stagnant", workers=1, epochs=100, early_stopping={"metric": "auc", "patience": 2}
    )
    # Every step takes a quarter of a second at least: left alone, the job would take 16 minutes.
    spec["roles"]["worker"]["env"] = {"STEP_S": "0.25"}
    spec["evaluation"] = {"rows": [0.9, 1.0], "every_s": 0.2}
    job = run(mesh, spec)
    why = "early stopping: auc has not improved in 2 evaluations"
    assert (job.phase, job.reason, job.message) == ("Succeeded", "Finished", why)
    assert why in mesh.ok("describe", job.job_id)
    end = mesh.events(job.job_id, "job.transitioned")[-1].data
    assert end["to_phase"] == "Succeeded"
    assert (end["reason"], end["message"]) == ("Finished", why)
    assert len(mesh.events(job.job_id, "job.evaluated")) >= 3
    assert 0 < job.progress.samples < job.progress.total == ROWS * 100
    assert job.progress.samples % BATCH == 0
    last = mesh.client.checkpoints(job.job_id)[-1]
    assert (last.snapshot, last.samples) == (job.snapshot, job.progress.samples)


# -- watching ---------------------------------------------------------------------------------------------


@pytest.mark.long
def test_top_shows_the_running_job_anew_and_leaves_the_terminal_as_it_was(mesh: WholeMesh) -> None:
    spec = tiny_job(mesh, "watched", epochs=100)
    spec["roles"]["worker"]["env"] = {"STEP_S": "0.25"}
    job_id = mesh.submit(spec)
    mesh.trains(job_id, share=0.0, snapshots=0)
    watch_and_leave(mesh, job_id, keys="q", code=0)
    watch_and_leave(mesh, job_id, keys="\x03", code=130)
    mesh.ok("stop", job_id)
    assert mesh.ended(job_id).phase == "Stopped"


def watch_and_leave(mesh: WholeMesh, job_id: str, *, keys: str, code: int) -> None:
    with mesh.terminal("top", "--interval", "0.2") as terminal:
        until(lambda: all(word in terminal.text for word in ("watched", "Running", "worker-1")), timeout_s=STEP_S)
        assert terminal.settings != terminal.settings_before     # keys arrive at once, unseen
        seen = len(terminal.raw)
        until(lambda: terminal.raw[seen:].count("watched") > 2, timeout_s=STEP_S)
        terminal.type(keys)
        assert terminal.process.wait(STEP_S) == code, terminal.text[-500:]
        assert terminal.settings == terminal.settings_before
        until(lambda: terminal.raw.rfind("\x1b[?1049l") > terminal.raw.rfind("\x1b[?1049h"))     # the old screen
        assert terminal.raw.rfind("\x1b[?25h") > terminal.raw.rfind("\x1b[?25l")                 # with a cursor


@pytest.mark.long
def test_top_has_a_document_and_scaling_is_waited_for(mesh: WholeMesh) -> None:
    spec = tiny_job(mesh, "waited", epochs=100, workers=1)
    spec["roles"]["worker"]["env"] = {"STEP_S": "0.25"}
    job_id = mesh.submit(spec)
    mesh.trains(job_id, share=0.0, snapshots=0)
    scaled = json.loads(mesh.ok("scale", job_id, "worker=2", "--wait", "--timeout", str(STEP_S), "--json"))
    assert [role["state"] for role in scaled["roles"] if role["role"] == "worker"].count("running") == 2
    found = json.loads(mesh.ok("top", "--json"))
    [shown] = [job for job in found["jobs"] if job["job_id"] == job_id]
    living = [role for role in shown["roles"] if role["state"] == "running"]
    [node] = found["nodes"]
    assert {role["node"] for role in living} == {node["node"]} and node["processes"]["worker"] == 2
    assert node["cpu_used"] is not None and node["memory_bytes"] > 0
    assert {model["name"] for model in found["models"]} == {each.name for each in mesh.client.models()}
    suspended = json.loads(mesh.ok("suspend", job_id, "--wait", "--timeout", str(STEP_S), "--json"))
    assert suspended["phase"] == "Suspended" and not mesh.roles()
    assert mesh.ok("checkpoints", job_id, "--verify").count("committed") >= 1
    assert json.loads(mesh.ok("resume", job_id, "--wait", "--timeout", str(STEP_S), "--json"))["phase"] == "Running"
    assert json.loads(mesh.ok("stop", job_id, "--wait", "--timeout", str(STEP_S), "--json"))["phase"] == "Stopped"


@pytest.mark.long
def test_a_job_that_is_followed_on_a_terminal_has_a_bar_with_the_time_left(mesh: WholeMesh) -> None:
    spec = tiny_job(mesh, "followed", epochs=5)
    spec["roles"]["worker"]["env"] = {"STEP_S": "0.2"}
    file = mesh.folder / "followed.json"
    file.write_text(json.dumps(spec))
    with mesh.terminal("submit", str(file), "--wait") as terminal:
        until(lambda: "━" in terminal.text and " left" in terminal.text, timeout_s=STEP_S)
        assert f" of {ROWS * 5:,} samples" in terminal.text and "samples/s" in terminal.text
        assert terminal.process.wait(STEP_S) == 0, terminal.text[-2000:]
    assert "followed Succeeded" in terminal.text and "Pending → Starting" in terminal.text


@pytest.mark.long
def test_features_by_a_function_of_the_users_are_trained_evaluated_and_carried_by_the_model(mesh: WholeMesh) -> None:
    spec = flights_job("own-features", mesh.folder, rows=0.02, epochs=1, step_s=0.0)
    code = mesh.folder / "own-features"
    code.mkdir()
    (code / "own_features.py").write_text(
        "import pyarrow.compute as pc\n\n\n"
        "def near(distance):\n    return pc.if_else(pc.less(distance, 500), 'near', 'far')\n"
    )
    spec["model"] = {"zoo": "torch_dcn_v2", "code": str(code), "params": spec["model"]["params"]}
    spec["data"]["features"] += [
        {"name": "near", "column": "distance", "function": "own_features:near"},
        {"name": "way", "columns": ["origin", "hour"], "buckets": 1000},
    ]
    spec["evaluation"] = {"rows": [0.9, 0.92]}
    job = run(mesh, spec)
    assert job.phase == "Succeeded", job.message
    assert 0.0 < job.metrics["eval_auc"] < 1.0
    carried = json.loads((Path(job.model_uri) / "model.json").read_text())["transform"]
    assert [feature["name"] for feature in carried["features"]][-2:] == ["near", "way"]


def with_bad_lines(mesh: WholeMesh, name: str, *, limit: int) -> dict[str, Any]:
    """The tiny job on JSON lines, of which those at positions 3, 500 to 599 and 1,999 are no JSON."""
    spec = tiny_job(mesh, name)
    bad = {3, *range(500, 600), ROWS - 1}
    lines = [
        "?" if row in bad else json.dumps({"number": row, "item": row % 97, "label": row % 2}) for row in range(ROWS)
    ]
    path = mesh.folder / f"{name}.jsonl"
    path.write_text("\n".join([*lines, ""]))
    types = {"number": "float", "item": "int", "label": "float"}
    spec["data"]["source"] = {"format": "jsonl", "files": [str(path)], "types": types}
    spec["data"]["bad_records"] = {"limit": limit, "folder": str(mesh.folder / f"{name}-letters")}
    return spec


@pytest.mark.long
def test_records_that_cannot_be_read_are_left_out_and_written_down(mesh: WholeMesh) -> None:
    job = run(mesh, with_bad_lines(mesh, "bad-lines", limit=102))
    assert job.phase == "Succeeded", job.message
    assert job.progress.samples == job.progress.total == ROWS and job.progress.bad_records == 102
    assert "102 records that could not be read" in mesh.ok("describe", job.job_id)
    letters = [
        json.loads(line) for path in (mesh.folder / "bad-lines-letters").iterdir()
        for line in path.read_text().splitlines()
    ]
    assert sorted(letter["row"] for letter in letters) == [3, *range(500, 600), ROWS - 1]


def test_more_bad_records_than_allowed_fail_the_job_by_name(mesh: WholeMesh) -> None:
    job = run(mesh, with_bad_lines(mesh, "too-many-bad-lines", limit=101))
    assert job.phase == "Failed"
    assert "101 are allowed" in job.message, job.message
