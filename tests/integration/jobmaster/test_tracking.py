"""Metrics through the real libraries, in their process: files that TensorBoard reads, a run in an MLflow store."""

import asyncio
import importlib
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from recmesh.tracking import Report
from services.jobmaster.peers.tracking import Tracker
from tests.support.servers import free_port
from tests.support.waiting import until_answers

pytestmark = [pytest.mark.integration, pytest.mark.asyncio]
SERVER = "RECMESH_TEST_MLFLOW"
"""A python of an environment with the package mlflow, whose pins are not recmesh's."""
REPORT = Report(
    "ads", 1000.5, ("tensorboard", "mlflow"), "ranking", at=1010.0, step=100, metrics={"loss": 0.7, "auc": 0.6},
    params={"owner": "ads", "model.params.dim": "16"},
)


def libraries() -> tuple[Any, Any]:
    """MLflow, and what reads event files: both without TensorFlow, which the sink keeps out."""
    importlib.import_module("recmesh.tracking.tensorboard")
    return (
        importlib.import_module("mlflow"),
        importlib.import_module("tensorboard.backend.event_processing.event_accumulator"),
    )


@pytest.fixture(params=["file", "server"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """MLflow's, by its address."""
    file = f"sqlite:///{tmp_path / 'mlflow.db'}"
    if request.param == "file":
        yield file
        return
    python = os.environ.get(SERVER)
    if not python:
        pytest.skip(f"no MLflow server: {SERVER} names no python that has the package mlflow, whole")
    port, log = free_port(), tmp_path / "server.log"
    command = [python, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    environment = {**os.environ, "PYTHONPATH": ""}       # its packages are of its own
    with log.open("wb") as out, subprocess.Popen(
        [*command, "--backend-store-uri", file], stdout=out, stderr=out, env=environment, start_new_session=True
    ) as server:
        try:
            until_answers(server, f"http://127.0.0.1:{port}/health", log=log, timeout_s=120.0)
            yield f"http://127.0.0.1:{port}"
        finally:
            os.killpg(server.pid, signal.SIGKILL)


@pytest_asyncio.fixture
async def tracker(tmp_path: Path, store: str) -> AsyncIterator[Tracker]:
    made = Tracker(tensorboard=str(tmp_path / "tensorboard"), mlflow=store)
    yield made
    await made.stop()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")     # MLflow's, of SQLAlchemy
async def test_a_job_is_seen_by_tensorboard_and_is_one_run_of_mlflow_also_after_a_restart(
    tracker: Tracker, store: str, tmp_path: Path
) -> None:
    mlflow, accumulators = libraries()
    assert await tracker.tell(REPORT) == {}
    await tracker.stop()                    # as with jobmaster: the next report begins another process
    last = replace(REPORT, at=1020.0, step=200, metrics={"loss": 0.5, "auc": 0.7}, ended="Failed")
    assert await tracker.tell(last) == {}
    assert await tracker.tell(last) == {}   # an end that is told twice
    await tracker.stop()

    def read() -> list[tuple[float, int, float]]:
        found = accumulators.EventAccumulator(str(tmp_path / "tensorboard" / "ads"))
        found.Reload()
        array = importlib.import_module("tensorboard.util.tensor_util").make_ndarray
        return [
            (item.wall_time, item.step, round(float(array(item.tensor_proto)), 3)) for item in found.Tensors("loss")
        ]

    shown = await asyncio.to_thread(read)
    assert shown[0] == (1010.0, 100, 0.7) and set(shown[1:]) == {(1020.0, 200, 0.5)}

    def runs() -> None:
        client = mlflow.MlflowClient(tracking_uri=store)
        experiment = client.get_experiment_by_name("ranking")
        (run,) = client.search_runs([experiment.experiment_id])
        assert run.info.run_name == "ads" and run.info.status == "FAILED"
        assert (run.info.start_time, run.info.end_time) == (1000500, 1020000)
        assert run.data.params == REPORT.params
        history = [(item.step, item.value) for item in client.get_metric_history(run.info.run_id, "auc")]
        assert history == [(100, 0.6), (200, 0.7)]

    await asyncio.to_thread(runs)


async def test_a_server_that_is_away_hinders_no_other_sink(tmp_path: Path) -> None:
    tracker = Tracker(tensorboard=str(tmp_path / "tensorboard"), mlflow="http://127.0.0.1:9")
    try:
        errors = await tracker.tell(REPORT)
    finally:
        await tracker.stop()
    assert errors.keys() == {"mlflow"} and "127.0.0.1" in errors["mlflow"]
    assert list((tmp_path / "tensorboard" / "ads").iterdir())


async def test_a_process_that_cannot_start_is_told_and_not_waited_for() -> None:
    tracker = Tracker(tensorboard="/nowhere", mlflow="", command=("/bin/false",))
    assert "the process of tracking" in (await tracker.tell(REPORT))["tensorboard"]
    assert "process" in (await Tracker(tensorboard="", mlflow="", command=("/no/program",)).tell(REPORT))["mlflow"]
