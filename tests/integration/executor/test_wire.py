"""An executor behind its real wire: what a worker gets is what it would have read itself."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from recmesh.data import TaskReader, TaskRecord
from recmesh.runtime.errors import FailedPrecondition, InvalidArgument, Unavailable
from recmesh.runtime.rpc import sync_channel, sync_server
from recmesh.spec.fingerprint import job_fingerprint
from recmesh.spec.job import TrainingJob
from recmesh.trainer.executor.role import executor_of
from recmesh.trainer.executor.rpc import LANES, SERVICE_NAME, DataExecutorServicer, add_to_server
from recmesh.trainer.ports import ExecutorAddress
from recmesh.trainer.wire import RemoteExecutor
from recmesh.trainer.worker.reading import FromExecutors
from tests.support.datasets import FEATURES, clicks, tasks_of, write
from tests.unit.trainer.test_rows_wire import same

pytestmark = pytest.mark.integration
ROWS, TASK_ROWS = 1_000, 150


@pytest.fixture
def job(tmp_path: Path) -> TrainingJob:
    file = write(clicks(ROWS), tmp_path / "a.parquet")
    data = {
        "source": {"files": [str(file)]}, "task_rows": TASK_ROWS, "where": [{"column": "row", "op": ">=", "value": 40}],
        "features": [*FEATURES, {"name": "words", "kind": "bag", "column": "city", "separator": "-"}],
    }
    return TrainingJob.parse({"name": "job", "model": {"entrypoint": "m:main"}, "data": data})


@pytest.fixture
def served(job: TrainingJob) -> Iterator[str]:
    def nobody(address: str) -> Any:
        raise AssertionError(address)

    executor = executor_of(job, reach=nobody)
    servicer = DataExecutorServicer(executor, fingerprint=job_fingerprint(job, job_id="job"))
    listener = sync_server(
        "data", "127.0.0.1:0", [add_to_server(servicer)], service_names=[SERVICE_NAME], lanes=LANES, token="secret"
    )
    executor.start(listener.address)
    yield listener.address
    executor.stop()
    listener.stop(1.0)


def remote(job: TrainingJob, address: str, *, token: str = "secret", job_id: str = "job") -> RemoteExecutor:
    return RemoteExecutor(sync_channel(address, token=token), fingerprint=job_fingerprint(job, job_id=job_id))


def tasks(job: TrainingJob) -> list[TaskRecord]:
    assert job.data is not None
    return tasks_of(job.data, order_seed=9)


def test_every_batch_is_the_one_that_the_worker_would_have_read(job: TrainingJob, served: str) -> None:
    assert job.data is not None
    all_tasks, plain = tasks(job), TaskReader(job.data)

    def local() -> TaskReader:
        raise AssertionError("no executor answered")

    reader = FromExecutors(connect=lambda address: remote(job, address), local=local, batch_size=64)
    reader.use([ExecutorAddress(served, "first")])
    reader.announce(all_tasks)
    for lo in range(0, ROWS, 64):
        hi = min(ROWS, lo + 64)
        same(reader.batch(all_tasks, lo, hi), plain.batch(all_tasks, lo, hi))
    assert reader.read_locally == 0
    reader.close()


def test_callers_of_other_data_or_without_the_token_are_refused(job: TrainingJob, served: str) -> None:
    assert job.data is not None
    other = job.model_copy(update={"data": job.data.model_copy(update={"label": "user"})})
    task = tasks(job)[0]
    with pytest.raises(FailedPrecondition, match="other data"):
        remote(other, served).read(task, 0, 1, wait_s=5)
    with pytest.raises(Exception, match="token"):
        remote(job, served, token="wrong").read(task, 0, 1, wait_s=5)


def test_rows_outside_of_the_task_are_refused(job: TrainingJob, served: str) -> None:
    with pytest.raises(InvalidArgument, match="within"):
        remote(job, served).read(tasks(job)[0], 0, TASK_ROWS + 1, wait_s=5)


def test_a_call_over_a_connection_that_was_closed_is_one_to_an_executor_that_has_gone(
    job: TrainingJob, served: str
) -> None:
    executor = remote(job, served)
    assert executor.announce(tasks(job)) == len(tasks(job))
    executor.close()
    with pytest.raises(Unavailable):
        executor.read(tasks(job)[0], 0, 1, wait_s=5)
    with pytest.raises(Unavailable):
        executor.announce(tasks(job))
