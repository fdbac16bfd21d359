"""`recmesh chaos` as a person runs it: a short run is right, leaves nothing behind, and is wrong without a rule."""

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

from recmesh.chaos.schedule import TARGETS
from tests.support.whole_mesh import COMMAND, ROOT, START_S

pytestmark = [pytest.mark.integration, pytest.mark.e2e]


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
    assert report["snapshots"][-1]["is_full"]
    assert report["pushes"]["drop_answer"] > 0 and report["pushes"]["double"] > 0


def test_without_deduplication_it_goes_red(folder: Path) -> None:
    code, report = chaos(folder, "--kills", "1", "--seed", "12", "--break", "dedup")
    assert code == 1 and report["verdict"] == "wrong"
    assert report["lost"] + report["doubled"] > 0
