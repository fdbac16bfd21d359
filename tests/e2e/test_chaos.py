"""`recmesh chaos` as a person runs it: a short run is right, leaves nothing behind, and is wrong without a rule."""

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

from recmesh.chaos.run import chaos_on_counts
from recmesh.chaos.schedule import SHIFT_S, TARGETS, Strike, usurp
from recmesh.cli.mesh.chaos import chaos_mesh
from tests.support.whole_mesh import COMMAND, ROOT, START_S

pytestmark = [pytest.mark.integration, pytest.mark.e2e, pytest.mark.long]


def chaos(folder: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Exit code and report; whatever the run makes lies in the folder, and must be gone."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("RECMESH_")}
    result = subprocess.run(
        [*COMMAND, "chaos", "--json", *arguments], cwd=ROOT, capture_output=True, text=True, check=False,
        timeout=2 * START_S, env=env | {"TMPDIR": str(folder)},
    )
    assert result.stdout, result.stderr
    assert list(folder.iterdir()) == [], "the run left its folder behind"
    return result.returncode, json.loads(result.stdout)


@pytest.fixture
def folder() -> Any:
    """Short, for sockets and shared memory are named after it."""
    with tempfile.TemporaryDirectory(prefix="rm-") as made:
        yield Path(made)


def test_a_kill_at_a_gate_of_each_target_costs_no_sample_and_doubles_none(folder: Path) -> None:
    code, report = chaos(folder, "--kills", "7", "--seed", "11")
    said = json.dumps(report, indent=1)
    assert (code, report["verdict"], report["lost"], report["doubled"], report["faults"]) == (0, "right", 0, 0, 0), said
    assert report["missed"] == [] and report["inflight_hits"] == dict.fromkeys(TARGETS, 1), said
    assert report["phase"] == "Succeeded" and report["samples"] == report["total"] > 0
    assert report["snapshots"][-1]["is_full"] and report["evicted"] > 0
    assert report["pushes"]["drop_answer"] > 0 and report["pushes"]["double"] > 0


def test_without_deduplication_it_goes_red(folder: Path) -> None:
    code, report = chaos(folder, "--kills", "1", "--seed", "12", "--break", "dedup")
    assert code == 1 and report["verdict"] == "wrong"
    assert report["lost"] + report["doubled"] > 0


def test_a_synchronous_job_bears_older_writes_another_time_and_another_jobmaster() -> None:
    """The rarer injections, on a job whose parts wait in buffers: one is torn at a push, one at a freeze."""
    strikes = [
        Strike("worker-0", gate="worker.push"),
        usurp("jobmaster.commit"),
        Strike("ps-0", gate="ps.freeze"),
        Strike("valkey", how="rewind", stop_s=1.0),
        Strike("jobmaster", how="shift", shift_s=-SHIFT_S),
        Strike("ps-1", how="last"),
    ]
    told: list[str] = []
    with chaos_mesh(seed=7) as mesh:
        report = chaos_on_counts(mesh, strikes, seed=7, tell=told.append, batches_per_step=2)
    said = "\n".join([*told, json.dumps(report.as_document(), indent=1)])
    assert report.is_right and report.phase == "Succeeded", said
    assert report.missed == [] and report.rare == {"usurp": 1, "rewind": 1, "shift": 1, "last": 1}, said
    assert report.gates == {"worker.push": 1, "ps.freeze": 1}, said
    assert report.evicted > 0, said
