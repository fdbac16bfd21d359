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

import httpx
import pytest
import pytest_asyncio

from recmesh.tracking import Report
from services.jobmaster.peers.tracking import Tracker
from tests.support.servers import free_port
from tests.support.waiting import until_answers

pytestmark = [pytest.mark.integration, pytest.mark.asyncio]
SERVER = "RECMESH_TEST_MLFLOW"
"""A python of an environment with the package mlflow, whose pins are not recmesh's."""
START_S = 120.0
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


class Server:
    """`mlflow server`, as its users run it."""

    def __init__(self, python: str, folder: Path) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._python, self._folder = python, folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        arguments = [
            "server", "--host", "127.0.0.1", "--port", str(self.port), "--workers", "1",
            "--backend-store-uri", f"sqlite:///{self._folder / 'server.db'}",
            "--artifacts-destination", str(self._folder / "artifacts"),
        ]
        with (self._folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._python, "-m", "mlflow", *arguments], cwd=self._folder, stdout=log, stderr=log,
                env={"PATH": os.environ["PATH"], "HOME": str(self._folder)}, start_new_session=True,
            )  # fmt: skip
        until_answers(self._process, f"{self.url}/health", log=self._folder / "server.log", timeout_s=START_S)

    def stop(self) -> None:
        """Its workers, too."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def ask(self, path: str, **given: Any) -> Any:
        """By its REST API, without its library."""
        answer = httpx.post(f"{self.url}/api/2.0/mlflow/{path}", json=given, timeout=30.0)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def history(self, run_id: str, metric: str) -> list[tuple[int, float]]:
        asked = {"run_id": run_id, "metric_key": metric}
        found = httpx.get(f"{self.url}/api/2.0/mlflow/metrics/get-history", params=asked, timeout=30.0).json()
        return [(item["step"], item["value"]) for item in found["metrics"]]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    python = os.environ.get(SERVER)
    if not python:
        pytest.skip(f"no MLflow server: {SERVER} names no python that has the package mlflow, whole")
    made = Server(python, tmp_path)
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture(params=["file", "server"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """MLflow's, by its address."""
    if request.param == "file":
        return f"sqlite:///{tmp_path / 'mlflow.db'}"
    server: Server = request.getfixturevalue("server")
    return server.url


@pytest_asyncio.fixture
async def tracker(tmp_path: Path, store: str) -> AsyncIterator[Tracker]:
    made = Tracker(tensorboard=str(tmp_path / "tensorboard"), mlflow=store)
    yield made
    await made.stop()


@pytest.mark.long
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


@pytest.mark.long
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


@pytest.mark.long
async def test_a_run_that_was_made_and_not_described_is_when_it_is_found(tracker: Tracker, store: str) -> None:
    mlflow, _ = libraries()

    def begin() -> str:
        client = mlflow.MlflowClient(tracking_uri=store)
        tags = {"recmesh.job": "ads", "recmesh.created": "1000.500"}
        return str(client.create_run(client.create_experiment("ranking"), tags=tags).info.run_id)

    run_id = await asyncio.to_thread(begin)
    only = replace(REPORT, sinks=("mlflow",))
    assert await tracker.tell(only) == {}
    await tracker.stop()
    assert await tracker.tell(replace(only, at=1020.0, step=200)) == {}     # described: not a second time
    run = await asyncio.to_thread(mlflow.MlflowClient(tracking_uri=store).get_run, run_id)
    assert run.data.params == REPORT.params and run.data.metrics == REPORT.metrics


async def test_a_server_has_one_run_of_a_job_though_both_sides_are_away_in_between(server: Server) -> None:
    tracker = Tracker(tensorboard="", mlflow=server.url)
    only = replace(REPORT, sinks=("mlflow",))
    try:
        assert await tracker.tell(only) == {}
        server.stop()
        lost = await tracker.tell(replace(only, at=1020.0, step=200, metrics={"auc": 0.65}))
        assert str(server.port) in lost["mlflow"]
        await asyncio.to_thread(server.start)
        assert await tracker.tell(replace(only, at=1030.0, step=300, metrics={"auc": 0.7})) == {}
        await tracker.stop()                # as with jobmaster
        assert await tracker.tell(replace(only, at=1040.0, step=400, metrics={"auc": 0.8}, ended="Stopped")) == {}
    finally:
        await tracker.stop()

    def read() -> tuple[dict[str, Any], list[tuple[int, float]]]:
        [experiment] = server.ask("experiments/search", max_results=10, filter="name = 'ranking'")["experiments"]
        [run] = server.ask("runs/search", experiment_ids=[experiment["experiment_id"]])["runs"]
        return run, server.history(run["info"]["run_id"], "auc")

    run, history = await asyncio.to_thread(read)
    assert (run["info"]["run_name"], run["info"]["status"]) == ("ads", "KILLED")
    assert (run["info"]["start_time"], run["info"]["end_time"]) == (1000500, 1040000)
    assert {item["key"]: item["value"] for item in run["data"]["params"]} == REPORT.params
    assert history == [(100, 0.6), (300, 0.7), (400, 0.8)]
