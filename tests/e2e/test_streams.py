"""Jobs on streams of hourly files, on a real mesh: hours that come while they train, and processes that die then."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.tiny_jobs import tiny_job
from tests.support.waiting import until
from tests.support.whole_mesh import STEP_S, WholeMesh, role

pytestmark = [pytest.mark.integration, pytest.mark.e2e]
ROWS, PARTS, BEGIN = 600, 2, 1_704_067_200


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeMesh]:
    made = WholeMesh(tmp_path_factory.mktemp("streams"))
    try:
        made.up()
        yield made
    finally:
        made.down()


def write_hour(root: Path, hour: int) -> None:
    """Files first, then the marker that says that all are there."""
    folder = root / "20240101" / f"{hour:02}"
    folder.mkdir(parents=True)
    for part in range(PARTS):
        numbers = np.arange(ROWS) + part * ROWS + hour * PARTS * ROWS
        table = pa.table({
            "number": numbers.astype("float32"), "item": numbers % 97, "label": (numbers % 2).astype("float32"),
        })
        pq.write_table(table, folder / f"{part}.parquet")
    (folder / "_DONE").touch()


def hourly_job(mesh: WholeMesh, name: str, root: Path, *, end: int | None, step_s: float = 0.0) -> dict[str, Any]:
    spec = tiny_job(mesh, name)
    source = {
        "files": [f"{root}/{{YYYY}}{{MM}}{{DD}}/{{HH}}/*.parquet"], "done": f"{root}/{{YYYY}}{{MM}}{{DD}}/{{HH}}/_DONE",
        "start": BEGIN, "end": end,
    }
    spec["data"] = {
        "streams": [{"window": "1h", "sources": [source]}], "features": spec["data"]["features"], "task_rows": 100,
    }
    spec["roles"]["worker"]["env"] = {"STEP_S": str(step_s)}
    spec["checkpoint"] = {"every_s": 1}
    return spec


@pytest.mark.long
def test_every_hour_is_trained_once_whatever_dies_while_it_comes(mesh: WholeMesh, tmp_path: Path) -> None:
    write_hour(tmp_path, 0)
    job_id = mesh.submit(hourly_job(mesh, "by-the-hour", tmp_path, end=BEGIN + 4 * 3600, step_s=0.05))
    until(lambda: mesh.job(job_id).progress.samples >= ROWS, timeout_s=STEP_S)
    assert mesh.job(job_id).progress.total == 0, "nobody knows yet how much there is"
    os.kill(int(role(mesh.job(job_id), "worker", 0).handle), signal.SIGKILL)
    write_hour(tmp_path, 1)
    mesh.kill("shardsvc")
    until(lambda: mesh.job(job_id).progress.samples >= 3 * ROWS, timeout_s=STEP_S)
    before = mesh.job(job_id)
    os.kill(int(role(before, "ps", 1).handle), signal.SIGKILL)
    until(lambda: mesh.job(job_id).gen > before.gen, timeout_s=STEP_S)
    until(lambda: "_DONE" in mesh.job(job_id).progress.waits_for, timeout_s=STEP_S)
    shown = mesh.ok("describe", job_id)
    assert "up to the window of 2024-01-01T01:00Z" in shown and f"{tmp_path}/20240101/02/_DONE" in shown
    write_hour(tmp_path, 2)
    write_hour(tmp_path, 3)
    mesh.kill("valkey")
    job = mesh.ended(job_id)
    assert job.phase == "Succeeded", (job.reason, job.message, job.notes)
    assert job.progress.samples == job.progress.total == 4 * PARTS * ROWS
    assert job.progress.waits_for == ""


@pytest.mark.long
def test_a_job_without_an_end_trains_what_comes_until_it_is_stopped(mesh: WholeMesh, tmp_path: Path) -> None:
    write_hour(tmp_path, 0)
    job_id = mesh.submit(hourly_job(mesh, "for-ever", tmp_path, end=None))
    until(lambda: mesh.job(job_id).progress.samples == PARTS * ROWS, timeout_s=STEP_S)
    assert mesh.job(job_id).phase == "Running"
    write_hour(tmp_path, 1)
    until(lambda: mesh.job(job_id).progress.samples == 2 * PARTS * ROWS, timeout_s=STEP_S)
    mesh.ok("stop", job_id)
    job = mesh.ended(job_id)
    assert (job.phase, job.progress.samples) == ("Stopped", 2 * PARTS * ROWS)


def test_a_stream_whose_first_window_has_no_files_is_refused(mesh: WholeMesh, tmp_path: Path) -> None:
    spec = hourly_job(mesh, "nowhere", tmp_path, end=None)
    del spec["data"]["streams"][0]["sources"][0]["done"]            # else it is waited for
    job = mesh.write("nowhere.json", json.dumps(spec))
    refused = mesh.run("submit", job)
    assert refused.returncode == 2
    assert "data.streams.0.sources.0.files: no file of 2024-01-01T00:00Z matches" in refused.stderr
