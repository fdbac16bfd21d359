"""MTRM on a real mesh: batches an hour behind, and the stream."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.hours import modes, write_hours
from tests.support.whole_mesh import WholeMesh

pytestmark = [pytest.mark.integration, pytest.mark.e2e, pytest.mark.long]
HOURS, ROWS = 3, 200


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeMesh]:
    made = WholeMesh(tmp_path_factory.mktemp("mixed"))
    try:
        made.up()
        yield made
    finally:
        made.down()


def trained(mesh: WholeMesh, root: Path, mode: str) -> dict[str, Any]:
    """The exported model's card."""
    job_id = mesh.submit({
        "name": mode.replace("_", "-"),
        "model": {"zoo": "mtrm", "params": {"embedding_dim": 4, "hidden": [8], "adapt_hidden": [4]}},
        "data": modes(root, hours=HOURS)[mode],
        "training": {"batch_size": 64, "shard_batches": 2, "optimizer": {"kind": "adam", "lr": 0.01}},
        "roles": {"ps": {"replicas": 2}, "worker": {"replicas": 2}},
    })
    job = mesh.ended(job_id)
    assert job.phase == "Succeeded", (job.reason, job.message, job.notes)
    assert job.progress.samples == job.progress.total
    card: dict[str, Any] = json.loads((Path(job.model_uri) / "model.json").read_text())
    return card


def test_each_kind_trains_the_rows_of_its_own_tower(mesh: WholeMesh, tmp_path: Path) -> None:
    write_hours(tmp_path, hours=HOURS, rows=ROWS)

    def rows(mode: str) -> dict[str, int]:
        return {table["name"]: table["rows"] for table in trained(mesh, tmp_path, mode)["tables"]}

    assert rows("mixed") == {"user": 9, "item": 5, "adapt.user": 9, "adapt.item": 5}
    assert rows("stream") == {"user": 0, "item": 0, "adapt.user": 9, "adapt.item": 5}
