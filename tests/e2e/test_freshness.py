"""A job on a topic whose model the gateway serves while it trains: what it answers is of one moment of training.

Each sample adds 1 to the row of its item (of 16) and takes 1/16 from the parameter `w`; a prediction is row + w. So
predictions of all 16 items add up to 0 exactly where rows and parameter are of one cut, and -16·w is the number of
samples that the version has.
"""

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from recmesh.runtime.errors import MeshError
from tests.e2e.test_topics import Clicks
from tests.support.waiting import until
from tests.support.whole_mesh import STEP_S, WholeMesh, role

pytestmark = [pytest.mark.integration, pytest.mark.e2e, pytest.mark.long]
ITEMS, UNKNOWN = 16, 10**12

MODEL = '''"""Counts samples twice: in rows, and in a parameter."""

import torch
from torch import nn

from recmesh.torch import EmbeddingCollection, attach
from recmesh.trainer.session import EmbeddingTable, Init


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.embeddings = EmbeddingCollection([EmbeddingTable("item", 1, init=Init.zeros())])
        self.w = nn.Parameter(torch.zeros(1))

    def forward(self, batch):
        return self.embeddings(batch)["item"][:, 0] + self.w


def main(job):
    model = Counting()
    trainer = attach(job, model, predictions="identity")
    for batch in trainer:
        rows = model(batch) - model.w
        trainer.step(job.batch_size * (model.w / 16 - rows).mean())
'''


class Items(Clicks):
    """Two partitions of items, one after another."""

    partitions = 2

    def event(self, number: int) -> dict[str, Any]:
        return {"item": number % ITEMS, "label": 1.0}


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeMesh]:
    made = WholeMesh(tmp_path_factory.mktemp("fresh"))
    try:
        made.up()
        yield made
    finally:
        made.down()


def counting_job(mesh: WholeMesh, topic: Items) -> dict[str, Any]:
    code = mesh.folder / "counting"
    code.mkdir()
    (code / "counting.py").write_text(MODEL)
    source = {"jetstream": f"{topic.name}-*", "start": "earliest", "types": {"item": "int", "label": "float"}}
    return {
        "name": topic.name, "model": {"entrypoint": "counting:main", "code": str(code)},
        "data": {
            "streams": [{"sources": [source]}], "label": "label", "features": [{"name": "item"}], "task_rows": 64,
        },
        "training": {"batch_size": 32, "shard_batches": 2, "optimizer": {"kind": "sgd", "lr": 1.0}},
        "roles": {"ps": {"replicas": 1}, "worker": {"replicas": 1}},
        "freshness": {"every_s": 0.5},
    }


def counted(mesh: WholeMesh, name: str) -> tuple[int, int, list[float]]:
    """Samples that the answer knows, its version, and the predictions; AssertionError when it is of two moments."""
    items = [*range(ITEMS), UNKNOWN]
    request = {"inputs": [{"name": "item", "datatype": "INT64", "shape": [len(items)], "data": items}]}
    answer = mesh.asked(lambda client: client.infer(name, request))
    *values, w = answer["outputs"][0]["data"]
    version = int(answer["parameters"]["fresh_version"])
    assert sum(values) == 0.0, f"version {version}: rows and parameter are of two moments: {values}, {w}"
    return round(-16 * w), version, values


def test_rows_and_weights_follow_training_together_and_back(mesh: WholeMesh) -> None:
    topic = Items(mesh, "fresh")
    topic.make()
    topic.send(320)
    job_id = mesh.submit(counting_job(mesh, topic))
    until(lambda: served(mesh, "fresh"), timeout_s=STEP_S, poll_s=0.2)
    seen: dict[int, list[float]] = {}
    for _ in range(8):
        topic.send(160)

        def has_come() -> bool:
            samples, version, values = counted(mesh, "fresh")
            assert seen.setdefault(version, values) == values, "a version answers alike"
            assert version == max(seen), "versions do not go back"
            return samples == topic.sent

        until(has_come, timeout_s=STEP_S, poll_s=0.02)
    assert len(seen) >= 3

    before = max(version for version in seen if version < max(seen))
    mesh.ok("rollback", "fresh", "--to", str(before))
    assert counted(mesh, "fresh")[1:] == (before, seen[before])
    topic.send(160)
    os.kill(int(role(mesh.job(job_id), "ps", 0).handle), signal.SIGKILL)       # training rolls back, too
    until(lambda: mesh.job(job_id).gen == 2 and mesh.job(job_id).progress.samples == topic.sent, timeout_s=STEP_S)
    assert counted(mesh, "fresh")[1:] == (before, seen[before]), "it holds what it was told to hold"
    assert "held" in mesh.ok("freshness", "fresh")
    mesh.ok("rollback", "fresh", "--resume")
    until(lambda: counted(mesh, "fresh")[0] == topic.sent, timeout_s=STEP_S, poll_s=0.1)
    told = mesh.asked(lambda client: client.freshness("fresh"))
    assert (told["generation"], told["held"]) == (2, False)
    assert told["wholes"] >= 1
    mesh.ok("stop", job_id)


def served(mesh: WholeMesh, name: str) -> bool:
    try:
        return bool(mesh.asked(lambda client: client.freshness(name))["fresh_version"])
    except MeshError:
        return False
