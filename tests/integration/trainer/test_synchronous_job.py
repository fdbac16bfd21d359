"""Synchronous jobs as processes: the number of workers, and their deaths, leave the model as it is."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recmesh.trainer.local import local_job
from recmesh.trainer.usercode import resolve
from tests.support.training_mesh import TrainingMesh, training_mesh

pytestmark = [pytest.mark.integration, pytest.mark.long]
ROWS, BATCH, BATCHES = 24_000, 128, 4


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrainingMesh]:
    folder = tmp_path_factory.mktemp("mesh")
    random = np.random.default_rng(0)
    user, item, x = random.integers(0, 200, ROWS), random.integers(0, 50, ROWS), random.normal(size=ROWS)
    label = ((user % 7 + item % 5 + x) > 5).astype("int64")
    table = pa.table({"user": user, "item": item, "x": x.astype("float32"), "label": label})
    pq.write_table(table, folder / "data.parquet", row_group_size=ROWS)
    with training_mesh(folder) as made:
        yield made


def spec_of(mesh: TrainingMesh, name: str, *, workers: int, **training: Any) -> dict[str, Any]:
    return {
        "name": name,
        "model": {"zoo": "torch_dcn_v2", "params": {"embedding_dim": 8, "hidden": [32]}},
        "data": {
            "source": {"files": [str(mesh.folder / "data.parquet")], "rows": [0.0, 0.75]},
            "task_rows": ROWS,
            "features": [{"name": "user"}, {"name": "item"}, {"name": "x", "kind": "dense"}],
        },
        "evaluation": {"rows": [0.75, 1.0]},
        "roles": {"ps": {"replicas": 2}, "worker": {"replicas": workers}},
        "training": {"batch_size": BATCH, "optimizer": {"kind": "adagrad", "lr": 0.1}} | training,
        "checkpoint": {"every_s": 2},
    }


def judged(mesh: TrainingMesh, job_id: str) -> dict[str, float]:
    job = mesh.until_job(job_id, lambda job: job.model_uri or job.phase in ("Failed", "Stopped"), timeout_s=180)
    assert job.model_uri, f"{job.phase}: {job.reason} {job.message}\n{mesh.logs(job_id)}"
    assert job.progress.samples == job.progress.total
    return dict(job.metrics)


def test_one_and_three_workers_learn_the_same_and_what_one_process_does_with_large_batches(mesh: TrainingMesh) -> None:
    sync = {"sync": {"batches_per_step": BATCHES}}
    jobs = [mesh.submit(spec_of(mesh, f"sync-{workers}", workers=workers, **sync)) for workers in (1, 3)]
    alone = local_job(spec_of(mesh, "alone", workers=1, batch_size=BATCH * BATCHES))
    resolve(alone.spec.model)(alone)
    large = alone.evaluate()
    one, three = (judged(mesh, job_id) for job_id in jobs)
    assert one["eval_auc"] > 0.85
    for name in ("eval_auc", "eval_loss"):
        assert three[name] == pytest.approx(one[name], abs=1e-4)
        assert large[name] == pytest.approx(one[name], abs=1e-2)     # its initial weights are its own


def test_a_synchronous_job_outlives_a_worker_and_a_parameter_server(mesh: TrainingMesh) -> None:
    training: dict[str, Any] = {"epochs": 6, "sync": {"batches_per_step": BATCHES}}
    job_id = mesh.submit(spec_of(mesh, "sync-survivor", workers=2, **training))
    mesh.until_job(job_id, lambda job: job.phase == "Running" and job.progress.samples > 5_000)
    mesh.kill_role(job_id, "worker", 0)
    before = mesh.job(job_id).progress.samples
    mesh.until_job(job_id, lambda job: job.progress.samples > before + 10_000 or job.phase == "Succeeded")
    mesh.until_job(job_id, lambda job: job.snapshot > 0)
    mesh.kill_role(job_id, "ps", 1)
    assert judged(mesh, job_id)["eval_auc"] > 0.85
    assert mesh.job(job_id).gen == 2
